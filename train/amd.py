"""`python -m train.amd`: corrections of AMD's Instinct from AITER's tuned tables, and what they are worth.

No framework's kernel times on these GPUs are public, so the nets, which know NVIDIA's cards only, are corrected by the
fastest kernel of each shape. Errors after are of rows whose whole (n, k), or set of experts, was left out. Then drawn
pairs of calls of which the second is more work are brought into order (`in_order`).
"""

from __future__ import annotations

import argparse
import json
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from corpus import aiter
from pipewave.calibrate.fit import FEWEST_ROWS, Fit, Key, Row, Sample, fit, samples, thinned
from pipewave.gpus import GPU, find, names
from pipewave.kernels import family_of
from pipewave.nets.calibration import corrections
from pipewave.nets.calibration.correction import Correction
from pipewave.nets.calibration.corrections import Saved, save
from pipewave.physics.demand import Array
from train.cards import ROOT, write
from train.drawn import SIZES, TYPES, maker, runnable

OUT = ROOT / "studies" / "results" / "amd.json"
ORIGIN = "AITER's tuned kernels: attainable time"
PROTOCOL = "cold"
MOST_ROWS = 600
CONTEXTS, A_CONTEXT = 150, 16  # of drawn calls of each kernel on each GPU, and calls of each
MARGIN = 0.005  # log by which the larger call of a pair is to be slower
PRICE = 1e6  # of the mean square of what is missing
ROUNDS, RIDGE = 12, 1e-9  # solutions in turn, and what keeps them from rounding


def main(argv: list[str] | None = None) -> None:
    """Fit, save the corrections into the package, and write what they are worth."""
    parser = argparse.ArgumentParser(prog="python -m train.amd", description=__doc__)
    parser.add_argument("--data", type=Path, help="corpus folder (default: PIPEWAVE_DATA or ../shared/data)")
    parser.add_argument("--out", type=Path, default=corrections.SHIPPED)
    parser.add_argument("--json", type=Path, default=OUT)
    options = parser.parse_args(argv)
    given, table = aiter.tables(options.data), []
    for architecture, found in _by_architecture(given).items():
        fits = {key: fit(thinned(sample, MOST_ROWS)) for key, sample in found.items() if len(sample) >= FEWEST_ROWS}
        pairs = drawn_pairs(architecture)
        kept = {key: packed(in_order(one.correction, pairs[key])) for key, one in fits.items() if one.correction}
        save(Saved(architecture, kept, ({"source": ORIGIN},)), options.out / f"{architecture}{corrections.SUFFIX}")
        table += [_line(architecture, key, one) for key, one in sorted(fits.items())]
    content = {"fits": table, "listed": aiter.listed(given)}
    write(options.json, content)
    print(json.dumps(content, indent=1))


def _by_architecture(given: dict[str, pd.DataFrame]) -> dict[str, dict[Key, Sample]]:
    """Samples of all parts of an architecture together, by net and protocol."""
    parts: dict[str, dict[Key, list[Sample]]] = defaultdict(lambda: defaultdict(list))
    for (gfx, units), (name, changes) in aiter.PARTS.items():
        gpu = find(name).what_if(**changes)
        chosen = ((kernel, row) for kernel in given for row in aiter.chosen(kernel, given[kernel], gfx, units, gpu))
        rows = [_row(kernel, row, row.pop("us")) for kernel, row in chosen]
        for key, sample in samples(rows, gpu)[0].items():
            parts[gpu.architecture][key].append(sample)
    return {name: {key: joined(some) for key, some in by_key.items()} for name, by_key in parts.items()}


def _row(kernel: str, sizes: Mapping[str, Any], latency_us: float) -> Row:
    """A row as `pipewave calibrate` reads it."""
    case = {"kernel": kernel, **sizes}
    return {"case": case, "protocol": PROTOCOL, "latency_us": latency_us, "stack": None, "impl": None}


def drawn_pairs(architecture: str) -> dict[Key, list[Sample]]:
    """Calls on each GPU of an architecture by net, smaller and larger ones in turn, as if each took a microsecond."""
    pick, found = random.Random(0), defaultdict[Key, list[Sample]](list)
    for gpu in (gpu for gpu in map(find, sorted(names())) if gpu.architecture == architecture):
        rows = [row for kernel in aiter.KERNELS for _ in range(CONTEXTS) for row in _drawn(pick, kernel, gpu)]
        for key, sample in samples(rows, gpu)[0].items():
            found[key].append(sample)
    return found


def _drawn(pick: random.Random, kernel: str, gpu: GPU) -> Iterator[Row]:
    options, make = maker(pick, kernel)
    shared = options | {"kernel": kernel, "dtype": pick.choice([dtype for dtype in TYPES if gpu.supports(dtype)])}
    for case in runnable(family_of(kernel), gpu, [make(pick) | shared for _ in range(A_CONTEXT)]):
        for size in SIZES[kernel]:
            yield from (_row(kernel, each, 1.0) for each in (case, case | {size: 2 * case[size]}))


def in_order(found: Correction, pairs: Sequence[Sample]) -> Correction:
    """The correction of the same rows under which of each pair the larger call is slower, or less too fast: squares of
    what is missing have a price beside the Gaussian process's own.
    """
    steps, ahead = zip(*(_steps(found, sample) for sample in pairs), strict=True)
    step, missing = np.concatenate(steps), MARGIN - np.concatenate(ahead)
    rows, noise = found.scales.kernel(found.points, found.points), found.scales.noise**2
    usual, weights = rows @ rows / noise + rows + RIDGE * np.eye(len(rows)), found.weights
    wanted = usual @ weights
    for _ in range(ROUNDS):
        short = step @ weights < missing
        few, price = step[short], PRICE / len(step)
        weights = np.linalg.solve(usual + price * few.T @ few, wanted + price * missing[short] @ few)
    return replace(found, weights=weights)


def _steps(found: Correction, sample: Sample) -> tuple[Array, Array]:
    """By row of the correction, what of its covariance a pair's larger call has more; how much slower it is before."""
    at = dict(zip(sample.names, sample.coordinates.T, strict=True))
    raw = np.stack([at.get(name, np.zeros(len(sample))) for name in found.frame.names], 1)
    near = found.scales.kernel(found.frame.scaled(raw), found.points)
    return near[1::2] - near[::2], sample.log_ratio[::2] - sample.log_ratio[1::2]


def joined(some: list[Sample]) -> Sample:
    """Several samples of one net as one, of the coordinates that all have; groups of different samples may be one."""
    names = tuple(name for name in some[0].names if all(name in other.names for other in some))
    columns = [np.array([sample.names.index(name) for name in names]) for sample in some]
    return Sample(
        names=names,
        coordinates=np.concatenate([s.coordinates[:, c] for s, c in zip(some, columns, strict=True)]),
        log_ratio=np.concatenate([s.log_ratio for s in some]),
        half_width=np.concatenate([s.half_width for s in some]),
        group=np.concatenate([s.group + 10_000 * i for i, s in enumerate(some)]),
        settings=frozenset().union(*(s.settings for s in some)),
    )


def packed(found: Correction) -> Correction:
    """The same in half the bytes."""
    return replace(found, origin=ORIGIN, points=found.points.astype(np.float32))


def _line(architecture: str, key: Key, found: Fit) -> dict[str, Any]:
    return {
        "architecture": architecture,
        "net": key[0],
        "rows": found.rows,
        "groups": found.groups,
        "error before %": round(found.before, 1),
        "error left out %": round(found.after, 1),
        "interval": round(found.correction.width, 2) if found.correction else None,
    }


if __name__ == "__main__":
    main()

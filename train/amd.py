"""`python -m train.amd`: corrections of AMD's Instinct from AITER's tuned tables, and what they are worth.

No framework's kernel times on these GPUs are public, so the nets, which know NVIDIA's cards only, are corrected by the
fastest kernel of each shape. Errors after are of rows whose whole (n, k), or set of experts, was left out.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from corpus import aiter
from pipewave.calibrate.fit import FEWEST_ROWS, Fit, Key, Row, Sample, fit, samples, thinned
from pipewave.gpus import GPU, find
from pipewave.nets.calibration import corrections
from pipewave.nets.calibration.correction import Correction
from pipewave.nets.calibration.corrections import Saved, save

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "studies" / "results" / "amd.json"
ORIGIN = "AITER's tuned kernels: attainable time"
PROTOCOL = "cold"
MOST_ROWS = 600


def main(argv: list[str] | None = None) -> None:
    """Fit, save the corrections into the package, and write what they are worth."""
    parser = argparse.ArgumentParser(prog="python -m train.amd", description=__doc__)
    parser.add_argument("--data", type=Path, help="corpus folder (default: PIPEWAVE_DATA or ../shared/data)")
    parser.add_argument("--out", type=Path, default=corrections.SHIPPED)
    parser.add_argument("--json", type=Path, default=OUT)
    options = parser.parse_args(argv)
    given, table = tables(options.data), []
    for architecture, found in _by_architecture(given).items():
        fits = {key: fit(thinned(sample, MOST_ROWS)) for key, sample in found.items() if len(sample) >= FEWEST_ROWS}
        kept = {key: packed(one.correction) for key, one in fits.items() if one.correction}
        save(Saved(architecture, kept, ({"source": ORIGIN},)), options.out / f"{architecture}{corrections.SUFFIX}")
        table += [_line(architecture, key, one) for key, one in sorted(fits.items())]
    content = {"fits": table, "listed": _spread(given)}
    options.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(content, indent=1))


def tables(data: Path | None) -> dict[str, pd.DataFrame]:
    """Fastest times by kernel of the contract."""
    return {"gemm": aiter.gemms(data), "fused_moe": aiter.experts(data)}


def _by_architecture(given: dict[str, pd.DataFrame]) -> dict[str, dict[Key, Sample]]:
    """Samples of all parts of an architecture together, by net and protocol."""
    parts: dict[str, dict[Key, list[Sample]]] = defaultdict(lambda: defaultdict(list))
    for (gfx, units), (name, changes) in aiter.PARTS.items():
        gpu = find(name).what_if(**changes)
        rows = [row for kernel, table in given.items() for row in _rows(kernel, table, gfx, units, gpu)]
        for key, sample in samples(rows, gpu)[0].items():
            parts[gpu.architecture][key].append(sample)
    return {name: {key: joined(some) for key, some in by_key.items()} for name, by_key in parts.items()}


def _rows(kernel: str, table: pd.DataFrame, gfx: str, units: int, gpu: GPU) -> Iterator[Row]:
    """Rows of one part as `pipewave calibrate` reads them."""
    of, by = (["dtype", "n", "k"], "m") if kernel == "gemm" else (["dtype", "hidden", "inter", "experts"], "tokens")
    mine = table[(table.gfx == gfx) & (table.cu_num == units)]
    mine = aiter.possible(mine, gpu)
    for row in aiter.thinned(mine, of, by).to_dict("records") if len(mine) else ():
        sizes = {k: int(v) for k, v in row.items() if k not in ("gfx", "cu_num", "dtype", "us", "spread")}
        case = {"kernel": kernel, "dtype": row["dtype"]} | sizes
        yield {"case": case, "protocol": PROTOCOL, "latency_us": row["us"], "stack": None, "impl": None}


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


def _spread(given: dict[str, pd.DataFrame]) -> list[dict[str, Any]]:
    """How much slower the slowest listed kernel of a shape is than the fastest, where several are listed."""
    several = {kernel: table.dropna(subset=["spread"]) for kernel, table in given.items()}
    return [
        {
            "kernel": kernel,
            "gfx": gfx,
            "dtype": dtype,
            "shapes": len(some),
            "median ratio": round(float(some.spread.median()), 3),
        }
        for kernel, table in several.items()
        for (gfx, dtype), some in table.groupby(["gfx", "dtype"])
    ]


if __name__ == "__main__":
    main()

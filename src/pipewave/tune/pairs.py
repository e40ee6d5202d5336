"""Default against choice on many further shapes: `python -m pipewave.tune.pairs --out DIR [--count 300]`.

Only the two configurations are timed, interleaved, on shapes drawn from a stream of their own. Needs torch and triton.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pipewave.tune import load_table
from pipewave.tune.mapping import KIND_FIELDS
from pipewave.tune.record import Launcher, Timer, environment, say
from pipewave.tune.recording import TEST, Recording, Rows
from pipewave.tune.shapes import FIELDS, Shape, draw, family
from pipewave.tune.space import Config, Space, kernels, space

SEED = 77_000_003  # another stream than test shapes and anchors
ROUNDS = 12


def pairs_of(table: Any, of: Space, shapes: Sequence[Shape]) -> list[tuple[int, int]]:
    """Return the numbers of the default and of the table's choice at each shape; routing is expected, not known."""
    names = KIND_FIELDS[family(of.kernel)]
    found = []
    for shape in shapes:
        config = table.select(**{name: shape[name] for name in names})
        found.append((of.configs.index(of.default(shape)), of.configs.index(tuple(config[name] for name in of.names))))
    return found


def compare(recording: Recording) -> dict[str, float]:
    """Return how often the choice is slower than the default by over 2 %, and the speed-up; second of two columns."""
    count = len(recording.shapes)
    default, choice = np.zeros(count), np.zeros(count)
    wanted = np.asarray(recording.meta["pairs"])
    for i in range(count):
        here = recording.row_shape == i
        config, us = recording.row_config[here], recording.row_us[here]
        default[i], choice[i] = (np.median(us[config == wanted[i, side]]) for side in (0, 1))
    gain = default / choice
    return {"shapes": count, "same": float(np.mean(wanted[:, 0] == wanted[:, 1])),
            "slower_share": float(np.mean(choice > 1.02 * default)), "worst_slowdown": float((1 / gain).max() - 1),
            "speed_up_geomean": float(np.exp(np.log(gain).mean())), "speed_up_max": float(gain.max())}  # fmt: skip


def record(
    of: Space, shapes: Sequence[Shape], pairs: Sequence[tuple[int, int]], launcher: Launcher, timer: Timer
) -> Rows:
    """Time default and choice at each shape, taking turns."""
    rows, fields = Rows(), FIELDS[family(of.kernel)]
    for shape, pair in zip(shapes, pairs, strict=True):
        launcher.prepare(shape)
        launches = {index: launcher.calls(of.configs[index]) for index in set(pair)}
        order = [*pair] * ROUNDS
        us = timer([launches[index] for index in order])
        at = rows.add_shape([shape[name] for name in fields], TEST, [])
        rows.add(at, order, [i // 2 % 2 for i in range(len(order))], us)
    return rows


def on_gpu(
    of: Space, shapes: Sequence[Shape], pairs: Sequence[tuple[int, int]], built: Mapping[Config, Any]
) -> Recording:
    """Time one kernel on the current GPU."""
    from pipewave.tune import build
    from pipewave.tune.operands import Operands
    from pipewave.tune.timing import ColdTimer

    loaded = {key: build.compile_binary(of.kernel, key) for key in built}
    rows = record(of, shapes, pairs, Operands(of.kernel, of.names, loaded), ColdTimer())
    meta = {"schema": 1, "kernel": of.kernel, "names": of.names, "fields": FIELDS[family(of.kernel)], "seed": SEED,
            "pairs": list(pairs), "method": "cuda events, cold L2", "env": environment()}  # fmt: skip
    reports = [built.get(config[: of.compiled]) for config in of.configs]
    return rows.freeze(meta, list(of.configs), [(r.smem_bytes, r.registers, r.spill_bytes) if r else (-1, -1, -1)
                                                for r in reports])  # fmt: skip


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point; a kernel whose file exists is skipped."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernel", default=",".join(kernels()))
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(argv)
    options.out.mkdir(parents=True, exist_ok=True)
    plans = {}
    for kernel in options.kernel.split(","):
        if not (options.out / f"pairs_{kernel}.npz").exists():
            shapes = draw(kernel, SEED, options.count)
            plans[kernel] = space(kernel), shapes, pairs_of(load_table(kernel), space(kernel), shapes)
    from pipewave.tune import build

    needed = {kernel: sorted({of.configs[index][: of.compiled] for pair in pairs for index in pair})
              for kernel, (of, _, pairs) in plans.items()}  # fmt: skip
    jobs = build.build_all(needed, max(1, (os.cpu_count() or 2) - 1))
    for kernel, plan in plans.items():
        built = dict(zip(needed[kernel], [job.result() for job in jobs[kernel]], strict=True))
        recording = on_gpu(*plan, built)
        recording.save(options.out / f"pairs_{kernel}.npz")
        say(f"{kernel}: {compare(recording)}")


if __name__ == "__main__":
    main()

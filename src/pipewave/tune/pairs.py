"""Default against choice on many further shapes: `python -m pipewave.tune.pairs --out DIR [--count 300]`.

Timed are the two configurations and the few that the table ranks next (so that a later table can be judged by the same
file), in turns, on shapes drawn from a stream of their own. Needs torch and triton.
"""

from __future__ import annotations

import argparse
import os
import random
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
NEXT = 6  # of the table's ranking, timed beside default and choice


def choices_of(table: Any, of: Space, shapes: Sequence[Shape]) -> list[int]:
    """Return the number of the table's choice at each shape; routing and longest sequence are expected, not known."""
    names, number = KIND_FIELDS[family(of.kernel)], {config: i for i, config in enumerate(of.configs)}
    chosen = [table.select(**{name: shape[name] for name in names}) for shape in shapes]
    return [number[tuple(config[name] for name in of.names)] for config in chosen]


def candidates_of(table: Any, of: Space, shapes: Sequence[Shape]) -> list[tuple[int, ...]]:
    """Return the numbers of default, choice and the table's next best at each shape."""
    columns = {name: np.array([[shape[name]] for shape in shapes]) for name in KIND_FIELDS[family(of.kernel)]}
    best = np.argsort(table.table.fitted.leaning(columns), axis=1, kind="stable")[:, :NEXT]
    defaults = [of.configs.index(of.default(shape)) for shape in shapes]
    return [(default, choice, *rest) for default, choice, rest in
            zip(defaults, choices_of(table, of, shapes), best.tolist(), strict=True)]  # fmt: skip


def compare(recording: Recording, choices: Sequence[int] | None = None) -> dict[str, float]:
    """Return how often the choice is slower than the default by over 2 %, and the speed-up.

    `choices` [s] are another table's; shapes where that choice was not timed are left out, and counted.
    """
    wanted = [row[1] for row in recording.meta["pairs"]] if choices is None else choices
    medians = [_medians(recording, i) for i in range(len(recording.shapes))]
    timed = [(us[row[0]], us[choice]) for us, row, choice in
             zip(medians, recording.meta["pairs"], wanted, strict=True) if choice in us]  # fmt: skip
    default, chosen = np.array(timed).T
    gain = default / chosen
    return {"shapes": len(timed), "untimed": len(medians) - len(timed), "same": float(np.mean(default == chosen)),
            "slower_share": float(np.mean(chosen > 1.02 * default)), "worst_slowdown": float((1 / gain).max() - 1),
            "speed_up_geomean": float(np.exp(np.log(gain).mean())), "speed_up_max": float(gain.max())}  # fmt: skip


def _medians(recording: Recording, shape: int) -> dict[int, float]:
    here = recording.row_shape == shape
    config, us = recording.row_config[here], recording.row_us[here]
    return {index: float(np.median(us[config == index])) for index in np.unique(config).tolist()}


def record(
    of: Space, shapes: Sequence[Shape], wanted: Sequence[Sequence[int]], launcher: Launcher, timer: Timer
) -> Rows:
    """Time the candidates of each shape, taking turns in another order each round."""
    rows, fields = Rows(), FIELDS[family(of.kernel)]
    for number, (shape, some) in enumerate(zip(shapes, wanted, strict=True)):
        launcher.prepare(shape)
        distinct = list(dict.fromkeys(some))
        launches = {index: launcher.calls(of.configs[index]) for index in distinct}
        draw = random.Random(number)
        order = [index for _ in range(ROUNDS) for index in draw.sample(distinct, len(distinct))]
        halves = [done % 2 for done in range(ROUNDS) for _ in distinct]
        at = rows.add_shape([shape[name] for name in fields], TEST, [])
        rows.add(at, order, halves, timer([launches[index] for index in order]))
    return rows


def on_gpu(
    of: Space, shapes: Sequence[Shape], wanted: Sequence[Sequence[int]], built: Mapping[Config, Any]
) -> Recording:
    """Time one kernel on the current GPU."""
    from pipewave.tune import build
    from pipewave.tune.operands import Operands
    from pipewave.tune.timing import ColdTimer

    loaded = {key: build.compile_binary(of.kernel, key) for key in built}
    rows = record(of, shapes, wanted, Operands(of.kernel, of.names, loaded), ColdTimer())
    meta = {"schema": 1, "kernel": of.kernel, "names": of.names, "fields": FIELDS[family(of.kernel)], "seed": SEED,
            "pairs": [list(some) for some in wanted], "method": "cuda events, cold L2", "order": "shuffled",
            "env": environment()}  # fmt: skip
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
            plans[kernel] = space(kernel), shapes, candidates_of(load_table(kernel), space(kernel), shapes)
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

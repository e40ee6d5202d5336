"""Default against choice on many further shapes: `python -m pipewave.tune.pairs --out DIR [--count 300] [--seed N]`.

Timed are the default, the table's choice with its load known and unknown, and the few that the table ranks next (so
that a later table can be judged by the same file), in turns, on shapes drawn from a stream of their own. Needs torch
and triton.
"""

from __future__ import annotations

import argparse
import os
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pipewave.tune import load_table
from pipewave.tune.mapping import KIND_FIELDS
from pipewave.tune.measured import routed_rows
from pipewave.tune.profile import counts
from pipewave.tune.record import Job, Launcher, Timer, environment, say
from pipewave.tune.recording import TEST, Recording, Rows
from pipewave.tune.shapes import FIELDS, Shape, draw, family, lengths
from pipewave.tune.space import Config, Space, kernels, space

SEED = 77_000_003  # another stream than test shapes and anchors
ROUNDS = 12
NEXT, NEXT_KNOWN = 6, 3  # of the table's ranking, timed beside default and choices

Candidates = Callable[[Shape, list[int]], tuple[int, ...]]


def asked(kernel: str, shape: Shape, routed: Sequence[int], *, known_load: bool) -> dict[str, Any]:
    """Return a drawn shape as the arguments of `select`, `known_load` with tokens `routed` or the longest sequence."""
    fields: dict[str, Any] = {name: shape[name] for name in KIND_FIELDS[family(kernel)]}
    if family(kernel) == "decode":  # an engine knows how many tokens it has cached, hence their mean
        drawn = lengths(shape)
        fields["kv_len"] = mean = int(np.rint(drawn.mean()))
        return fields | ({"longest": max(mean, int(drawn.max()))} if known_load else {})
    return fields | ({"counts": tuple(routed)} if known_load and family(kernel) == "moe" else {})


def choices_of(
    table: Any, of: Space, shapes: Sequence[Shape], routed: Sequence[Sequence[int]], *, known_load: bool = False
) -> list[int]:
    """Return the number of the table's choice at each shape."""
    number = {config: i for i, config in enumerate(of.configs)}
    every = (asked(of.kernel, shape, some, known_load=known_load) for shape, some in zip(shapes, routed, strict=True))
    return [number[tuple(table.select(**one)[name] for name in of.names)] for one in every]


def candidates(table: Any, of: Space, shape: Shape, routed: list[int]) -> tuple[int, ...]:
    """Return the numbers of default, choice, choice with the load known, and the table's next best of either kind."""
    chosen = [choices_of(table, of, [shape], [routed], known_load=known_load)[0] for known_load in (False, True)]
    ranked = []
    for known_load, most in ((False, NEXT), (True, NEXT_KNOWN)):
        us = table.table.fitted.with_margin_us(_columns(table, asked(of.kernel, shape, routed, known_load=known_load)))[
            0
        ]
        ranked += np.argsort(us, kind="stable")[:most].tolist()
    return (of.configs.index(of.default(shape)), *chosen, *ranked)


def _columns(table: Any, fields: dict[str, Any]) -> dict[str, Any]:
    routed = fields.pop("counts", None)
    columns = {name: np.array([[value]]) for name, value in fields.items()}
    return columns | (routed_rows(np.array([routed]), table.table.fitted.config["BLOCK_M"]) if routed else {})


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
    of: Space, shapes: Sequence[Shape], wanted: Candidates, launcher: Launcher, timer: Timer
) -> tuple[Rows, list[list[int]]]:
    """Time the candidates of each shape, taking turns in another order each round; returns the candidates as well."""
    rows, fields, pairs = Rows(), FIELDS[family(of.kernel)], []
    for number, shape in enumerate(shapes):
        launcher.prepare(shape)
        routed = counts(launcher, Job(shape, TEST, ()))
        pairs.append(list(wanted(shape, routed)))
        distinct = list(dict.fromkeys(pairs[-1]))
        launches = {index: launcher.calls(of.configs[index]) for index in distinct}
        draw = random.Random(number)
        order = [index for _ in range(ROUNDS) for index in draw.sample(distinct, len(distinct))]
        halves = [done % 2 for done in range(ROUNDS) for _ in distinct]
        at = rows.add_shape([shape[name] for name in fields], TEST, routed)
        rows.add(at, order, halves, timer([launches[index] for index in order]))
    return rows, pairs


def on_gpu(of: Space, shapes: Sequence[Shape], seed: int, table: Any, built: Mapping[Config, Any]) -> Recording:
    """Time one kernel on the current GPU."""
    from pipewave.tune import build
    from pipewave.tune.operands import Operands
    from pipewave.tune.timing import ColdTimer

    loaded = {key: build.compile_binary(of.kernel, key) for key in built}
    rows, pairs = record(of, shapes, lambda shape, routed: candidates(table, of, shape, routed),
                         Operands(of.kernel, of.names, loaded), ColdTimer())  # fmt: skip
    meta = {"schema": 1, "kernel": of.kernel, "names": of.names, "fields": FIELDS[family(of.kernel)], "seed": seed,
            "pairs": pairs, "method": "cuda events, cold L2", "order": "shuffled", "env": environment()}  # fmt: skip
    reports = [built[config[: of.compiled]] for config in of.configs]
    return rows.freeze(meta, list(of.configs), [(r.smem_bytes, r.registers, r.spill_bytes) for r in reports])


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point; a kernel whose file exists is skipped."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernel", default=",".join(kernels()))
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(argv)
    options.out.mkdir(parents=True, exist_ok=True)
    wanted = [kernel for kernel in options.kernel.split(",") if not (options.out / f"pairs_{kernel}.npz").exists()]
    from pipewave.tune import build

    # Choices with the load known are known only once it is drawn, so every binary is made.
    jobs = build.build_all(wanted, max(1, (os.cpu_count() or 2) - 1))
    for kernel in wanted:
        of = space(kernel)
        built = dict(zip(of.binaries(), [job.result() for job in jobs[kernel]], strict=True))
        recording = on_gpu(of, draw(kernel, options.seed, options.count), options.seed, load_table(kernel), built)
        recording.save(options.out / f"pairs_{kernel}.npz")
        say(f"{kernel}: {compare(recording)}")


if __name__ == "__main__":
    main()

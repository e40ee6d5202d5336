"""Time one kernel under all of its configurations on the current GPU, and what first use costs there."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import zip_longest
from typing import Any

import numpy as np

from bench.any_kernel.baselines import configs_of, keys_of
from bench.any_kernel.subjects import Call, Shape, Subject
from pipewave.tune import autotune
from pipewave.tune.own import measuring
from pipewave.tune.own.anchors import columns
from pipewave.tune.own.described import described
from pipewave.tune.own.device import Device, Launch
from pipewave.tune.own.spaces import Space
from pipewave.tune.own.works import Works
from pipewave.tune.reading.formula import inputs_of

ANCHORS, TESTS, FRESH = 110, 50, 24
ANCHOR_SEED, TEST_SEED, FRESH_SEED = 20_260_101, 91_000_013, 5_000_011
METHOD = "cuda events, cold L2, shuffled, few queued, odd and even places, operands placed alike"
STAGES = ((2, math.inf), (3, 2.0))  # (rounds, of those within this factor of the fastest)
CLOSE, SHORT_US = 1.15, 50.0  # within this factor more rounds decide: more where a launch is short
MORE = {True: 14, False: 6}  # rounds


def record(subject: Subject, device: Device, torch: Any, budget_s: float) -> Space:
    """A space, tests and anchors in turn, until the budget is spent."""
    tests = subject.shapes(TESTS, TEST_SEED)
    known = [tuple(shape.values()) for shape in tests]
    anchors = [shape for shape in subject.shapes(ANCHORS, ANCHOR_SEED) if tuple(shape.values()) not in known]
    of, end = described(subject.kernel(), subject.configs, subject.key, subject.trips), time.monotonic() + budget_s
    works, done = dict[Any, Works](), list[tuple[Shape, bool, Any, Any, Any]]()
    both = zip_longest(((shape, True) for shape in tests), ((shape, False) for shape in anchors))
    for shape, is_test in (one for pair in both for one in pair if one is not None):
        if time.monotonic() > end:
            break
        call = launch = named = None  # freed first: with operands in another place short launches took 7 % longer
        torch.cuda.empty_cache()
        call = subject.launch(torch, shape)
        named = {**dict(zip(of.arg_names, call[1], strict=False)), **call[2]}
        kind = works.setdefault(of.kind(named), Works(of))
        numbers = inputs_of(call[0], named, of.constants)
        kind.read(call[0], named, numbers)
        launch = Launch(of.fn, call[0], call[1], call[2], of.configs)
        reports = device.build(launch, range(len(of.configs)))
        runs = timed(device, launch, [i for i, one in reports.items() if not one.error])
        done.append((shape, is_test, kind.counts(numbers), runs, [reports[i] for i in range(len(of.configs))]))
    return _space(subject, device, done)


def timed(device: Device, launch: Launch, usable: Sequence[int]) -> dict[int, list[float]]:
    """µs of each round, configurations in another order each time; one round before does not count."""
    device.time(launch, usable)
    runs: dict[int, list[float]] = {}

    def rounded(order: Sequence[int]) -> list[float]:
        return [round(us, 3) for us in device.time(launch, order)]

    measuring.staged(rounded, usable, runs, STAGES)
    least = min((min(us) for us in runs.values()), default=math.inf)
    measuring.staged(rounded, usable, runs, ((MORE[least < SHORT_US], CLOSE),))
    return runs


def _space(subject: Subject, device: Device, done: Sequence[Any]) -> Space:
    config = columns(subject.configs)
    warps = config.get("num_warps", np.full(len(subject.configs), 4))
    runs = tuple(tuple(tuple(one.get(i, ())) for i in range(len(warps))) for *_, one, _ in done)
    meta = {"kernel": subject.name, "project": subject.project, "env": dict(device.env), "key": list(subject.key),
            "recorded": datetime.now(UTC).isoformat(timespec="seconds"), "method": METHOD}  # fmt: skip
    return Space(meta, tuple(shape for shape, *_ in done), subject.configs, runs,
                 np.stack([counts for _, _, counts, *_ in done]),
                 np.stack([measuring.resident(reports, warps, device.peaks) for *_, reports in done]),
                 np.array([subject.author(shape) for shape, *_ in done]),
                 tuple(test for _, test, *_ in done))  # fmt: skip


def first_use(subject: Subject, device: Device, torch: Any, space: Space, budget_s: float = 2.0) -> dict[str, Any]:
    """Use the decorator as a newcomer would: launch at the anchors, then at the tests, with a budget of its own.

    Decisions are timed at shapes of a third stream.

    Choices are scored by the recorded times: `measured` where the budget paid for a look, `unseen` where it did not.
    """
    kernel = autotune(configs_of(subject), keys_of(subject), budget_s=budget_s, trips=subject.trips, cache=False,
                      device=device)(subject.kernel())  # fmt: skip
    lost: dict[str, list[float]] = {"measured": [], "unseen": []}
    us = space.us()
    order = [*np.flatnonzero(~np.array(space.is_test)), *np.flatnonzero(space.is_test)]
    start = time.monotonic()
    for i in order:
        grid, args, kwargs = subject.launch(torch, dict(space.shapes[i]))
        before = kernel.provenance["measured"]
        chosen = kernel.choose(args, kwargs, grid)
        kind = "measured" if kernel.provenance["measured"] > before else "unseen"
        if chosen is not None and np.isfinite(us[i, chosen]):
            lost[kind].append(float(us[i, chosen] / np.nanmin(us[i]) - 1))
    found = {f"{kind}_regret": float(np.mean(values)) for kind, values in lost.items() if values}
    kernel.options = replace(kernel.options, budget_s=0.0)
    found |= decision_us(subject, torch, kernel, subject.shapes(FRESH, FRESH_SEED))
    return found | {"measured": len(lost["measured"]), "timing_s": kernel.spent_s,
                    "wall_s": time.monotonic() - start, "upstream": float(bool(kernel.reason))}  # fmt: skip


def decision_us(subject: Subject, torch: Any, kernel: Any, shapes: Sequence[Shape]) -> dict[str, float]:
    """Median µs of a decision for sizes not seen, and for sizes seen, with the kernel's model as it is."""
    calls: list[Call] = [subject.launch(torch, shape) for shape in shapes]
    unseen, repeated = [], []
    for grid, args, kwargs in calls:
        start = time.perf_counter_ns()
        kernel.choose(args, kwargs, grid)
        unseen.append(time.perf_counter_ns() - start)
        start = time.perf_counter_ns()
        for _ in range(100):
            kernel.choose(args, kwargs, grid)
        repeated.append((time.perf_counter_ns() - start) / 100)
    return {"unseen_us": float(np.median(unseen)) / 1e3, "repeated_us": float(np.median(repeated)) / 1e3}

"""Time one kernel under all of its configurations on the current GPU, and what first use costs there."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import zip_longest
from typing import Any

import numpy as np

from lab.any_kernel.spaces import Space
from lab.any_kernel.subjects import Call, Shape, Subject
from pipewave.tune import autotune
from pipewave.tune.law.anchors import columns
from pipewave.tune.source.formula import inputs_of, unwrapped
from pipewave.tune.user_kernels import measuring
from pipewave.tune.user_kernels.device import Device, Launch
from pipewave.tune.user_kernels.kernel import described
from pipewave.tune.user_kernels.launch_formulas import LaunchFormulas

ANCHORS, TESTS, FRESH = 110, 50, 24
ANCHOR_SEED, TEST_SEED, FRESH_SEED = 20_260_101, 91_000_013, 5_000_011
METHOD = "cuda events, cold L2, shuffled, few queued, odd and even places, operands placed alike"
STAGES = ((2, math.inf), (3, 2.0))  # (rounds, of those within this factor of the fastest)
CLOSE, SHORT_US = 1.15, 50.0  # within this factor more rounds decide: more where a launch is short
MORE = {True: 14, False: 6}  # rounds


OPTIONS = "num_warps", "num_stages"


def configs_of(subject: Subject) -> list[Any]:
    """The configurations as Triton has them."""
    import triton

    return [triton.Config({name: value for name, value in one.items() if name not in OPTIONS},
                          **{name: one[name] for name in OPTIONS if name in one})
            for one in subject.configs]  # fmt: skip


def keys_of(subject: Subject) -> list[str]:
    """The key that upstream would tune anew for, as far as it is arguments."""
    return [name for name in subject.key if name in unwrapped(subject.kernel())[0].arg_names]


def record(subject: Subject, device: Device, torch: Any, budget_s: float) -> Space:
    """A space, tests and anchors in turn, until the budget is spent."""
    tests = subject.shapes(TESTS, TEST_SEED)
    known = [tuple(shape.values()) for shape in tests]
    anchors = [shape for shape in subject.shapes(ANCHORS, ANCHOR_SEED) if tuple(shape.values()) not in known]
    of, end = described(subject.kernel(), subject.configs, subject.key, subject.trips), time.monotonic() + budget_s
    works, done = dict[Any, LaunchFormulas](), list[tuple[Shape, bool, Any, Any, Any]]()
    both = zip_longest(((shape, True) for shape in tests), ((shape, False) for shape in anchors))
    for shape, is_test in (one for pair in both for one in pair if one is not None):
        if time.monotonic() > end:
            break
        call = launch = named = None  # freed first: with operands in another place short launches took 7 % longer
        torch.cuda.empty_cache()
        call = subject.launch(torch, shape)
        named = {**dict(zip(of.arg_names, call[1], strict=False)), **call[2]}
        kind = works.setdefault(of.kind(named), LaunchFormulas(of))
        numbers = inputs_of(call[0], named, of.flags)
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
        if kind == "unseen":  # as it is once what is worked out aside is there
            kernel.settle()
            chosen = kernel.choose(args, kwargs, grid)
        if chosen is not None and np.isfinite(us[i, chosen]):
            lost[kind].append(float(us[i, chosen] / np.nanmin(us[i]) - 1))
    found = {f"{kind}_regret": float(np.mean(values)) for kind, values in lost.items() if values}
    kernel.options = replace(kernel.options, budget_s=0.0)
    found |= decision_us(subject, torch, kernel, subject.shapes(FRESH, FRESH_SEED))
    return found | {"measured": len(lost["measured"]), "timing_s": kernel.spent_s,
                    "wall_s": time.monotonic() - start, "upstream": float(bool(kernel.reason))}  # fmt: skip


def decision_us(subject: Subject, torch: Any, kernel: Any, shapes: Sequence[Shape]) -> dict[str, float]:
    """Median µs by the kernel's model as it is: of a decision from a launch's numbers, its sizes never asked for and
    asked for before; and of a whole call but for the launch itself, beside the same call of `triton.autotune`.
    """
    calls: list[Call] = [subject.launch(torch, shape) for shape in shapes]
    kernel.fn, kernel.upstream.fn = _NoLaunch(kernel.fn), _NoLaunch(kernel.upstream.fn)
    kernel.upstream.cache = _Known(kernel.upstream.configs[0])
    parts = [part for call in calls[::2] if (part := _decision(kernel, call)) is not None]
    wholes = [_whole(kernel, call) for call in calls[1::2]]
    taken = dict(zip(("decision", "repeated"), zip(*parts, strict=True), strict=False))
    taken |= dict(zip(("call", "repeated_call", "autotune_call"), zip(*wholes, strict=True), strict=False))
    return {f"{name}_us": float(np.median(ns)) / 1e3 for name, ns in taken.items()}


def _decision(kernel: Any, call: Call) -> tuple[float, float] | None:
    """ns from numbers to a configuration, the first time and again; None for a kind that was not fitted."""
    grid, args, kwargs = call
    named = {**dict(zip(kernel.of.arg_names, args, strict=False)), **kwargs}
    state = kernel.kinds.get(kernel.of.kind(named))
    if state is None or state.chooser is None:
        return None
    numbers = inputs_of(grid, named, kernel.of.flags)
    chooser, key = state.chooser, tuple(numbers[name] for name in state.chooser.inputs)
    return _ns(lambda: chooser.remember(key, chooser.decide(key)), 1), _ns(lambda: chooser.memo[key], 100)


def _whole(kernel: Any, call: Call) -> tuple[float, float, float]:
    """ns of a call without its launch, the first time and again, and of `triton.autotune` for a key that it knows."""
    grid, args, kwargs = call
    ours = lambda: kernel.run(*args, grid=grid, warmup=False, **kwargs)  # noqa: E731
    theirs = lambda: kernel.upstream.run(*args, grid=grid, warmup=False, **kwargs)  # noqa: E731
    return _ns(ours, 1), _ns(ours, 100), _ns(theirs, 100)


def _ns(call: Callable[[], Any], times: int) -> float:
    start = time.perf_counter_ns()
    for _ in range(times):
        call()
    return (time.perf_counter_ns() - start) / times


class _NoLaunch:
    """A kernel whose launches take no time."""

    def __init__(self, fn: Any) -> None:
        self.__dict__["_of"] = fn

    def run(self, *args: Any, **kwargs: Any) -> None:
        """Launch nothing."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_of"], name)


class _Known(dict[Any, Any]):
    """A cache of `triton.autotune` that knows every key."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self._config = config

    def __contains__(self, key: object) -> bool:
        return True

    def __missing__(self, key: object) -> Any:
        return self._config

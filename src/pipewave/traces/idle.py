"""When the GPU had nothing to run, and why, from when the kernel that ended each wait was launched.

A wait [a, b] ends with a kernel whose launch the host called at l:

    l ≤ a          device   it was queued: the time between kernels of a stream or a graph, or another stream's work
    else [l, b]    launch   the call itself and the way to the GPU
    else [a, l]    input    if the host waited for its data loader for most of it,
                   sync     if it had waited for the GPU and came back at r in that time (to r, where what follows
                            is longer than launching takes),
                   host     if it ran its own code for longer than launching takes (STALL_US),
                   cpu      if it launched as fast as it could, but too late

So the causes of a trace add up to its idle time. Without a record of the launch the cause is unknown.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from pipewave.files import packaged
from pipewave.gpus import GPU
from pipewave.physics.arith import SCALAR
from pipewave.physics.power import board_of, limited_us
from pipewave.prediction.answers import Prediction, Predictions
from pipewave.traces.group import Group, by_step
from pipewave.traces.kernel_names import short
from pipewave.traces.trace import Kernel, Trace

# Causes of waits, and what each says.
CAUSES: Mapping[str, str] = packaged.shared(Path(__file__).with_name("causes.json"))["waits"]
LONGEST = 20  # gaps that are listed
STALL_US = 500.0  # from one launch to the next: eager operators of engines, profiled, take up to so long


@dataclass(frozen=True, slots=True)
class Gap:
    """One wait: from the trace's first kernel, µs, its main cause, and the kernels around it."""

    start_us: float
    idle_us: float
    cause: str
    after: str
    before: str


@dataclass(frozen=True, slots=True)
class Idle:
    """span = busy + idle, µs, of all GPUs together; `causes` add up to `idle_us`."""

    span_us: float
    busy_us: float
    causes: dict[str, float]
    gaps: tuple[Gap, ...]

    @property
    def idle_us(self) -> float:
        """Time without work between the first kernel and the end of the last."""
        return sum(self.causes.values())

    @property
    def share(self) -> float:
        """Idle part of the span."""
        return self.idle_us / self.span_us if self.span_us else 0.0

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self) | {"idle_us": self.idle_us}


def idle(trace: Trace) -> Idle | None:
    """Waits of a trace by cause; None where its kernels have no clock."""
    if not trace.clocked or not trace.kernels:
        return None
    causes, gaps, span = dict.fromkeys(CAUSES, 0.0), list[Gap](), 0.0
    returns = sorted(end for _, end in trace.waits)
    for device in sorted({kernel.device for kernel in trace.kernels}):
        ordered = sorted((k for k in trace.kernels if k.device == device), key=lambda kernel: kernel.start_us)
        span += max(k.start_us + k.duration_us for k in ordered) - ordered[0].start_us
        for before, kernel, since in _waits(ordered):
            parts = _parts(since, kernel, returns, trace.inputs)
            for cause, part in parts.items():
                causes[cause] += part
            at, main = since - trace.kernels[0].start_us, max(parts, key=parts.__getitem__)
            gaps.append(Gap(at, sum(parts.values()), main, short(before), short(kernel.name)))
    gaps.sort(key=lambda gap: -gap.idle_us)
    return Idle(span, span - sum(causes.values()), causes, tuple(gaps[:LONGEST]))


def _waits(kernels: Sequence[Kernel]) -> Iterator[tuple[str, Kernel, float]]:
    """(name of what ran last, the kernel that ended the wait, when the wait began); streams overlap."""
    end, last = kernels[0].start_us, kernels[0].name
    for kernel in kernels:
        if kernel.start_us > end:
            yield last, kernel, end
        if kernel.start_us + kernel.duration_us >= end:
            end, last = kernel.start_us + kernel.duration_us, kernel.name


def _parts(
    since: float, kernel: Kernel, returns: Sequence[float], inputs: Sequence[tuple[float, float]]
) -> dict[str, float]:
    """The wait before a kernel by cause."""
    if kernel.launch is None:
        return {"unknown": kernel.start_us - since}
    called = min(kernel.launch[0], kernel.start_us)
    if called <= since:
        return {"device": kernel.start_us - since}
    parts = {"launch": kernel.start_us - called}
    loaded = sum(max(min(end, called) - max(start, since), 0.0) for start, end in inputs)
    if 2.0 * loaded > called - since:
        return parts | {"input": called - since}
    at = bisect_right(returns, called) - 1
    back = max(returns[at], since) if at >= 0 else since
    waited = at >= 0 and returns[at] >= since
    if called - back > STALL_US:
        return parts | {"host": called - back} | ({"sync": back - since} if waited else {})
    return parts | {"sync" if waited else "cpu": called - since}


# What waits change: a step that waits draws less, so its kernels meet the power limit later.


def paced(
    found: Predictions, members: Sequence[Sequence[Group]], everything: Sequence[Group], gpu: GPU
) -> list[Prediction]:
    """Predictions of calls at the clocks their steps allow. `members`: the groups of each call, of `everything`.

    A call that several steps run takes the mean of them.
    """
    at_limit_us = board_of(gpu).at_limit_us(found.above_idle_j)
    kernels, energy = dict[int, float](), dict[int, float]()
    for index, groups in enumerate(members):
        for one in groups:
            step = one.head.step
            kernels[step] = kernels.get(step, 0.0) + float(found.latency_us[index])
            energy[step] = energy.get(step, 0.0) + float(at_limit_us[index])
    waits = dict[int, float]()  # between a step's first and last kernel, if they ran one after another
    for step, groups in by_step(everything).items():
        ran = [(one.start_us, one.duration_us) for each in groups for one in each.kernels]
        span = max(start + took for start, took in ran) - min(start for start, _ in ran)
        waits[step] = max(span - sum(took for _, took in ran), 0.0)
    limited = {step: limited_us(us + waits[step], energy[step], SCALAR) - waits[step] for step, us in kernels.items()}
    slower = {step: us / kernels[step] for step, us in limited.items()}
    paced = []
    for asked, groups in zip(found, members, strict=True):
        factor = float(np.mean([slower[one.head.step] for one in groups]))
        times = {name: factor * getattr(asked, name) for name in ("latency_us", "low_us", "high_us", "ceiling_us")}
        paced.append(replace(asked, **times))
    return paced

"""Where the wall clock of a trace went beside useful work, largest loss first, and a remedy for each.

Idle time by cause is that of `idle`. Collectives and copies count where nothing else ran. Of kernels: padded tokens,
batches too small to use the weights that they read, kernels that are all slow alike (the clock), and the one call that
loses most against its ceiling.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipewave.calls.families import Collective, Gemm
from pipewave.files import packaged
from pipewave.gpus import GPU
from pipewave.kernels import family_of
from pipewave.kernels.profiler import Step
from pipewave.prediction.api import predict
from pipewave.traces.entry import Entry
from pipewave.traces.group import Group, Shapes
from pipewave.traces.idle import Idle
from pipewave.traces.kernel_names import kind_of
from pipewave.traces.trace import Kernel, Trace

# By cause: what the time went to, and what wins it back.
ACTIONS: Mapping[str, Mapping[str, str]] = packaged.shared(Path(__file__).with_name("causes.json"))["losses"]
MATTERS = 0.1  # of the wall clock: smaller losses are not told first
FEW_TOKENS, LARGER = 16, 4  # tokens of a product that waste a read of the weights; how much larger a batch is weighed
HOST_COPY = "host_copy"
OVERHEAD = ("launch", "link")  # pipes that no clock of the SMs or of the memory bounds
SEEN = 0.01  # of the time: calls that take less are not asked about the clock
ALIKE, SLOW, SPREAD = 1.12, 1.2, 1.6  # quartiles of their slowness: the first, the second; third over first at most
ATTENTION = re.compile(r"aten::_?scaled_dot_product(_efficient|_cudnn)?_attention")  # whose argument `MASK` is a mask
MASK = 3


@dataclass(frozen=True, slots=True)
class Loss:
    """Time that something other than useful work took, µs and as a share of the wall clock; 0 where it is unknown."""

    cause: str
    us: float
    share: float
    what: str
    action: str


def losses(
    trace: Trace, waits: Idle | None, entries: Sequence[Entry], groups: Sequence[Group], shapes: Shapes, gpu: GPU
) -> tuple[Loss, ...]:
    """Every loss of a trace with a clock, largest first; a loss of unknown size last."""
    if waits is None or not waits.span_us:
        return ()
    found = _idle(trace, waits) | _exposed(trace.kernels)
    special = {"padding": _padding(trace.steps, groups, shapes, gpu, trace.protocol), "batch": _small_batch(entries)}
    clock = _clock(entries, trace.gpu_us)
    said = {name: (us, ACTIONS[name]["what"]) for name, us in (found | special).items() if us}
    if clock:
        factor, us = clock
        said["clock"] = (us, f"kernels take {factor:.2f} times what they take at the usual clock, all alike")
    elif slow := [one for one in entries if one.counted and one.measured_us > one.high_us]:
        worst = max(slow, key=lambda one: one.total_recoverable_us)
        each = f"{worst.measured_us:,.4g} µs where {worst.ceiling_us:,.4g} are reached"
        said["kernel"] = (worst.total_recoverable_us, f"{worst.name} ×{worst.count} takes {each}")
    made = [Loss(name, us, us / waits.span_us, what, ACTIONS[name]["action"]) for name, (us, what) in said.items()]
    if "padding" not in said and (masked := _masked(groups)):
        what = f"attention runs under a mask over a batch of {masked}: it was padded"
        made.append(Loss("padding", 0.0, 0.0, what, ACTIONS["padding"]["action"]))
    return tuple(sorted(made, key=lambda one: -one.us))


def first(found: Sequence[Loss]) -> Loss | None:
    """The loss to look at first; None where none matters."""
    large = next((one for one in found if one.share >= MATTERS), None)
    return large or next((one for one in found if not one.us), None)


def _idle(trace: Trace, waits: Idle) -> dict[str, float]:
    """Idle time by what would end it: late launches and the way of a launch to the GPU are one."""
    shared: dict[Any, int] = defaultdict(int)
    for kernel in trace.kernels:
        shared[kernel.launch] += kernel.launch is not None
    graphs = max(shared.values(), default=0) > 8
    causes = dict(waits.causes)
    late = causes.pop("cpu") + causes.pop("launch")
    return {"replays" if graphs else "launches": late} | causes


def _exposed(kernels: Iterable[Kernel]) -> dict[str, float]:
    """µs in which collectives, and copies to or from the host, ran alone, of all GPUs."""
    found = dict.fromkeys(("communication", "copies"), 0.0)
    devices: dict[int, dict[str, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    for one in kernels:
        kind = kind_of(one.name)
        collective = kind.role == "collective" or (kind.family and issubclass(family_of(kind.family).call, Collective))
        sort = "copies" if kind.role == HOST_COPY else "communication" if collective else "work"
        devices[one.device][sort].append((one.start_us, one.start_us + one.duration_us))
    for ran in devices.values():
        work, copies = ran["work"], ran["copies"]
        busy, all_but_comm = _union([*work, *copies, *ran["communication"]]), _union([*work, *copies])
        found["communication"] += busy - all_but_comm
        found["copies"] += all_but_comm - _union(work)
    return found


def _union(spans: Iterable[tuple[float, float]]) -> float:
    """µs that at least one of the spans covers."""
    total, end = 0.0, float("-inf")
    for start, stop in sorted(spans):
        total += max(stop - max(start, end), 0.0)
        end = max(end, stop)
    return total


def _padding(steps: Sequence[Step], groups: Sequence[Group], shapes: Shapes, gpu: GPU, protocol: str) -> float:
    """µs of products over more rows than their step has tokens, by what the tokens alone would take."""
    padded = [
        (one.measured_us, shape.call, steps[one.head.step].tokens)
        for one, shape in zip(groups, shapes, strict=True)
        if shape is not None and isinstance(shape.call, Gemm) and one.head.step >= 0
        and 0 < steps[one.head.step].tokens < shape.call.m
    ]  # fmt: skip
    if not padded:
        return 0.0
    calls = list(dict.fromkeys((call, tokens) for _, call, tokens in padded))
    whole = predict([call for call, _ in calls], gpu, protocol=protocol).latency_us
    alone = predict([replace(call, m=tokens) for call, tokens in calls], gpu, protocol=protocol).latency_us
    spared = {key: max(1.0 - float(b / a), 0.0) for key, a, b in zip(calls, whole, alone, strict=True)}
    return sum(us * spared[call, tokens] for us, call, tokens in padded)


def _masked(groups: Sequence[Group]) -> str:
    """Sizes of a batch of several sequences whose attention was given a mask; empty without one."""
    for one in groups:
        for op in one.head.ops:
            query, mask = op.shape(0), op.shape(MASK)
            if mask and ATTENTION.fullmatch(op.name) and len(query) == 4 and query[0] > 1:
                return f"{query[0]} × {max(query[2], mask[-1])} tokens"
    return ""


def _small_batch(entries: Sequence[Entry]) -> float:
    """µs that a batch `LARGER` times as large would save for the same tokens, where reading weights bounds them."""
    read = 0.0
    for one in entries:
        product = "k" in one.call or "experts" in one.call
        tokens = int(one.call.get("m") or one.call.get("tokens") or 0) if product else 0
        if one.bound == "dram" and 0 < tokens <= FEW_TOKENS and one.measured_us <= 2.0 * one.latency_us:
            read += one.total_measured_us
    return (1.0 - 1.0 / LARGER) * read


def _clock(entries: Sequence[Entry], gpu_us: float) -> tuple[float, float] | None:
    """(how many times as long kernels take, µs lost) where calls of every kind are slow by about the same factor.

    Calls that DRAM bounds follow a clock of their own, so others decide where they take a third of the time.
    """
    large = (one for one in entries if one.counted and one.total_measured_us >= SEEN * gpu_us)
    seen = [one for one in large if one.bound not in OVERHEAD]
    own = [one for one in seen if one.bound != "dram"]
    if 3.0 * sum(one.total_measured_us for one in own) >= gpu_us and len(own) >= 3:
        seen = own
    ratios = sorted(one.measured_us / one.latency_us for one in seen)
    if len(ratios) < 3:
        return None
    low, half, high = (ratios[len(ratios) * part // 4] for part in (1, 2, 3))
    if low < ALIKE or half < SLOW or high > SPREAD * low:
        return None
    lost = sum(max(one.measured_us - one.latency_us, 0.0) * one.count for one in seen)
    return half, lost

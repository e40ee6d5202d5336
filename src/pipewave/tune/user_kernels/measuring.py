"""Time a launch under its configurations: those that could win, the close ones again and again.

What cannot win is not even compiled: no launch ends before its busiest SM has done its FLOPs at the GPU's peak, nor
before its bytes have come from memory. Once some configuration is faster than that bound of another, the other is out.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from pipewave.tune.law.anchors import Floats, Ints, Peaks
from pipewave.tune.user_kernels.device import Built, Device, Launch

HICCUP = 1.25  # a launch this much slower than the fastest of the same call was disturbed
BLOCK_BYTES = 1_024  # of shared memory that the driver takes of each block
FIRST = 8  # configurations compiled and timed before bounds leave any out
Stages = Sequence[tuple[int, float]]
STAGES: Stages = ((1, math.inf), (1, 2.0), (1, 1.3), (2, 1.08))  # (rounds, of those within this factor of the fastest)
SHARE = 0.05  # of a budget that timing one launch may take: few long launches say less than many do in part
FLUSH_US = 230.0  # of the L2, before each
LONG_US = 400.0  # launches from here on differ little from round to round: one more of the close ones will do
LONG_STAGES: Stages = ((1, 1.08),)
Timer = Callable[[Sequence[int]], list[float]]  # numbers of configurations, in this order → µs of each
JITTER_US = 2.0  # what a launch may take longer than its fastest round without having been disturbed: events and clocks
NARROW = 2.0  # times the FLOPs of bf16 that one-byte operands may reach


@dataclass(frozen=True, slots=True)
class Timed:
    """`us` [c] µs, NaN where not timed; `built` of each that was compiled; `seconds` of timing, without compilation."""

    us: Floats
    built: dict[int, Built]
    seconds: float


def bounds_us(counts: Floats, peaks: Peaks, *, narrow: bool) -> Floats:
    """µs [c] that no configuration can beat at a launch of these counts [c, 6]."""
    blocks, _, _, least_bytes, _, flops = counts.T
    blocks = np.maximum(blocks, 1.0)
    busiest = np.ceil(blocks / peaks.sms) * flops / blocks / (peaks.sm_flops_us * (NARROW if narrow else 1.0))
    # The caches may hold what an earlier launch left, so that bytes bound nothing below their size.
    return np.asarray(np.maximum(busiest, np.maximum(least_bytes - peaks.l2_bytes, 0.0) / peaks.bytes_us))


def measure(
    device: Device, launch: Launch, candidates: Sequence[int], counts: Floats, expected: Floats, narrow: bool,
    *, followed: bool = True, most_s: float = math.inf,
) -> Timed:  # fmt: skip
    """Time the candidates at one launch, the most promising first by `expected` µs [c]: the first few, then those whose
    rounds fit into `most_s`. No bound leaves any out where `counts` are not `followed` through all loops.
    """
    ordered = sorted(candidates, key=lambda index: float(expected[index]))
    bounds = bounds_us(counts, device.peaks, narrow=narrow) if followed else np.zeros(len(counts))
    taken: dict[int, list[float]] = {}
    built: dict[int, Built] = {}
    seconds, clock = 0.0, getattr(device, "clock", time.monotonic)  # a replay has a clock of its own
    for some in (ordered[:FIRST], ordered[FIRST:]):
        best = min((min(us) for us in taken.values()), default=math.inf)
        hopeful = [index for index in some if bounds[index] < best]
        if taken and most_s < math.inf:
            hopeful = _affordable(hopeful, expected, taken, most_s - seconds)
        built |= device.build(launch, hopeful)
        start = clock()
        usable = [index for index in hopeful if not built[index].error]
        if usable:  # a first round, which loads binaries, counts where launches are long
            first, stages = device.time(launch, usable), STAGES
            if min(first) >= LONG_US:
                taken |= {index: [us] for index, us in zip(usable, first, strict=True)}
                stages = LONG_STAGES
            staged(lambda order: device.time(launch, order), usable, taken, stages)
        seconds += clock() - start
    found = np.array([np.mean(undisturbed(taken[i])) if i in taken else np.nan for i in range(len(counts))])
    return Timed(found, built, seconds)


def _affordable(hopeful: Sequence[int], expected: Floats, taken: dict[int, list[float]], left_s: float) -> list[int]:
    """The first of configurations whose rounds fit into the time left, each as much slower than the fastest of those
    timed as is expected.
    """
    fastest = min(taken, key=lambda index: min(taken[index]))
    best = min(taken[fastest])
    each_us = (1 if best >= LONG_US else 2) * (best * expected[list(hopeful)] / expected[fastest] + FLUSH_US)
    return list(hopeful[: int(np.searchsorted(np.cumsum(each_us), left_s * 1e6))])


def staged(timed: Timer, usable: Sequence[int], taken: dict[int, list[float]], stages: Stages = STAGES,
           always: Sequence[int] = ()) -> None:  # fmt: skip
    """Time configurations in rounds, each in another order: all of them, then the close ones again and again. `always`:
    configurations that count as close, such as the default that others are compared with.
    """
    shuffle = random.Random(len(usable)).sample
    near = [index for index in usable if index not in taken]
    for rounds, within in stages:
        if taken and within < math.inf:
            limit = within * min(min(values) for values in taken.values())
            near = [index for index, values in taken.items() if min(values) <= limit or index in always]
        for _ in range(rounds):
            order = shuffle(near, len(near))
            us = timed(order) if within == math.inf else _twice(timed, order)
            for index, value in zip(order, us, strict=True):
                taken.setdefault(index, []).append(value)


def _twice(timed: Timer, order: Sequence[int]) -> list[float]:
    """Mean µs of two launches each, at an even and an odd place of a queue: short ones differ there by 0.5 µs."""
    between = order[: 1 - len(order) % 2]
    us = timed([*order, *between, *order])
    return [0.5 * (one + other) for one, other in zip(us, us[len(order) + len(between) :], strict=False)]


def undisturbed(us: Sequence[float]) -> list[float]:
    """Rounds of a launch that no busy host or other process stretched. What is left is averaged: short launches take
    one of two or three times, so that a median of few rounds falls on any of them.
    """
    least = min(us, default=math.inf)
    most = max(HICCUP * least, least + JITTER_US)
    return [one for one in us if one <= most]


def resident(built: Sequence[Built], warps: Ints, peaks: Peaks) -> Ints:
    """Blocks [c] that an SM holds at once, by shared memory, registers and threads."""
    smem = np.array([one.smem_bytes + BLOCK_BYTES for one in built])
    registers = -(-np.maximum([max(one.registers, 16) for one in built], 16) // 8) * 8
    limits = peaks.smem_bytes // smem, peaks.registers // (registers * 32 * warps), peaks.threads // (32 * warps)
    return np.asarray(np.clip(np.minimum.reduce(limits), 1, 32), np.int64)

"""One law a configuration, affine in the number of waves, over terms that the hardware is made of.

T(µs) = Σ θ_i · term_i with θ ≥ 0, fitted to relative error. Beyond the bilinear law of WaveTune (arXiv 2604.10187):

* a wave is SMs × resident blocks wide, not SMs wide;
* one law spans all waves, so that no bucket is extrapolated by its own slope;
* in the first wave a block alone on its SM runs faster than one that shares it; every further wave costs a full one;
* terms of bytes (memory, L2) bound the time from below, whatever the grid;
* unequal blocks (causal attention, routed experts, ragged caches) enter by their mean and their longest.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import mul
from typing import Any, NamedTuple

import numpy as np

from pipewave.physics.arith import ARRAY, SCALAR, Arith
from pipewave.tune.law.anchors import Floats, Ints

TERMS = (
    "launch", "longest", "waves", "wave_trips", "filled", "busiest", "busiest_trips", "tail", "blocks", "block_trips",
    "memory", "l2", "idle", "uneven", "crowded", "late",
)  # fmt: skip
PARTS = {  # of a time, by what its terms stand for
    "launch": (0,), "waves": (1, 2, 3, 4, 5, 6, 7, 13, 14, 15), "work": (8, 9), "bytes": (10, 11, 12),
}  # fmt: skip
COUNTS = 6  # of a launch, idle blocks apart, as `source.formula.OUTPUTS` names them
SWEEPS = 150  # of the coordinate descent
MEMORY_US, L2_US = 2.5e-7, 1e-7  # µs that a unit of the terms of bytes stands for, a byte


class LaunchCounts(NamedTuple):
    """One launch; each field is a number or an array."""

    blocks: Any  # thread blocks that do work
    trips: Any  # main-loop trips of a block, mean
    longest: Any  # of the longest block
    dram: Any  # bytes that come from or go to memory once
    l2: Any  # bytes that the blocks ask of the L2
    idle: Any = 0.0  # blocks that start and leave at once, or rows of a second pass


def terms(work: LaunchCounts, sms: int, resident: Any) -> tuple[Any, ...]:
    """Return the terms of `TERMS`; numbers in, numbers out, arrays in, arrays out.

    `waves` counts those after the first; `filled`: trips times how full an SM gets in the first wave; `busiest`: blocks
    of the SM that has most; `tail`: the idle share of the last wave, in trips; `uneven`: trips that the SM with the
    longest blocks has beyond the mean, where one wave holds all: it is dealt every `sms`-th block of a falling line;
    `crowded`: trips of the longest block beyond the mean, times how full the first wave gets, where it is the only one;
    `late`: trips of the longest where there are more, for it may start in any. Bytes: in units of about a microsecond.
    """
    blocks, trips, longest, dram, l2, idle = work
    busiest = -(-blocks // sms)
    more = -(-busiest // resident) - 1  # the same as ⌈blocks / (SMs · resident)⌉ − 1
    share = 0.5 * (busiest + resident - abs(busiest - resident))  # min(busiest, resident)
    slots = sms * resident * (more + 1)
    uneven = (busiest <= resident) * (longest - trips) * busiest * (1.0 - sms * (busiest - 1) / blocks)
    crowded = (busiest <= resident) * (longest - trips) * busiest / resident
    return (1.0, longest, more, more * trips, share / resident * trips, busiest, busiest * trips,
            (1.0 - blocks / slots) * trips, blocks / sms, blocks * trips / sms, dram * MEMORY_US, l2 * L2_US,
            idle / sms, uneven, crowded, (busiest > resident) * longest)  # fmt: skip


def work(counts: Any, xp: Arith = ARRAY) -> LaunchCounts:
    """Counts [..., 6] as the launches that laws are made of; with `SCALAR`, those of one launch as numbers."""
    columns = counts if xp is SCALAR else np.moveaxis(counts, -1, 0)
    blocks, trips, longest, least_bytes, moved_bytes = columns[:5]
    idle = columns[COUNTS] if len(columns) > COUNTS else 0.0
    return LaunchCounts(xp.maximum(blocks, 1.0), trips, xp.maximum(longest, trips), least_bytes, moved_bytes, idle)


def law_us(counts: Sequence[float], sms: int, resident: int, law: Sequence[float]) -> float:
    """The law of one launch under one configuration, in plain numbers: arrays of a few take longer."""
    return float(sum(map(mul, terms(work(counts, SCALAR), sms, resident), law)))


def design(counts: Floats, sms: int, resident: Ints) -> Floats:
    """Stack the terms of shapes × configurations [s, c, 6], `resident` [c] or [s, c]: [s, c, terms]."""
    columns = terms(work(counts), sms, resident)
    size = np.broadcast_shapes(*(np.shape(column) for column in columns), (1, 1), np.shape(resident))
    return np.stack([np.broadcast_to(np.asarray(column, float), size) for column in columns], axis=-1)


def nonnegative(gram: Floats, right: Floats) -> Floats:
    """Solve min θᵀGθ − 2bᵀθ, θ ≥ 0, for many configurations at once, by coordinate descent: [c, p]."""
    scale = np.sqrt(np.einsum("cpp->cp", gram)) + 1e-30
    g, b = gram / scale[:, :, None] / scale[:, None], right / scale
    theta = np.zeros_like(b)
    for _ in range(SWEEPS):
        for j in range(b.shape[1]):
            theta[:, j] = np.maximum(0.0, theta[:, j] + b[:, j] - np.einsum("cp,cp->c", g[:, j], theta))
    return np.asarray(theta / scale)


def fit(parts: Sequence[tuple[Floats, Floats, Floats | float]]) -> Floats:
    """Fit θ [c, terms] to several (design [s, c, terms], µs [s, c], weight) parts: the least relative error
    Σ (weight · (law/us − 1))², without times that are NaN.
    """
    gram, right = [], []
    for x, us, weight in parts:
        timed = np.where(np.isfinite(us), weight, 0.0)
        scaled = x * (timed / np.where(np.isfinite(us), us, 1.0))[..., None]
        gram.append(np.einsum("scp,scq->cpq", scaled, scaled))
        right.append(np.einsum("scp,sc->cp", scaled, timed))
    return nonnegative(np.sum(gram, axis=0), np.sum(right, axis=0))

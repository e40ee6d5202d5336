"""Ours: one law a configuration, affine in the number of waves, over terms that the hardware is made of.

T(µs) = Σ θ_i · term_i with θ ≥ 0, fitted to relative error. Beyond the published bilinear law:

* a wave is SMs × resident blocks wide, not SMs wide;
* one law spans all waves, affine in them, so that no bucket is extrapolated by its own slope;
* the first wave has its own shape: a block alone on its SM runs faster than one that shares it, while every further
  wave costs a full one, however few blocks it holds;
* terms of bytes (memory, L2) bound the time from below, whatever the grid;
* θ ≥ 0 over terms that grow with the work keeps every prediction positive;
* unequal blocks (causal attention, routed experts, ragged caches) enter by their mean and their longest; where they
  come longest first and all at once, also by how much more than its share the first SM gets; where they come in any
  order, by how full the SMs are that the longest runs on, and by its late start where there is more than one wave.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipewave.tune.mapping import Work
from pipewave.tune.shapes import family

Floats = NDArray[np.float64]
TERMS = (
    "launch", "longest", "waves", "wave_trips", "two", "three", "five", "filled", "busiest", "busiest_trips", "tail",
    "blocks", "block_trips", "memory", "l2", "idle", "uneven", "crowded", "late",
)  # fmt: skip
GROUPS = {  # by what they stand for: to leave out in an ablation, to sum up in an explanation
    "launch": (0,), "wave": (1, 2, 3), "first": (4, 5, 6, 7), "busiest": (8, 9, 10, 16), "ragged": (17, 18),
    "work": (11, 12), "bytes": (13, 14, 15),
}  # fmt: skip
ORDERED, UNORDERED = (16,), GROUPS["ragged"]  # where unequal blocks come longest first; where they come in any order
STEPS, LINE = (4, 5, 6), (7,)  # two ways to describe how full SMs get in the first wave


def terms_of(kernel: str) -> tuple[int, ...]:
    """Return the terms of a kernel's law: decode holds up to 16 blocks an SM, where a line does better than steps."""
    out: tuple[int, ...] = STEPS if family(kernel) == "decode" else LINE + UNORDERED
    if "causal" not in kernel:
        out += ORDERED
    return tuple(index for index in range(len(TERMS)) if index not in out)


def terms(work: Work, sms: int, resident: Any) -> tuple[Any, ...]:
    """Return the terms of `TERMS`; numbers in, numbers out, arrays in, arrays out.

    `waves` counts those after the first; `two`, `three`, `five`: trips where so many blocks at least share an SM in the
    first wave, `filled`: trips times how full it gets; `busiest`: blocks of the SM that has most; `tail`: the idle
    share of the last wave, in trips; `uneven`: trips that the SM with the longest blocks has beyond the mean, where one
    wave holds all: it is dealt every `sms`-th block of a falling line; `crowded`: trips of the longest block beyond the
    mean, times how full the first wave gets, where it is the only one; `late`: trips of the longest where there are
    more, for it may start in any. Bytes are in units of about a microsecond.
    """
    blocks, trips, longest, dram, l2, idle = work
    busiest = -(-blocks // sms)
    more = -(-busiest // resident) - 1  # the same as ⌈blocks / (SMs · resident)⌉ − 1
    share = 0.5 * (busiest + resident - abs(busiest - resident))  # min(busiest, resident)
    slots = sms * resident * (more + 1)
    uneven = (busiest <= resident) * (longest - trips) * busiest * (1.0 - sms * (busiest - 1) / blocks)
    crowded = (busiest <= resident) * (longest - trips) * busiest / resident
    return (1.0, longest, more, more * trips, (share >= 2) * trips, (share >= 3) * trips, (share >= 5) * trips,
            share / resident * trips, busiest, busiest * trips, (1.0 - blocks / slots) * trips,
            blocks / sms, blocks * trips / sms, dram * 2.5e-7, l2 * 1e-7, idle / sms, uneven,
            crowded, (busiest > resident) * longest)  # fmt: skip


TINY = 1e-9  # of a wave: a full one stays one, however its blocks were rounded
MOST = 128  # blocks of the busiest SM up to which a law's steps are tabulated
# Per number of blocks on the busiest SM: µs, µs a trip, µs a trip and block, µs a longest trip; then µs a block, byte
# of memory, byte of the L2, idle block and uneven trip; then the law itself, for more blocks than tabulated, and
# resident blocks.
Tabulated = tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...], tuple[float, ...], float, float, float,
                  float, float, tuple[float, ...], int]  # fmt: skip


def tabulate(law: Floats, sms: int, resident: int) -> Tabulated:
    """Turn one law into what `predict_us` reads: everything that depends on the busiest SM only, worked out."""
    columns = steps(np.arange(MOST + 1), law, sms, resident)
    at, trip, each, chain = (tuple(np.broadcast_to(column, MOST + 1).tolist()) for column in columns)
    bytes_and_idle = float(law[13] * 2.5e-7), float(law[14] * 1e-7), float(law[15] / sms)
    return (at, trip, each, chain, float(law[11] / sms), *bytes_and_idle, float(law[16]), tuple(law.tolist()), resident)


def steps(busiest: Any, law: Any, sms: int, resident: int) -> tuple[Any, Any, Any, Any]:
    """What a law makes of the blocks of the busiest SM: µs, µs a trip, µs a trip and block, µs a longest trip; numbers
    in, numbers out, arrays in, arrays out.
    """
    more = -(-busiest // resident) - 1
    more = more * (more > 0)
    share = 0.5 * (busiest + resident - abs(busiest - resident))  # min(busiest, resident)
    at = law[0] + more * law[2] + busiest * law[8]
    trip = more * law[3] + (share >= 2) * law[4] + (share >= 3) * law[5] + (share >= 5) * law[6]
    crowded = (busiest <= resident) * busiest / resident * law[17]
    trip = trip + share / resident * law[7] + busiest * law[9] + law[10] - crowded
    chain = law[1] + crowded + (busiest > resident) * law[18]
    each = law[12] / sms - law[10] / (sms * resident * (more + 1))
    return at, trip, each, chain


def predict_us(work: tuple[Any, ...], sms: int, law: Tabulated) -> Any:
    """Evaluate a law at one launch: the same sum as `terms` · law, by look-up for speed."""
    blocks, trips, longest, dram, l2, idle = work
    busiest = int(-(-blocks // sms))
    at, trip, each, chain, block, memory, cache, rest, uneven, whole, resident = law
    if busiest > MOST:
        return sum(a * b for a, b in zip(terms(Work(*work), sms, resident), whole, strict=True))
    us = (at[busiest] + trips * (trip[busiest] + blocks * each[busiest]) + longest * chain[busiest] + blocks * block
          + dram * memory + l2 * cache + idle * rest)  # fmt: skip
    if uneven and busiest <= resident:
        us += uneven * (longest - trips) * busiest * (1.0 - sms * (busiest - 1) / blocks)
    return us


def predict_mean_us(
    low: float, high: float, trips: Any, dram: Any, idle: Any, l2: tuple[Any, ...], sms: int, law: Tabulated
) -> Any:
    """Mean of a law at two numbers of blocks, all with the same trips.

    `idle`: blocks of the grid, with those that work; `l2`: what its bytes are made of, (n, k, more, width) for
    2 · (blocks / width · n + more) · k, worked out where a law asks for them.
    """
    at, trip, each, chain, block, memory, cache, alone, _, whole, resident = law
    fewer, more = int(low / sms - TINY) + 1, int(high / sms - TINY) + 1
    both = low + high
    if more > MOST:
        works = (Work(blocks, trips, trips, dram, _asked(l2, blocks), idle - blocks) for blocks in (low, high))
        return 0.5 * sum(a * b for work in works for a, b in zip(terms(work, sms, resident), whole, strict=True))
    us = (0.5 * (at[fewer] + at[more] + both * (block - alone)
                 + trips * (trip[fewer] + trip[more] + low * each[fewer] + high * each[more]
                            + chain[fewer] + chain[more]))
          + dram * memory + idle * alone)  # fmt: skip
    return us + _asked(l2, 0.5 * both) * cache if cache else us


def predict_both_us(
    one: tuple[Any, Any, Any], other: tuple[Any, Any, Any], shared: tuple[Any, Any, Any], sms: int, law: Tabulated
) -> Any:
    """Mean of a law at two launches (blocks, trips, longest) that share (dram, l2, idle), blocks in any order."""
    (blocks, trips, longest), (blocks2, trips2, longest2) = one, other
    at, trip, each, chain, block, memory, cache, rest, _, whole, resident = law
    first, second = int(-(-blocks // sms)), int(-(-blocks2 // sms))
    if first > MOST or second > MOST:
        works = (Work(*launch, *shared) for launch in (one, other))
        return 0.5 * sum(a * b for work in works for a, b in zip(terms(work, sms, resident), whole, strict=True))
    dram, l2, idle = shared
    us = (at[first] + trips * (trip[first] + blocks * each[first]) + longest * chain[first]
          + at[second] + trips2 * (trip[second] + blocks2 * each[second]) + longest2 * chain[second])  # fmt: skip
    return 0.5 * (us + (blocks + blocks2) * block) + dram * memory + l2 * cache + idle * rest


def _asked(l2: tuple[Any, ...], blocks: float) -> Any:
    n, k, more, width = l2
    return 2 * (blocks / width * n + more) * k


def design(work: Work, sms: int, resident: NDArray[np.int64]) -> Floats:
    """Stack the terms of shapes × configurations, `resident` [c] or [s, c]: [s, c, terms]."""
    columns = terms(work, sms, resident)
    size = np.broadcast_shapes(*(np.shape(column) for column in columns), (1, 1), np.shape(resident))
    return np.stack([np.broadcast_to(np.asarray(column, float), size) for column in columns], axis=-1)


def moments(x: Floats, us: Floats, weight: Floats | float = 1.0) -> tuple[Floats, Floats]:
    """Normal equations [c, p, p], [c, p] of the relative error Σ (weight · (law/us − 1))²; NaN times are skipped."""
    weight = np.where(np.isfinite(us), weight, 0.0)
    scaled = x * (weight / np.where(np.isfinite(us), us, 1.0))[..., None]
    return np.einsum("scp,scq->cpq", scaled, scaled), np.einsum("scp,sc->cp", scaled, weight)


def nonnegative(gram: Floats, right: Floats, sweeps: int = 150) -> Floats:
    """Solve min θᵀGθ − 2bᵀθ, θ ≥ 0, for many configurations at once, by coordinate descent: [c, p]."""
    scale = np.sqrt(np.einsum("cpp->cp", gram)) + 1e-30
    g, b = gram / scale[:, :, None] / scale[:, None], right / scale
    theta = np.zeros_like(b)
    for _ in range(sweeps):
        for j in range(b.shape[1]):
            theta[:, j] = np.maximum(0.0, theta[:, j] + b[:, j] - np.einsum("cp,cp->c", g[:, j], theta))
    return np.asarray(theta / scale)


def fit(
    parts: Sequence[tuple[Floats, Floats, Floats | float]], keep: tuple[int, ...] = tuple(range(len(TERMS)))
) -> Floats:
    """Fit θ [c, terms] to several (design, µs, weight) parts; terms outside `keep` stay zero."""
    sums = [moments(x[..., list(keep)], us, weight) for x, us, weight in parts]
    gram, right = (np.sum([pair[i] for pair in sums], axis=0) for i in (0, 1))
    law = np.zeros((len(right), len(TERMS)))
    law[:, list(keep)] = nonnegative(gram, right)
    return law

"""How tasks fall onto SMs: waves, and the load of the busiest SM. Knows counts and costs, nothing of bytes or FLOPs.

Closed forms for batches of calls (arrays), and exact simulations for one call that they are tested against.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]


def waves(tasks: ArrayLike, slots: ArrayLike) -> Array:
    """Rounds needed to run `tasks` equal tasks on `slots` places; broadcasts, at least one."""
    return np.asarray(np.maximum(np.ceil(np.asarray(tasks, float) / slots), 1.0))


def wave_efficiency(tasks: ArrayLike, slots: ArrayLike) -> Array:
    """Share of places in use over all waves, in (0, 1]."""
    places: Array = np.asarray(slots, float)
    return np.asarray(np.asarray(tasks, float) / (waves(tasks, places) * places))


def makespan_bound(total: ArrayLike, longest: ArrayLike, slots: ArrayLike) -> Array:
    """Graham's upper bound of any work-conserving schedule: total/slots + (1 - 1/slots)·longest."""
    share: Array = 1.0 / np.asarray(slots, float)
    work, tail = np.asarray(total, float), np.asarray(longest, float)
    return np.asarray(work * share + (1.0 - share) * tail)


def makespan_floor(total: ArrayLike, longest: ArrayLike, slots: ArrayLike) -> Array:
    """Lower bound of every schedule: no SM idles, and the longest task must run somewhere."""
    return np.asarray(np.maximum(np.asarray(total, float) / slots, longest))


def round_robin(costs: Sequence[float], slots: int) -> float:
    """Makespan when blocks are dealt in order to the slot that frees first, as the hardware scheduler does."""
    free = [0.0] * slots
    for cost in costs:
        heapq.heapreplace(free, free[0] + cost)
    return max(free)


def longest_first(costs: Sequence[float], slots: int) -> float:
    """Makespan of longest-processing-time-first, the order a sorting software scheduler aims at."""
    return round_robin(sorted(costs, reverse=True), slots)


def persistent(costs: Sequence[float], slots: int) -> float:
    """Makespan when task i belongs to slot i modulo `slots`, as static persistent kernels stride."""
    return max(sum(costs[start::slots]) for start in range(min(slots, len(costs))))

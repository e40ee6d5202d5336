"""Points at which a quantity is worked out, and how it is read between them.

One rule for all: level before the first point, linear between two, and beyond the last along the last segment.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence

import numpy as np

from pipewave.physics.demand import Array

Points = Sequence[float]
ROW_SPANS = ((1, 8, 1), (8, 256, 8), (256, 512, 16), (512, 2048, 64), (2048, 8192, 256), (8192, 1 << 22, 2048))


def row_grid(most: int) -> list[int]:
    """Numbers of rows: fine where engines pad to graphs and tiles step, coarser beyond (first, end, step)."""
    grid = [n for low, high, step in ROW_SPANS for n in range(low, min(high, most), step)]
    return [*grid, most]


def at_every_number(grid: Sequence[int], values: Array) -> list[float]:
    """Values at every whole number up to the last point."""
    return [float(v) for v in np.interp(np.arange(grid[-1] + 1), grid, values)]


def at_every_count(counts: Sequence[int], lengths: Points, values: Array) -> list[list[float]]:
    """Values [count · length] at every whole number of requests up to the last count, for each length."""
    every = np.arange(counts[-1] + 1)
    columns = values.reshape(len(counts), len(lengths)).T
    found: list[list[float]] = np.stack([np.interp(every, counts, column) for column in columns], axis=1).tolist()
    return found


def neighbours(grid: Sequence[int], at: float) -> list[int]:
    """The points between which a value is read."""
    high = min(max(bisect_right(grid, at), 1), len(grid) - 1)
    return [grid[high - 1], grid[high]] if len(grid) > 1 else [grid[0]]


def between(grid: Points, values: Points, at: float) -> float:
    """The value read once."""
    if at <= grid[0] or len(grid) == 1:
        return values[0]
    high = min(bisect_right(grid, at), len(grid) - 1)
    low = high - 1
    part = (at - grid[low]) / (grid[high] - grid[low])
    return values[low] + part * (values[high] - values[low])


def reader(grid: Points, values: Points) -> Callable[[float], float]:
    """The same to be read often: the inner loop of a simulation calls little else."""
    slopes = _slopes(grid, values)
    first, last = grid[0], len(slopes) - 1

    def read(at: float) -> float:
        if at <= first or last < 0:
            return values[0]
        low = min(bisect_right(grid, at) - 1, last)
        return values[low] + slopes[low] * (at - grid[low])

    return read


def reader_of_two(grid: Points, values: Points, others: Points) -> Callable[[float], tuple[float, float]]:
    """Two quantities on one grid, to be read often and together."""
    slopes = list(zip(_slopes(grid, values), _slopes(grid, others), strict=True))
    first, last = grid[0], len(slopes) - 1

    def read(at: float) -> tuple[float, float]:
        if at <= first or last < 0:
            return values[0], others[0]
        low = min(bisect_right(grid, at) - 1, last)
        beyond, (rise, other_rise) = at - grid[low], slopes[low]
        return values[low] + rise * beyond, others[low] + other_rise * beyond

    return read


def _slopes(grid: Points, values: Points) -> list[float]:
    return [(high - low) / (b - a) for a, b, low, high in zip(grid, grid[1:], values, values[1:], strict=False)]

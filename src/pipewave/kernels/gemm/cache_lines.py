"""What it costs that rows of the operands start inside a cache line: k elements that are no whole lines of 128 bytes.

A tile then fetches parts of lines on both edges of every row, at 16 bytes even parts of sectors. Our cold rows with
random k take 2 to 3 % longer where rows start at multiples of 64 or 32 bytes, and 5 to 16 % at odd multiples of 16,
the more the more rows of x there are (`python -m bench.gemm_lines`). Rows of the graph protocol have few such k, each
many times: their nets know them. The factor is part of the base estimate that nets are trained over.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipewave.kernels.base import Context
from pipewave.physics.arith import ARRAY, Arith
from pipewave.software.stack_rules import constant

LINE = 128
UNITS = (64, 32, 16)  # bytes that a row's start may be a multiple of, short of a line
FEWEST, MOST = 8.0, 8192.0


def unaligned(m: Any, k: Any, element_bytes: float, ctx: Context, xp: Arith) -> Any:
    """Factor on the time of one call (floats) or of many (arrays); `element_bytes` of an operand."""
    lost = losses(ctx.protocol, ctx.dtype)
    if not lost:
        return 1.0
    if xp is ARRAY:
        return _of_many(m, (k * element_bytes).astype(np.int64) % LINE, lost, xp)
    least, more, row = 0.0, 0.0, xp.floor(k * element_bytes)
    for unit, cost in lost.items():
        start = row % (2.0 * unit) == unit  # the largest power of two that divides the row
        least, more = xp.where(start, cost[0], least), xp.where(start, cost[1], more)
    return _factor(m, (least, more), xp)


@cache
def losses(protocol: str, dtype: str) -> Mapping[int, tuple[float, float]]:
    """Log of the time lost at m = 8, and more a doubling, by the unit that rows start at; empty where none is known."""
    found = {unit: constant("gemm_row_start", unit=unit, protocol=protocol, dtype=dtype) for unit in UNITS}
    return {unit: lost for unit, lost in found.items() if lost}


def _of_many(m: Any, rest: NDArray[np.int64], lost: Mapping[int, tuple[float, float]], xp: Arith) -> Any:
    """Worked out for the calls alone that it concerns: most have whole lines."""
    found, shared = np.ones(len(rest)), rest & -rest
    for unit, cost in lost.items():
        at = np.flatnonzero(shared == unit)
        found[at] = _factor(m[at], cost, xp)
    return found


def _factor(m: Any, lost: tuple[Any, Any], xp: Arith) -> Any:
    least, more = lost
    return xp.exp(least + more * xp.log2(xp.minimum(xp.maximum(m, FEWEST), MOST) / FEWEST))

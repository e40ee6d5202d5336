"""What it costs that rows of the operands start inside a cache line: k elements that are no whole lines of 128 bytes.

A tile then fetches parts of lines on both edges of every row, at 16 bytes even parts of sectors. Our cold rows with
random k take 2 % longer where rows start at multiples of 64 or 32 bytes, and 5 to 15 % at odd multiples of 16, the
more the more rows of x there are. Rows of the graph protocol have few such k, each many times: their nets know them.
The weights that ship were trained before this factor was found and are multiplied by it.
"""

from __future__ import annotations

from math import exp, log2
from typing import Any

import numpy as np

from pipewave.demand import Array
from pipewave.kernels.base import Context
from pipewave.kernels.residency import COLD, SERVING

LINE = 128
# Log of the time lost, and more for each doubling of m from 8 to 8192, by the largest power of two that divides a row's
# bytes. Least absolute errors of our rows outside the fold that shipped weights are scored on.
LOST = {64: (0.017, 0.0), 32: (0.022, 0.001), 16: (0.052, 0.010)}
FEWEST, MOST = 8.0, 8192.0
TYPES = ("bf16", "fp16", "fp8", "int8")  # of which rows have such k


def unaligned(m: Any, k: Any, element_bytes: float, ctx: Context) -> Any:
    """Factor on the time of one call (floats) or of many (arrays); `element_bytes` of an operand."""
    if ctx.protocol not in (COLD, SERVING) or ctx.dtype not in TYPES:
        return 1.0
    return _of_many(m, k, element_bytes) if isinstance(k, np.ndarray) else _of_one(m, k, element_bytes)


def _of_one(m: float, k: float, element_bytes: float) -> float:
    rest = int(k * element_bytes) % LINE
    if rest & -rest not in LOST:
        return 1.0
    least, more = LOST[rest & -rest]
    return exp(least + more * log2(min(max(m, FEWEST), MOST) / FEWEST))


def _of_many(m: Array, k: Array, element_bytes: float) -> Array:
    """The same, worked out for the calls alone that it concerns."""
    rest = (k * element_bytes).astype(np.int64) & (LINE - 1)
    found = np.ones(len(k))
    for unit, (least, more) in LOST.items():
        at = np.flatnonzero((rest & -rest) == unit)
        if len(at):
            found[at] = np.exp(least + more * np.log2(np.clip(m[at], FEWEST, MOST) / FEWEST))
    return found

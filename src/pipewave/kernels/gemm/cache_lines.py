"""What it costs that rows of the operands start inside a cache line: k elements that are no whole lines of 128 bytes.

A tile then fetches parts of lines on both edges of every row, at 16 bytes even parts of sectors. Our cold rows with
random k take 2 to 3 % longer where rows start at multiples of 64 or 32 bytes, and 5 to 16 % at odd multiples of 16,
the more the more rows of x there are (`python -m bench.gemm_lines`). Rows of the graph protocol have few such k, each
many times: their nets know them. The weights that ship were trained before this factor was found and are multiplied
by it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipewave.kernels.base import Context
from pipewave.physics.arith import SCALAR, Arith
from pipewave.physics.cache import COLD, SERVING

LINE = 128
# Log of the time lost, and more for each doubling of m from 8 to 8192, by the largest power of two that divides a row's
# bytes. Least absolute errors of our rows outside the fold that shipped weights are scored on.
LOST = {64: (0.017, 0.0), 32: (0.022, 0.001), 16: (0.052, 0.010)}
FEWEST, MOST = 8.0, 8192.0
TYPES = ("bf16", "fp16", "fp8", "int8")  # of which rows have such k


def unaligned(m: Any, k: Any, element_bytes: float, ctx: Context, xp: Arith) -> Any:
    """Factor on the time of one call (floats) or of many (arrays); `element_bytes` of an operand."""
    if ctx.protocol not in (COLD, SERVING) or ctx.dtype not in TYPES:
        return 1.0
    if xp is SCALAR:
        rest = int(k * element_bytes) % LINE
        return _factor(m, rest & -rest, xp) if rest & -rest in LOST else 1.0
    return _of_many(m, (k * element_bytes).astype(np.int64) % LINE, xp)


def _of_many(m: Any, rest: NDArray[np.int64], xp: Arith) -> Any:
    """Worked out for the calls alone that it concerns: most have whole lines."""
    found, shared = np.ones(len(rest)), rest & -rest
    for unit in LOST:
        at = np.flatnonzero(shared == unit)
        found[at] = _factor(m[at], unit, xp)
    return found


def _factor(m: Any, unit: int, xp: Arith) -> Any:
    least, more = LOST[unit]
    return xp.exp(least + more * xp.log2(xp.minimum(xp.maximum(m, FEWEST), MOST) / FEWEST))

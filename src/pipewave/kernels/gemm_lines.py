"""What it costs that rows of the operands start inside a cache line: k elements that are no whole lines of 128 bytes.

A tile then fetches parts of lines on both edges of every row, from 16 bytes on even parts of sectors. Our cold rows with
random k take 2 % longer where rows start at multiples of 64 or 32 bytes, and 5 to 15 % at odd multiples of 16, the
more the more rows of x there are. Rows of the graph protocol have few such k, each many times: their nets know them.
"""

from __future__ import annotations

from typing import Any

from pipewave.kernels.arith import Arith
from pipewave.kernels.base import Context
from pipewave.kernels.residency import COLD, SERVING

LINE = 128.0
# Log of the time lost, and more for each doubling of m from 8 to 8192, by the largest power of two that divides a row's
# bytes. Least absolute errors of our rows outside the fold that shipped weights are scored on.
LOST = {64.0: (0.017, 0.0), 32.0: (0.022, 0.001), 16.0: (0.052, 0.010)}
FEWEST, MOST = 8.0, 8192.0
TYPES = ("bf16", "fp16", "fp8", "int8")  # of which rows have such k


def unaligned(m: Any, k: Any, row_bytes: float, ctx: Context, xp: Arith) -> Any:
    """Factor on the time; `row_bytes` are those of an element of an operand."""
    rest = k * row_bytes % LINE
    if ctx.protocol not in (COLD, SERVING) or ctx.dtype not in TYPES or not xp.any(rest != 0.0):
        return 1.0
    octaves = xp.log2(xp.minimum(xp.maximum(m, FEWEST), MOST) / FEWEST)
    lost = 0.0 * octaves
    for unit, (least, more) in LOST.items():
        lost = xp.where((rest % unit == 0.0) & (rest % (2.0 * unit) != 0.0), least + more * octaves, lost)
    return xp.exp(lost)

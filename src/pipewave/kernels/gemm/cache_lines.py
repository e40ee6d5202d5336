"""What it costs that rows of the operands start inside a cache line: k elements that are no whole lines of 128 bytes.

A tile then fetches parts of lines on both edges of every row, at odd multiples of 16 bytes five sectors in the place of
four. That costs a few percent while SMs have little to do, and up to that quarter where all of them stream tiles from
the L2: 2.3 % more for each doubling of tiles in CUTLASS's FP8 kernels, of which cuBLAS's hide most. Fits to our cold
rows with random k: `python -m bench.gemm_lines`. Rows of the graph protocol have few such k, each many times: their
nets know them. The factor is part of the base estimate, and networks were trained over one like it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipewave.kernels.base import Context
from pipewave.kernels.gemm.machine import GemmMachine
from pipewave.physics.arith import ARRAY, Arith
from pipewave.physics.cache import LINE
from pipewave.software.stack_rules import constant

UNITS = (64, 32, 16)  # bytes that a row's start may be a multiple of, short of a line
TILE = 128.0 * 128.0  # elements of the result
FEWEST, MOST = 1.0 / 16.0, 16.0  # tiles of an SM between which the cost grows

Losses = Mapping[int, tuple[float, float]]


def unaligned(m: Any, n: Any, k: Any, at: GemmMachine, ctx: Context, xp: Arith) -> Any:
    """Factor on the time of one call (floats) or of many (arrays)."""
    lost = losses(ctx.protocol, ctx.dtype, ctx.rule("gemm_library"))
    if not lost:
        return 1.0
    if xp is ARRAY:
        return _of_many(m, n, (k * at.operand_bytes).astype(np.int64) % LINE, lost, at, xp)
    least, more, row = 0.0, 0.0, xp.floor(k * at.operand_bytes)
    for unit, cost in lost.items():
        start = row % (2.0 * unit) == unit  # the largest power of two that divides the row
        least, more = xp.where(start, cost[0], least), xp.where(start, cost[1], more)
    return xp.exp(least + more * octaves(m, n, at.sms, xp))


@cache
def losses(protocol: str, dtype: str, library: str) -> Losses:
    """Log of the time lost with the fewest tiles, and more a doubling, by the unit that rows start at; empty where none
    is known."""
    facts = {"protocol": protocol, "dtype": dtype, "library": library}
    found = {unit: constant("gemm_row_start", unit=unit, **facts) for unit in UNITS}
    return {unit: lost for unit, lost in found.items() if lost}


def octaves(m: Any, n: Any, sms: float, xp: Arith) -> Any:
    """Doublings of an SM's tiles above the fewest."""
    tiles = m * n * (1.0 / (TILE * sms))
    return xp.log2(xp.minimum(xp.maximum(tiles, FEWEST), MOST) * (1.0 / FEWEST))


def _of_many(m: Any, n: Any, rest: NDArray[np.int64], lost: Losses, at: GemmMachine, xp: Arith) -> Any:
    """Worked out for the calls alone that it concerns: most have whole lines."""
    found, shared = np.ones(len(rest)), rest & -rest
    for unit, (least, more) in lost.items():
        of = np.flatnonzero(shared == unit)
        found[of] = xp.exp(least + more * octaves(m[of], n[of], at.sms, xp))
    return found

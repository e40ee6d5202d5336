"""Corrections of products: the clock a cold call finds, and rows that start inside a cache line."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, lru_cache
from math import log2
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipewave.kernels.base import Context
from pipewave.kernels.gemm.machine import GemmMachine
from pipewave.physics.arith import ARRAY, Arith
from pipewave.physics.cache import COLD, LINE, SERVING
from pipewave.software.rules import constant

# What the SM clock does to a GEMM: a product bound on the chip follows it, one bound by DRAM hardly does.
#
# Power management moves the clock of a loaded GPU within milliseconds. Where the clock of a row is known, a net learns
# at it; a call without one is answered at the clock that `cold` rows have. That is 0.99 of boost, but products of 20 to
# 150 µs that keep the tensor cores busy bring it down by up to a fifth, a dozen in a row, and longer ones by a little.
# `python -m studies.gemm_clock` has the fits and what they are worth; the rules `sm_clock`, `gemm_clock_exponent` and
# `gemm_clock_drop` hold them.

KNOTS = tuple(log2(us * 1e-6) for us in (20.0, 60.0, 150.0))  # none below the first


class Clocks(NamedTuple):
    """Shares of boost, the drop under `cold` (None: none known) and the exponents of a net on a GPU."""

    idle: float
    loaded: float
    drop: tuple[float, float] | None
    exponents: tuple[float, float]


@lru_cache(maxsize=256)
def clocks(drops: bool, net: str) -> Clocks:
    """What the rules say of the clock."""
    idle, loaded = (constant("sm_clock", state=state) for state in ("idle", "loaded"))
    drop = constant("gemm_clock_drop", drops_when_cold=drops, net=net)
    return Clocks(idle, loaded, drop, constant("gemm_clock_exponent", net=net))


def slowdown(named: Mapping[str, Any], clock_mhz: Any, net: str, ctx: Context, xp: Arith) -> Any:
    """Factor on the time at the nets' own clock; `clock_mhz` is 0 where the caller does not know it.

    Of the features by name it takes `memory_share`, `tensor_share` and `log_base`.
    """
    if ctx.protocol not in (COLD, SERVING):
        return 1.0
    boost, known = float(ctx.gpu.boost_clock_mhz), clocks(ctx.gpu.traits.clock_drops_when_cold, net)
    usual = boost * (cold_clock(named, known, xp) if ctx.protocol == COLD else serving_clock(named, known))
    clock = xp.where(clock_mhz > 0.0, clock_mhz, usual)
    return (clock * (1.0 / (known.loaded * boost))) ** -exponent(named["memory_share"], known, xp)


def cold_clock(named: Mapping[str, Any], known: Clocks, xp: Arith) -> Any:
    """Share of boost at which `cold` rows of such a product were taken."""
    if known.drop is None:
        return known.idle
    (most, held), (start, middle, end), at = known.drop, KNOTS, named["log_base"]
    rise = xp.minimum(xp.maximum((at - start) * (1.0 / (middle - start)), 0.0), 1.0)
    fall = xp.minimum(xp.maximum((at - middle) * (1.0 / (end - middle)), 0.0), 1.0)
    return known.idle * xp.exp(-named["tensor_share"] * (most * rise - (most - held) * fall))


def serving_clock(named: Mapping[str, Any], known: Clocks) -> Any:
    """Share of boost in a busy engine: products that wait for DRAM leave it the power to run as if idle."""
    return known.idle - (known.idle - known.loaded) * named["tensor_share"]


def exponent(memory_share: Any, known: Clocks, xp: Arith) -> Any:
    """Of time in the inverse clock; between 0 and 1."""
    on_chip, lost = known.exponents
    return xp.minimum(xp.maximum(on_chip - lost * memory_share, 0.0), 1.0)


# What it costs that rows of the operands start inside a cache line: k elements that are no whole lines of 128 bytes.
#
# A tile then fetches parts of lines on both edges of every row, at odd multiples of 16 bytes five sectors in the
# place of four. That costs a few percent while SMs have little to do, and up to that quarter where all of them stream
# tiles from the L2: 2.3 % more for each doubling of tiles in CUTLASS's FP8 kernels, of which cuBLAS's hide most. Fits
# to our cold rows with random k: `python -m studies.gemm_lines`. Rows of the graph protocol have few such k, each many
# times: their nets know them. The factor is part of the base estimate, and networks were trained over one like it.

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
    is known.
    """
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

"""The GEMM family, y[m,n] = x[m,k]·W[n,k]ᵀ: tiles in waves over the SMs, memory, power, and features for its nets."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np

from pipewave.kernels.base import Analysis, Columns, Context, Sketch, features_of
from pipewave.kernels.gemm.machine import (
    GemmMachine,
    Tiling,
    Traffic,
    known_tile,
    machine,
    quantize_s,
    tiling,
    traffic,
    unfused_s,
)
from pipewave.physics.arith import ARRAY, Arith, clipped
from pipewave.physics.cache import COLD, LINE, PRODUCT_DRAM_SHARE, SERVING
from pipewave.physics.demand import Array
from pipewave.physics.overlap import overlapped, wave_efficiency
from pipewave.physics.power import Work
from pipewave.software.rules import constant

# Types that run the same kernels share a net; the others differ in library, quantisation and pipe.
NET_OF = {
    **dict.fromkeys(("bf16", "fp16", "int4"), "gemm"),
    **dict.fromkeys(("fp8", "int8"), "gemm_fp8"),
    "fp8_block": "gemm_block",
    **dict.fromkeys(("nvfp4", "mxfp4"), "gemm_fp4"),
}

# What the learned residual of a GEMM looks at: sizes, residency, padding, waves, and times beside the base estimate.
#
# No feature is a property of the GPU alone: with a handful of GPUs in training such a feature is a name tag, and a new
# GPU's tag means nothing. The GPU reaches the net as a category, which may be unknown.


class GemmTimes(NamedTuple):
    """Seconds of the parts of a GEMM and of the whole."""

    tensor: Any  # at the datasheet peak
    tile: Any
    power: Any
    memory: Any
    through: Any  # every operand once through the L2
    quantize: Any
    base: Any


def times(flops: Any, moved: Traffic, tiles: Tiling, quantize: Any, at: GemmMachine, xp: Arith) -> GemmTimes:
    """Parts overlap as far as a p-norm lets them; launch and quantisation do not overlap."""
    power = (flops * at.joules_per_flop + moved.dram * at.joules_per_byte) * (1.0 / at.watts)
    memory = moved.dram * (1.0 / (PRODUCT_DRAM_SHARE * at.dram))
    through = moved.all * (1.0 / at.l2)
    on_sms = overlapped(4, tiles.best, power, xp=xp)
    base = at.launch_s + overlapped(2, on_sms, memory, through, xp=xp) + quantize
    return GemmTimes(flops * (1.0 / at.peak), tiles.best, power, memory, through, quantize, base)


# What the SM clock does to a GEMM: a product bound on the chip follows it, one bound by DRAM hardly does.
#
# Power management moves the clock of a loaded GPU within milliseconds. Where the clock of a row is known, a net learns
# at it; a call without one is answered at the clock that `cold` rows have. That is 0.99 of boost, but products of 20 to
# 150 µs that keep the tensor cores busy bring it down by up to a fifth, a dozen in a row, and longer ones by a little.
# `python -m studies.gemm_clock` has the fits and what they are worth; the rules `sm_clock`, `gemm_clock_exponent` and
# `gemm_clock_drop` hold them.

KNOTS = tuple(math.log2(us * 1e-6) for us in (20.0, 60.0, 150.0))  # none below the first


def slowdown(named: Mapping[str, Any], clock_mhz: Any, net: str, ctx: Context, xp: Arith) -> Any:
    """Factor on the time at the nets' own clock, by `named` shares and `log_base`; `clock_mhz` is 0 where not known."""
    if ctx.protocol not in (COLD, SERVING):
        return 1.0
    boost = float(ctx.gpu.boost_clock_mhz)
    idle, loaded = (constant("sm_clock", state=state) for state in ("idle", "loaded"))
    if ctx.protocol == COLD:
        usual = idle
        if drop := constant("gemm_clock_drop", drops_when_cold=ctx.gpu.traits.clock_drops_when_cold, net=net):
            (most, held), (start, middle, end), log_base = drop, KNOTS, named["log_base"]
            rise = clipped((log_base - start) * (1.0 / (middle - start)), 0.0, 1.0, xp)
            fall = clipped((log_base - middle) * (1.0 / (end - middle)), 0.0, 1.0, xp)
            lost = most * rise - (most - held) * fall  # log of the clock, of a product that is all tensor work
            usual = idle * xp.exp(-named["tensor_share"] * lost)
    else:  # in a busy engine, products that wait for DRAM leave it the power to run as if idle
        usual = idle - (idle - loaded) * named["tensor_share"]
    clock = xp.where(clock_mhz > 0.0, clock_mhz, boost * usual)
    on_chip, lost = constant("gemm_clock_exponent", net=net)
    exponent = clipped(on_chip - lost * named["memory_share"], 0.0, 1.0, xp)
    return (clock * (1.0 / (loaded * boost))) ** -exponent


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


def unaligned(m: Any, n: Any, k: Any, at: GemmMachine, ctx: Context, xp: Arith) -> Any:
    """Factor on the time of one call (floats) or of many (arrays)."""
    lost = losses(ctx.protocol, ctx.dtype, ctx.rule("gemm_library"))
    if not lost:
        return 1.0
    if xp is ARRAY:
        start = (k * at.operand_bytes).astype(np.int64) % LINE
        found, shared = np.ones(len(start)), start & -start
        for unit, (least, more) in lost.items():  # worked out for the calls alone that it concerns
            of = np.flatnonzero(shared == unit)
            found[of] = xp.exp(least + more * octaves(m[of], n[of], at.sms, xp))
        return found
    least, more, row = 0.0, 0.0, xp.floor(k * at.operand_bytes)
    for unit, cost in lost.items():
        start = row % (2.0 * unit) == unit  # the largest power of two that divides the row
        least, more = xp.where(start, cost[0], least), xp.where(start, cost[1], more)
    return xp.exp(least + more * octaves(m, n, at.sms, xp))


@cache
def losses(protocol: str, dtype: str, library: str) -> Mapping[int, tuple[float, float]]:
    """Log of the time lost with the fewest tiles, and more a doubling, by the unit that rows start at, where known."""
    facts = {"protocol": protocol, "dtype": dtype, "library": library}
    found = {unit: constant("gemm_row_start", unit=unit, **facts) for unit in UNITS}
    return {unit: lost for unit, lost in found.items() if lost}


def octaves(m: Any, n: Any, sms: float, xp: Arith) -> Any:
    """Doublings of an SM's tiles above the fewest."""
    tiles = m * n * (1.0 / (TILE * sms))
    return xp.log2(clipped(tiles, FEWEST, MOST, xp) * (1.0 / FEWEST))


def net_of(case: Mapping[str, Any]) -> str:
    """The net that answers a case."""
    return NET_OF.get(case.get("dtype", "bf16"), "gemm")


def formula(call: Columns, ctx: Context, xp: Arith) -> Sketch:
    """Demand, base estimate and features, from numbers of one call (floats) or of many (arrays)."""
    m, n, k = call["m"], call["n"], call["k"]
    none = 0.0 * m
    ctas, clock_mhz = call["ctas"] if ctx.option("tile") else none, call.get("sm_clock_mhz", none)
    at, net = machine(ctx), NET_OF[ctx.dtype]
    moved, t, named = parts(m, n, k, ctas, ctx.option("tile"), at, xp)
    base = t.base * slowdown(named, clock_mhz, net, ctx, xp) * unaligned(m, n, k, at, ctx, xp)
    base = base + unfused_s(m, k, at, xp) if at.unfused_s or at.unfused_element_s else base
    return Sketch(least(m, n, k, moved, at), base, named, net, work(m, n, k, moved, at))


def parts(
    m: Any, n: Any, k: Any, ctas: Any, tile: tuple[int, ...] | None, at: GemmMachine, xp: Arith
) -> tuple[Traffic, GemmTimes, dict[str, Any]]:
    """Traffic, times and features of one call (floats) or of many (arrays)."""
    moved, tiles = traffic(m, n, k, at, xp), tiling(m, n, k, at, xp)
    if tile is not None:
        tiles = known_tile(tiles, m, n, k, (tile[0], tile[1]), ctas, at, xp)
    t = times(2.0 * m * n * k, moved, tiles, quantize_s(m, k, moved, at, xp), at, xp)
    # A matrix times one `vector` runs other kernels.
    known: dict[str, Any] = {"m": m, "n": n, "k": k, "moved": moved, "rows": tiles.rows, "t": t, "at": at}
    known |= {"tiles": tiles, "best": 1.0 / tiles.best, "efficiency": partial(wave_efficiency, xp=xp)}
    return moved, t, features_of("gemm", xp=xp, **known)


def least(m: Any, n: Any, k: Any, moved: Traffic, at: GemmMachine) -> dict[str, Any]:
    """The least any GEMM must do: useful FLOP, each operand once, a launch for each kernel."""
    launches = 1.0 + (at.library.quantize_kernels if at.quantize_s else 0.0)
    return {"tensor": 2.0 * m * n * k, "dram": moved.least_dram, "l2": moved.all, "launch": launches}


def work(m: Any, n: Any, k: Any, moved: Traffic, at: GemmMachine) -> Work:
    """What a GEMM does: x, W and y pass the L2 once; where it quantises x, that is written and read again."""
    again = 2.0 * at.operand_bytes * m * k if at.quantize_s else 0.0
    return Work(2.0 * m * n * k, moved.dram, moved.all + again)


def waves(cols: Columns, ctx: Context, _analysis: Analysis) -> Array:
    """Of the known tile, else of the one that does best over all calls, so that steps are steps of the size."""
    m, n, k = cols["m"], cols["n"], cols["k"]
    at = machine(ctx)
    known = ctx.option("tile")
    if known:
        return np.asarray(np.ceil(m / known[0]) * np.ceil(n / known[1]) / at.sms)
    tiles = tiling(m, n, k, at, ARRAY)
    best = int(np.argmin(np.log(np.stack(tiles.seconds)).sum(axis=1)))
    return np.asarray(tiles.per_sm[best])

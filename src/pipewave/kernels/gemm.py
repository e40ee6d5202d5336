"""Dense matrix product y[m,n] = x[m,k]·W[n,k]ᵀ: output tiles, waves over the SMs, L2-aware memory time, and power."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pipewave.calls import Gemm
from pipewave.demand import Array, Demand, demand
from pipewave.kernels.arith import ARRAY, SCALAR, Arith
from pipewave.kernels.base import Analysis, Columns, Context, Family, register
from pipewave.kernels.gemm_clock import slowdown
from pipewave.kernels.gemm_features import Times, features, times
from pipewave.kernels.gemm_machine import Machine, machine
from pipewave.kernels.gemm_tiles import known_tile, tiling
from pipewave.kernels.gemm_traffic import Traffic, quantize_s, traffic
from pipewave.kernels.named import Features

# Types that run the same kernels share a net; the others differ in library, quantisation and pipe.
NET_OF = {
    **dict.fromkeys(("bf16", "fp16", "int4"), "gemm"),
    **dict.fromkeys(("fp8", "int8"), "gemm_fp8"),
    "fp8_block": "gemm_block",
    **dict.fromkeys(("nvfp4", "mxfp4"), "gemm_fp4"),
}


def net_of(case: Mapping[str, Any]) -> str:
    """The net that answers a case."""
    return NET_OF.get(case.get("dtype", "bf16"), "gemm")


def analyse(cols: Columns, ctx: Context) -> Analysis:
    """Demand, base estimate and features of a batch of GEMMs."""
    at = machine(ctx)
    m, n, k = cols["m"], cols["n"], cols["k"]
    tile = ctx.option("tile")
    none, net = 0.0 * m, NET_OF[ctx.dtype]
    ctas, clock = cols["ctas"] if tile else none, cols.get("sm_clock_mhz", none)
    if len(m) > 1:
        moved, t, named = parts(m, n, k, ctas, tile, at, ARRAY)
        base = t.base * slowdown(named["memory_share"], clock, net, ctx, ARRAY)
        return Analysis(least(m, n, k, moved, at), base, _columns(named, len(m)), net)
    moved, t, named = parts(float(m[0]), float(n[0]), float(k[0]), float(ctas[0]), tile, at, SCALAR)
    base = t.base * slowdown(named["memory_share"], float(clock[0]), net, ctx, SCALAR)
    one = Features(tuple(named), np.array(list(named.values()))[:, None])
    return Analysis(least(m, n, k, moved, at), np.array([base]), one, net)


def parts(
    m: Any, n: Any, k: Any, ctas: Any, tile: tuple[int, ...] | None, at: Machine, xp: Arith
) -> tuple[Traffic, Times, dict[str, Any]]:
    """Traffic, times and features of one call (floats) or of many (arrays)."""
    moved, tiles = traffic(m, n, k, at, xp), tiling(m, n, k, at, xp)
    if tile is not None:
        tiles = known_tile(tiles, m, n, k, (tile[0], tile[1]), ctas, at, xp)
    t = times(2.0 * m * n * k, moved, tiles, quantize_s(m, k, moved, at, xp), at, xp)
    return moved, t, features(m, n, k, moved, tiles, t, at, xp)


def least(m: Array, n: Array, k: Array, moved: Traffic, at: Machine) -> Demand:
    """The least any GEMM must do: useful FLOP, each operand once, a launch for each kernel."""
    launches = 1.0 + (at.library.quantize_kernels if at.quantize_s else 0.0)
    return demand(len(m), tensor=2.0 * m * n * k, dram=moved.least_dram, l2=moved.all, launch=launches)


def _columns(named: dict[str, Any], count: int) -> dict[str, Array]:
    """Constants widened to the batch."""
    return {name: np.broadcast_to(np.asarray(value, float), (count,)) for name, value in named.items()}


FAMILY = register(
    Family("gemm", Gemm, analyse, ("quantize", "tile"), variant=net_of, nets=tuple(dict.fromkeys(NET_OF.values())))
)

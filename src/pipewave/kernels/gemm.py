"""Dense matrix product y[m,n] = x[m,k]·W[n,k]ᵀ: output tiles, waves over the SMs, and L2-aware memory time."""

from __future__ import annotations

import numpy as np

from pipewave.calls import Gemm
from pipewave.demand import Array, Demand, demand
from pipewave.kernels.base import Analysis, Columns, Context, Family, register
from pipewave.kernels.dtypes import ACTIVATION_BYTES, OPERAND_BYTES
from pipewave.kernels.estimate import combine, launch_s, log2
from pipewave.kernels.residency import least_dram
from pipewave.schedule import waves

TILES = ((64, 64), (64, 128), (128, 128), (128, 256))


def least(cols: Columns, ctx: Context) -> Demand:
    """The least any GEMM must do: useful FLOP, each operand once."""
    m, n, k = cols["m"], cols["n"], cols["k"]
    weights = OPERAND_BYTES[ctx.dtype] * n * k
    x = (ACTIVATION_BYTES if ctx.option("quantize") else OPERAND_BYTES[ctx.dtype]) * m * k
    y = ACTIVATION_BYTES * m * n
    dram = least_dram(ctx.gpu, ctx.protocol, weights, x, y)
    return demand(len(m), tensor=2.0 * m * n * k, dram=dram, l2=weights + x + y, launch=1.0)


def tile_times(cols: Columns, ctx: Context) -> Array:
    """Seconds of tensor work in whole waves, [tile, call], at the datasheet rate."""
    m, n, k = cols["m"], cols["n"], cols["k"]
    per_sm = ctx.gpu.peak_flops(ctx.dtype) / ctx.gpu.sms
    rows = []
    for tile_m, tile_n in TILES:
        blocks = np.ceil(m / tile_m) * np.ceil(n / tile_n)
        rows.append(waves(blocks, ctx.gpu.sms) * (2.0 * tile_m * tile_n * k / per_sm))
    return np.stack(rows)


def analyse(cols: Columns, ctx: Context) -> Analysis:
    """Demand, base estimate and features of a batch of GEMMs."""
    least_demand = least(cols, ctx)
    math_s = tile_times(cols, ctx).min(axis=0)
    memory_s = least_demand.dram / (ctx.gpu.dram_gbps * 1e9) + least_demand.l2 / (ctx.gpu.l2_gbps * 1e9)
    base = launch_s(ctx.gpu) + combine(math_s, memory_s)
    features = {"m": log2(cols["m"]), "n": log2(cols["n"]), "k": log2(cols["k"]), "math": log2(math_s / memory_s)}
    return Analysis(least_demand, base, features, "gemm")


FAMILY = register(Family("gemm", Gemm, analyse, options=("quantize", "tile"), nets=("gemm",)))

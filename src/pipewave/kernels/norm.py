"""RMS normalisation and the gated activation: one row a block, bound by memory or by the launch."""

from __future__ import annotations

from pipewave.calls import RmsNorm, SiluAndMul
from pipewave.demand import demand
from pipewave.kernels.base import Analysis, Columns, Context, Family, register
from pipewave.kernels.dtypes import ACTIVATION_BYTES
from pipewave.kernels.estimate import combine, launch_s, log2
from pipewave.kernels.residency import least_dram


def _stream(cols: Columns, ctx: Context, net: str, read: float, written: float, fma: float, xu: float) -> Analysis:
    """Analysis of a row-wise kernel that reads and writes so many activations and does so much per output element."""
    elements = cols["rows"] * cols["dim"]
    bytes_in, bytes_out = ACTIVATION_BYTES * read * elements, ACTIVATION_BYTES * written * elements
    dram = least_dram(ctx.gpu, ctx.protocol, 0.0 * elements, bytes_in, bytes_out)
    work = demand(len(elements), dram=dram, l2=bytes_in + bytes_out, fma=fma * elements, xu=xu * elements, launch=1.0)
    gpu = ctx.gpu
    base = launch_s(gpu) + combine(dram / (0.85e9 * gpu.dram_gbps), (bytes_in + bytes_out) / (0.7e9 * gpu.l2_gbps))
    return Analysis(work, base, {"rows": log2(cols["rows"]), "dim": log2(cols["dim"])}, net)


def rmsnorm(cols: Columns, ctx: Context) -> Analysis:
    """x (and the residual, when fused) in, y (and the residual) out; the same for a whole batch."""
    streams = 2.0 if ctx.option("fused_add", False) else 1.0
    return _stream(cols, ctx, "rmsnorm", streams, streams, 4.0, 0.0)


def silu_and_mul(cols: Columns, ctx: Context) -> Analysis:
    """Two values in, one out, one exponential and one reciprocal each."""
    return _stream(cols, ctx, "silu_and_mul", 2.0, 1.0, 4.0, 2.0)


RMSNORM = register(Family("rmsnorm", RmsNorm, rmsnorm, options=("fused_add",), nets=("rmsnorm",)))
SILU = register(Family("silu_and_mul", SiluAndMul, silu_and_mul, nets=("silu_and_mul",)))

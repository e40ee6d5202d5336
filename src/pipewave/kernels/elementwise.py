"""Kernels that only stream memory: RoPE, embedding rows, KV-cache writes, sampling. Bytes are named by the caller."""

from __future__ import annotations

from pipewave.calls import Elementwise
from pipewave.demand import demand
from pipewave.kernels.base import Analysis, Columns, Context, Family, register
from pipewave.kernels.estimate import combine, launch_s, log2
from pipewave.kernels.residency import least_dram


def analyse(cols: Columns, ctx: Context) -> Analysis:
    """`weight_bytes` come from DRAM in serving, the other bytes were just written by the kernel before."""
    read, written, weights = cols["bytes_read"], cols["bytes_written"], cols["weight_bytes"]
    dram = least_dram(ctx.gpu, ctx.protocol, weights, read, written)
    moved = read + written + weights
    work = demand(len(read), dram=dram, l2=moved, launch=1.0)
    gpu = ctx.gpu
    base = launch_s(gpu) + combine(dram / (0.85e9 * gpu.dram_gbps), moved / (0.7e9 * gpu.l2_gbps))
    return Analysis(work, base, {"bytes": log2(moved)}, "elementwise")


FAMILY = register(Family("elementwise", Elementwise, analyse, options=("op",), nets=("elementwise",)))

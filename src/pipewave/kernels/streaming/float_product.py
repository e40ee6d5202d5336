"""Products in 32-bit floats, on the FMA units: routers of experts that vLLM keeps in this type (`float_routers`).

Tensor cores multiply 32-bit floats only as TF32, which PyTorch does not allow unless asked
(`torch.get_float32_matmul_precision() == "highest"`). A call names the bytes of its operands and of its result, all
float32, from which the multiplications follow: with m·k, k·n and m·n values their product is (m·k·n)².

    time = start + max(2·m·k·n / (share · FMA peak), bytes moved)

The share is that of cuBLAS's SIMT kernels with enough rows. Two models on an H100 that no constant is fitted on bear it
out: prompts of 8,192 tokens of GLM-4.5-Air and MiniMax-M2.5 were 1.7 to 6.4 % low without it (`python -m bench.kinds`).
"""

from __future__ import annotations

import numpy as np

from pipewave.kernels.base import Analysis, Context
from pipewave.kernels.streaming.stream import Stream, done, times
from pipewave.physics.demand import Array, Demand, demand

OP = "float_product"
VALUE_BYTES = 4
FMA_SHARE = 0.8  # of the peak at the sustained clock


def analyse(least: Demand, ctx: Context, work: Stream) -> Analysis:
    """Of `work.read` (one operand), `work.fresh` (weights) and `work.written` (the product)."""
    gpu, flops = ctx.gpu, operations(work)
    fma = 2.0 * gpu.fma_per_clk_per_sm * gpu.sms * 1e6 * gpu.sustained_clock_mhz
    moving = times(ctx, work)
    base = moving.start + np.maximum(flops / (FMA_SHARE * fma), np.maximum(moving.dram, moving.through))
    return Analysis(least + demand(len(flops), fma=flops), base, {}, "", done(ctx, work))


def operations(work: Stream) -> Array:
    """Multiplications and additions of m × k by k × n, from the bytes of both and of their product."""
    return np.asarray(2.0 * np.sqrt(work.read * work.fresh * work.written / VALUE_BYTES**3))

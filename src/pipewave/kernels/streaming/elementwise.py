"""Kernels that only stream memory: RoPE, embedding rows, KV-cache writes, sampling. Bytes are named by the caller."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pipewave.calls.families import Elementwise
from pipewave.kernels.base import Analysis, Columns, Context, Family
from pipewave.kernels.streaming import sampling
from pipewave.kernels.streaming.stream import GENERATED, Stream, describe, done, generated, least_bytes, times
from pipewave.physics.cache import COLD, SERVING
from pipewave.physics.demand import Array, Demand, demand
from pipewave.physics.launch import log2

# Products in 32-bit floats, on the FMA units: routers of experts that vLLM keeps in this type (`float_routers`).
#
# Tensor cores multiply 32-bit floats only as TF32, which PyTorch does not allow unless asked
# (`torch.get_float32_matmul_precision() == "highest"`). A call names the bytes of its operands and of its result, all
# float32, from which the multiplications follow: with m·k, k·n and m·n values their product is (m·k·n)².
#
#     time = start + max(2·m·k·n / (share · FMA peak), bytes moved)
#
# The share is that of cuBLAS's SIMT kernels with enough rows. Two models on an H100 that no constant is fitted on
# bear it out: prompts of 8,192 tokens of GLM-4.5-Air and MiniMax-M2.5 were 1.7 to 6.4 % low without it (`python -m
# studies.kinds`).

FLOAT_PRODUCT = "float_product"
VALUE_BYTES = 4
FMA_SHARE = 0.8  # of the peak at the sustained clock


def analyse_float_product(least: Demand, ctx: Context, work: Stream) -> Analysis:
    """Of `work.read` (one operand), `work.fresh` (weights) and `work.written` (the product)."""
    gpu, flops = ctx.gpu, operations(work)
    fma = 2.0 * gpu.fma_per_clk_per_sm * gpu.sms * 1e6 * gpu.sustained_clock_mhz
    moving = times(ctx, work)
    base = moving.start + np.maximum(flops / (FMA_SHARE * fma), np.maximum(moving.dram, moving.through))
    return Analysis(least + demand(len(flops), fma=flops), base, {}, "", done(ctx, work))


def operations(work: Stream) -> Array:
    """Multiplications and additions of m × k by k × n, from the bytes of both and of their product."""
    return np.asarray(2.0 * np.sqrt(work.read * work.fresh * work.written / VALUE_BYTES**3))


IN_PLACE = ("rope",)
KNOWN = ("quantize", "rope", "kv_write")  # operations with measured rows; all others count as plain copies
# A pick of a top-k: the greatest value of each thread, then of the threads of a row, which exchange theirs in steps.
# Fitted to the router of two traced decode steps (H200, 8 of 128 experts, 4.4 us); two prompts are then 12 % low.
ROUND_CYCLES = 580.0
LEAST_SHARE, NEUTRAL = -11.0, 2.0**-6  # log2; of operations whose rows are not known


def analyse(cols: Columns, ctx: Context) -> Analysis:
    """`weight_bytes` come from DRAM in serving, the other bytes were just written by the kernel before."""
    op = ctx.option("op", "elementwise")
    read, written = cols["bytes_read"], np.maximum(cols["bytes_written"], 1.0)
    work = Stream(cols["weight_bytes"], read, written, in_place=op in IN_PLACE)
    least = demand(len(read), dram=least_bytes(ctx.gpu, ctx.protocol, work), l2=work.moved, launch=1.0)
    if op == sampling.ARGMAX:
        return Analysis(least, sampling.argmax_seconds(read, written, ctx.gpu), {}, "", done(ctx, work))
    if op == FLOAT_PRODUCT:
        return analyse_float_product(least, ctx, work)
    if op in sampling.LAWS:
        return Analysis(
            least, sampling.seconds(op, read, cols.get("rounds", 0.0 * read), ctx.gpu), {}, "", done(ctx, work)
        )
    if ctx.impl == GENERATED:
        return generated(least, ctx, work)
    # Slots of a paged cache are scattered and long untouched, so writing them takes what it takes after a flush.
    ctx = replace(ctx, protocol=COLD) if op == "kv_write" and ctx.protocol == SERVING else ctx
    moving = times(ctx, work)
    features = describe(ctx, work, moving) | {"row_share": _row_share(op, work)}
    features |= {name: np.full(len(read), float(op == name)) for name in KNOWN}
    picks = cols.get("rounds", 0.0) * ROUND_CYCLES / (ctx.gpu.sustained_clock_mhz * 1e6)
    return Analysis(least, moving.base + picks, features, "elementwise", done(ctx, work))


def _row_share(op: str, work: Stream) -> Array:
    """How short rows are: log2 of the share of tables (rope) or slots (kv_write), which come once a row."""
    once = {"rope": work.fresh, "kv_write": np.abs(work.read - work.written)}.get(op, NEUTRAL * work.moved)
    return np.clip(log2(once / work.moved), LEAST_SHARE, -2.0)


FAMILY = Family(
    "elementwise",
    Elementwise,
    analyse,
    options=("op",),
    nets=("elementwise",),
    metadata="pipewave.kernels.streaming.metadata:ELEMENTWISE",
    reads="activations",
)

"""Kernels that only stream memory, by bytes that the caller names: RoPE, embedding rows, KV-cache writes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pipewave.kernels.base import Columns, Context, Sketch
from pipewave.kernels.streaming.sampling import ARGMAX, LAWS, VALUE_BYTES, argmax_seconds, seconds
from pipewave.kernels.streaming.stream import GENERATED, Stream, describe, generated_s, least_bytes, sketch, times
from pipewave.physics.arith import ARRAY, Arith, clipped, log2
from pipewave.physics.cache import COLD, SERVING

# Products in 32-bit floats, on the FMA units: routers of experts that vLLM keeps in this type (`float_routers`).
#
# Tensor cores multiply 32-bit floats only as TF32, which PyTorch does not allow unless asked. A call names the bytes of
# its operands and of its result, all float32: with m·k, k·n and m·n values their product is (m·k·n)².
#
#     time = two kernels + 2·(m + more)·k·n / (share · FMA peak); of one row = one kernel + bytes
#
# Few columns give few blocks: cuBLAS cuts k, and a second kernel adds up; its tiles are high, hence the rows more.
# Fitted to products of routers on an H200 (`python -m lab.float_products`): 11 % off; by peak and bytes alone, 53 %.

FLOAT_PRODUCT = "float_product"
FMA_SHARE, MORE_ROWS = 0.76, 109.0  # of the peak at the sustained clock; beside those of the call
TWO_KERNELS_S, ONE_KERNEL_S = 7.3e-6, 4.0e-6
IN_PLACE = ("rope",)
KNOWN = ("quantize", "rope", "kv_write")  # operations with measured rows
OWN_LAW = (*KNOWN, FLOAT_PRODUCT, ARGMAX, *LAWS)  # all others count as plain copies
# A pick of a top-k: the greatest value of each thread, then of the threads of a row, which exchange theirs in steps.
# Fitted to the router of two traced decode steps (H200, 8 of 128 experts, 4.4 us); two prompts are then 12 % low.
ROUND_CYCLES = 580.0
LEAST_SHARE, NEUTRAL = -11.0, 2.0**-6  # log2; of operations whose rows are not known


def operations(work: Stream, xp: Arith = ARRAY) -> Any:
    """Multiplications and additions of m × k by k × n, from the bytes of both and of their product."""
    return 2.0 * xp.sqrt(work.read * work.fresh * work.written / VALUE_BYTES**3)


def product_seconds(ctx: Context, work: Stream, xp: Arith) -> Any:
    """Seconds of products in 32-bit floats, by the law above."""
    gpu, rows = ctx.gpu, xp.sqrt(work.read * work.written / (work.fresh * VALUE_BYTES))
    rate = FMA_SHARE * 2.0 * gpu.fma_per_clk_per_sm * gpu.sms * 1e6 * gpu.sustained_clock_mhz
    many = TWO_KERNELS_S + (operations(work, xp) + 2.0 * MORE_ROWS * work.fresh / VALUE_BYTES) / rate
    return xp.where(rows > 1.0, many, ONE_KERNEL_S + times(ctx, work, xp).dram)


def same(options: tuple[str]) -> tuple[str]:
    """An operation whose law is its own, or plain copies: they are answered alike whatever they are called."""
    return options if options[0] in OWN_LAW else ("copy",)


def formula(call: Columns, ctx: Context, xp: Arith) -> Sketch:
    """`weight_bytes` come from DRAM in serving, the other bytes were just written by the kernel before."""
    op, gpu = ctx.option("op", "elementwise"), ctx.gpu
    read, written = call["bytes_read"], xp.maximum(call["bytes_written"], 1.0)
    rounds = call.get("rounds", 0.0 * read)
    work = Stream(call["weight_bytes"], read, written, in_place=op in IN_PLACE)
    least = {"dram": least_bytes(gpu, ctx.protocol, work, xp), "l2": work.moved, "launch": 1.0}
    if op == ARGMAX:
        return sketch(least, argmax_seconds(read, written, gpu, xp), ctx, work, xp)
    if op == FLOAT_PRODUCT:
        return sketch(least | {"fma": operations(work, xp)}, product_seconds(ctx, work, xp), ctx, work, xp)
    if op in LAWS:
        return sketch(least, seconds(op, read, rounds, gpu, xp), ctx, work, xp)
    if ctx.impl == GENERATED:
        return sketch(least, generated_s(ctx, work, xp), ctx, work, xp)
    # Slots of a paged cache are scattered and long untouched, so writing them takes what it takes after a flush.
    ctx = replace(ctx, protocol=COLD) if op == "kv_write" and ctx.protocol == SERVING else ctx
    moving = times(ctx, work, xp)
    # How short rows are: the share of tables (rope) or slots (kv_write), which come once a row.
    slots = xp.maximum(read, written) - xp.minimum(read, written)
    once = {"rope": work.fresh, "kv_write": slots}.get(op, NEUTRAL * work.moved)
    short = clipped(log2(once / work.moved, xp), LEAST_SHARE, -2.0, xp)
    features = describe(ctx, work, moving, xp) | {"row_share": short}
    features |= {name: float(op == name) for name in KNOWN}
    picks = rounds * ROUND_CYCLES / (gpu.sustained_clock_mhz * 1e6)
    return sketch(least, moving.base + picks, ctx, work, xp, "elementwise", **features)

"""Operators of a few kernels each: batched products and the mixing of hyper-connections."""

from __future__ import annotations

from typing import Any

import numpy as np

from pipewave.calls.dtypes import ACTIVATION_BYTES, OPERAND_BYTES, STREAMED_DTYPES
from pipewave.calls.operators import BatchedGemm, HyperConnection
from pipewave.kernels.base import Analysis, Columns, Context, Family
from pipewave.kernels.stages import Stage, Stages, in_units_of, product
from pipewave.kernels.streaming.stream import Stream
from pipewave.physics.demand import Array
from pipewave.physics.launch import log2

# Many small products of one shape in one launch, such as those that absorb MLA's up-projections, one a head.

BATCHED = "batched_gemm"


def analyse_batched_gemm(cols: Columns, ctx: Context) -> Analysis:
    """Demand, base estimate and features of a batch."""
    batch, m, n, k = (cols[name] for name in ("batch", "m", "n", "k"))
    part = product("products", m, n, k, ctx.dtype, batch)
    # Operands may come quantised, whatever this stack does.
    border = Stream(batch * n * k * OPERAND_BYTES[ctx.dtype], batch * m * k * OPERAND_BYTES[ctx.dtype], part.written)
    stages = Stages(ctx, len(m), (part,), border, 2.0 * batch * m * n * k)
    moved = ACTIVATION_BYTES * batch * (m * k + m * n) + part.fresh
    features = {
        "log_batch": np.minimum(log2(batch), 10.0),
        "log_m": np.minimum(log2(m), 18.0),
        "log_n": np.clip(log2(n), 4.0, 15.0),
        "log_k": np.clip(log2(k), 4.0, 15.0),
        "log_blocks_per_sm": np.clip(log2(part.blocks / ctx.gpu.sms), -8.0, 12.0),
        "in_l2": np.clip(log2(moved / (ctx.gpu.l2_mb * 2.0**20)), -12.0, 8.0),
    }
    return stages.analysis(features, BATCHED)


BATCHED_GEMM = Family(
    BATCHED,
    BatchedGemm,
    analyse_batched_gemm,
    nets=(BATCHED,),
    reads="operands",
    example="pipewave predict batched_gemm 16 64 512 128 --gpu H200",
)


# Manifold-constrained hyper-connections (DeepSeek-V4): `mult` residual streams mixed to one and back.
#
# `pre` norms the streams of a token, projects them to mult² + 2·mult coefficients, makes the square part doubly
# stochastic by Sinkhorn steps and sums the streams; `post` writes streams mixed by it with the layer's output added.

HYPER = "hyper_connection"
FP32 = 4.0
NO_MIXING = tuple(Stage(name, launches=0.0) for name in ("mixing", "sinkhorn"))  # both parts have the same features
STEP_S = 0.12e-6  # a Sinkhorn step: two normalisations of a small matrix, one after the other


def analyse_hyper_connection(cols: Columns, ctx: Context) -> Analysis:
    """Demand, base estimate and features of a batch."""
    tokens, hidden, mult = cols["tokens"], cols["hidden"], cols["mult"]
    one, every = (ACTIVATION_BYTES * tokens * hidden * streams for streams in (1.0, mult))
    weights = FP32 * mult * hidden * (mult * mult + 2.0 * mult)
    before = ctx.option("part", "pre") == "pre"
    flops = 2.0 * tokens * mult * hidden * (mult * mult + 2.0 * mult) if before else 0.0 * tokens
    parts = (
        _pre(cols, one, every, weights, flops)
        if before
        else (*NO_MIXING, Stage("stream", read=one + every, written=every))
    )
    border = Stream(weights, every, one) if before else Stream(0.0 * one, one + every, every, in_place=True)
    stages = Stages(ctx, len(tokens), parts, border, in_units_of(ctx, flops, "bf16"))
    return stages.analysis(_features(cols, ctx, every, before), HYPER)


def _pre(cols: Columns, one: Array, every: Array, weights: Array, flops: Array) -> tuple[Stage, ...]:
    mixing = Stage("mixing", flops, fresh=weights, read=every, blocks=np.ceil(cols["tokens"] / 64.0) * 8.0)
    steps = Stage("sinkhorn", chain_s=STEP_S * cols["sinkhorn_iters"])
    return mixing, steps, Stage("stream", read=every, written=one)


def _features(cols: Columns, ctx: Context, every: Array, before: bool) -> dict[str, Any]:
    return {
        "log_tokens": np.minimum(log2(cols["tokens"]), 20.0),
        "log_hidden": np.clip(log2(cols["hidden"]), 8.0, 16.0),
        "in_l2": np.clip(log2(every / (ctx.gpu.l2_mb * 2.0**20)), -12.0, 8.0),
        "pre": float(before),
    }


HYPER_CONNECTION = Family(
    HYPER,
    HyperConnection,
    analyse_hyper_connection,
    options=("part",),
    nets=(HYPER,),
    dtypes=STREAMED_DTYPES,
    selected_by=("part",),
    reads="operands",
    example="pipewave predict hyper_connection 4096 7168 --gpu B200",
)

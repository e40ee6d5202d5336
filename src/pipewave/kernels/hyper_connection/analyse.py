"""Manifold-constrained hyper-connections (DeepSeek-V4): `mult` residual streams mixed to one and back.

`pre` norms the streams of a token, projects them to mult² + 2·mult coefficients, makes the square part doubly
stochastic by Sinkhorn steps and sums the streams; `post` writes streams mixed by it with the layer's output added.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pipewave.calls.dtypes import ACTIVATION_BYTES, STREAMED_DTYPES
from pipewave.calls.operators import HyperConnection
from pipewave.kernels.base import Analysis, Columns, Context, Family
from pipewave.kernels.stages import Stage, Stages, in_units_of
from pipewave.kernels.streaming.stream import Stream
from pipewave.physics.demand import Array
from pipewave.physics.launch import log2

NET = "hyper_connection"
FP32 = 4.0
NO_MIXING = tuple(Stage(name, launches=0.0) for name in ("mixing", "sinkhorn"))  # both parts have the same features
STEP_S = 0.12e-6  # a Sinkhorn step: two normalisations of a small matrix, one after the other


def analyse(cols: Columns, ctx: Context) -> Analysis:
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
    return stages.analysis(_features(cols, ctx, every, before), NET)


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


FAMILY = Family(
    NET,
    HyperConnection,
    analyse,
    options=("part",),
    nets=(NET,),
    dtypes=STREAMED_DTYPES,
    selected_by=("part",),
    reads="operands",
    example="pipewave predict hyper_connection 4096 7168 --gpu B200",
)

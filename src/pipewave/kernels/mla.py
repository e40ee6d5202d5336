"""Multi-head latent attention: expanded heads in the context phase, the compressed cache in generation."""

from __future__ import annotations

import numpy as np

from pipewave.calls import Mla
from pipewave.kernels import attention_decode, attention_prefill
from pipewave.kernels.attention import least
from pipewave.kernels.attention_requests import Requests, requests_of
from pipewave.kernels.attention_shape import Heads, shape_of
from pipewave.kernels.base import Analysis, Columns, Context, Family, register
from pipewave.kernels.dtypes import ACTIVATION_BYTES, kv_bytes

CONTEXT, GENERATION = "mla_context", "mla_generation"
NOPE_DIM = 128.0
VALUE_DIM = 128.0


def expanded(cols: Columns, ctx: Context) -> Heads:
    """Every head with keys and values of its own: the fewest operations for many queries."""
    heads, window = cols["heads"], np.zeros(len(cols["heads"]))
    return Heads(heads, heads, window, NOPE_DIM + float(ctx.option("rope_dim")), VALUE_DIM, ACTIVATION_BYTES)


def latent(cols: Columns, ctx: Context) -> Heads:
    """All heads read one compressed row a token: the fewest bytes, and what a cache holds."""
    heads, rank = cols["heads"], float(ctx.option("kv_lora_rank"))
    ones, per_row = np.ones(len(heads)), kv_bytes(ctx.option("kv_dtype"), ctx.dtype)
    return Heads(heads, ones, 0.0 * ones, rank + float(ctx.option("rope_dim")), rank, per_row, latent=True)


def stays_latent(ctx: Context) -> bool:
    """Whether a context kernel works on compressed rows: SGLang's FlashAttention and Triton kernels take no others."""
    return ctx.framework == "sglang" and "trtllm" not in ctx.impl


def analyse(cols: Columns, ctx: Context) -> Analysis:
    """Demand, base estimate and features of a batch of latent-attention calls."""
    return analyse_requests(requests_of(cols), cols, ctx)


def analyse_requests(requests: Requests, cols: Columns, ctx: Context) -> Analysis:
    """The same from requests that are grouped already."""
    if ctx.option("phase") == "generation":
        shape = shape_of(requests, latent(cols, ctx))
        estimate = attention_decode.estimate(shape, ctx)
        return Analysis(least(shape, ctx), estimate.base_s, estimate.features(), GENERATION)
    shape = shape_of(requests, expanded(cols, ctx))
    done = shape_of(requests, latent(cols, ctx)) if stays_latent(ctx) else shape
    estimate = attention_prefill.estimate(done, ctx)
    return Analysis(least(shape, ctx), estimate.base_s, estimate.features(), CONTEXT)


FAMILY = register(
    Family(
        "mla",
        Mla,
        analyse,
        options=("kv_dtype", "phase", "kv_lora_rank", "rope_dim"),
        ragged=("q_lens", "kv_lens"),
        nets=(CONTEXT, GENERATION),
    )
)

"""Softmax attention over ragged batches: query tiles × KV blocks, exp throughput, K and V bytes, KV splits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipewave.calls import Attention
from pipewave.demand import Demand, demand
from pipewave.kernels import attention_decode, attention_prefill
from pipewave.kernels.attention_engines import engine_of
from pipewave.kernels.attention_requests import Requests, requests_of
from pipewave.kernels.attention_shape import Heads, Shape, shape_of
from pipewave.kernels.base import Analysis, Columns, Context, Family, register
from pipewave.kernels.dtypes import kv_bytes
from pipewave.kernels.residency import least_dram

DECODE, PREFILL = "attention_decode", "attention_prefill"


def phase(case: Mapping[str, Any]) -> str:
    """Decode when every request brings one query, else prefill (chunked and mixed batches too)."""
    return DECODE if max(case["q_lens"]) == 1 else PREFILL


def least(shape: Shape, ctx: Context) -> Demand:
    """Least work: visible pairs, K and V of the visible keys once, Q and O once.

    Tensor work counts in operations of `ctx.dtype`, so that products run in fp8 count for what they take at its rate.
    """
    gpu = ctx.gpu
    faster = gpu.peak_flops("fp8") / gpu.peak_flops(ctx.dtype) if _in_fp8(shape, ctx) else 1.0
    return demand(
        len(shape.layout.heads),
        tensor=2.0 / faster * (shape.layout.dim + shape.layout.dim_v) * shape.pairs,
        xu=shape.pairs,
        dram=least_dram(gpu, ctx.protocol, shape.cache_bytes, shape.query_bytes, shape.out_bytes),
        l2=shape.moved,
        launch=1.0,
    )


def _in_fp8(shape: Shape, ctx: Context) -> bool:
    return engine_of(ctx, int(shape.layout.dim)).fp8 and ctx.gpu.supports("fp8")


def analyse(cols: Columns, ctx: Context) -> Analysis:
    """Demand, base estimate and features of a batch of attention calls."""
    return analyse_requests(requests_of(cols), cols, ctx)


def analyse_requests(requests: Requests, cols: Columns, ctx: Context) -> Analysis:
    """The same from requests that are grouped already."""
    shape = shape_of(requests, layout_of(cols, ctx))
    net = str(ctx.option("variant", PREFILL))
    part = attention_decode if net == DECODE else attention_prefill
    estimate = part.estimate(shape, ctx)
    return Analysis(least(shape, ctx), estimate.base_s, estimate.features(), net)


def layout_of(cols: Columns, ctx: Context) -> Heads:
    """Head layout from the columns heads, kv_heads and window and the options head_dim, head_dim_v, kv_dtype, causal."""
    dim = float(ctx.option("head_dim"))
    return Heads(
        heads=cols["heads"],
        kv_heads=cols["kv_heads"],
        window=cols["window"],
        dim=dim,
        dim_v=float(ctx.option("head_dim_v") or dim),
        kv_bytes=kv_bytes(ctx.option("kv_dtype"), ctx.dtype),
        causal=bool(ctx.option("causal", True)),
    )


FAMILY = register(
    Family(
        "attention",
        Attention,
        analyse,
        options=("kv_dtype", "causal", "sinks", "head_dim", "head_dim_v"),
        ragged=("q_lens", "kv_lens"),
        variant=phase,
        nets=(DECODE, PREFILL),
    )
)

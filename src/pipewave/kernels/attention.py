"""Softmax attention over ragged batches: query tiles × KV blocks, exp throughput, K and V bytes, KV splits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipewave.calls import Attention
from pipewave.demand import Array, Demand, demand
from pipewave.kernels import attention_decode, attention_prefill
from pipewave.kernels.attention_requests import Requests, requests_of
from pipewave.kernels.attention_setting import setting_of
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

    Tensor work counts in operations of `ctx.dtype`. Over an fp8 cache the products may run in fp8 (several kernels
    quantise the queries), hence count for what they take at that rate.
    """
    gpu, layout = ctx.gpu, shape.layout
    fp8 = layout.kv_bytes == 1.0 and gpu.supports("fp8")
    faster = gpu.peak_flops("fp8") / gpu.peak_flops(ctx.dtype) if fp8 else 1.0
    return demand(
        len(shape.group),
        tensor=shape.pairs * (2.0 / faster * (layout.dim + layout.dim_v)),
        xu=shape.pairs,
        dram=least_dram(gpu, ctx.protocol, shape.cache_bytes, shape.query_bytes, shape.out_bytes),
        l2=shape.moved,
        launch=1.0,
    )


def analyse(cols: Columns, ctx: Context) -> Analysis:
    """Demand, base estimate and features of a batch of attention calls."""
    return analyse_requests(requests_of(cols), cols, ctx)


def analyse_requests(requests: Requests, cols: Columns, ctx: Context) -> Analysis:
    """The same from requests that are grouped already."""
    options = dict(ctx.options)
    layout = _layout(cols, ctx, options)
    net = str(options.get("variant", PREFILL))
    return analyse_shape(shape_of(requests, layout), ctx, net, attention_decode if net == DECODE else attention_prefill)


def analyse_shape(shape: Shape, ctx: Context, net: str, part: Any, done: Shape | None = None) -> Analysis:
    """Analysis from sizes. `done`: what the implementation does, where that is not the least."""
    layout = (done or shape).layout
    setting = setting_of(ctx, int(layout.dim), layout.kv_bytes, layout.causal)
    estimate = part.estimate(done or shape, setting)
    return Analysis(least(shape, ctx), estimate.base_s, estimate.features(setting), net)


def _layout(cols: Columns, ctx: Context, options: Mapping[str, Any]) -> Heads:
    """Head layout from the columns heads, kv_heads, window and the options head_dim, head_dim_v, kv_dtype, causal."""
    dim = float(options["head_dim"])
    window: Array = cols["window"]
    return Heads(
        heads=cols["heads"],
        kv_heads=cols["kv_heads"],
        window=window if window.any() else None,
        dim=dim,
        dim_v=float(options.get("head_dim_v") or _value_dim(ctx, dim)),
        kv_bytes=kv_bytes(options.get("kv_dtype"), ctx.dtype),
        q_bytes=kv_bytes(None, ctx.dtype),
        causal=bool(options.get("causal", True)),
    )


def _value_dim(ctx: Context, dim: float) -> float:
    """Width of values when the call names none. SGLang's rows of 192-wide heads stream values of 128 (MiMo's heads)."""
    return 128.0 if dim == 192.0 and ctx.framework == "sglang" else dim


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

"""Softmax attention over ragged batches: query tiles × KV blocks, exp throughput, K and V bytes, KV splits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipewave.calls import Attention
from pipewave.demand import Array, Demand, demand
from pipewave.kernels import attention_decode, attention_prefill
from pipewave.kernels.attention_requests import Requests, requests_of
from pipewave.kernels.attention_setting import Estimate, Setting, setting_of
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
        len(shape.requests.starts),
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
    layout = _layout(requests, cols, ctx, options)
    net = str(options.get("variant", PREFILL))
    estimate = attention_decode.estimate if net == DECODE else attention_prefill.estimate
    shape = shape_of(requests, layout)
    plain = analyse_shape(shape, ctx, net, estimate)
    softcap = cols.get("softcap")
    return plain if softcap is None or not softcap.any() else _capped(plain, shape, softcap > 0, ctx)


def _capped(plain: Analysis, shape: Shape, capped: NDArray[np.bool_], ctx: Context) -> Analysis:
    """With a tanh for every score, on the unit that exponentiates; no measured row has one, so the net adds nothing."""
    gpu = ctx.gpu
    tanhs = capped * shape.pairs
    seconds = tanhs / (gpu.xu_per_clk_per_sm * gpu.sms * gpu.sustained_clock_mhz * 1e6)
    work = plain.demand + demand(len(capped), xu=tanhs)
    return replace(plain, demand=work, base_s=plain.base_s + seconds)


def analyse_shape(
    shape: Shape, ctx: Context, net: str, estimate: Callable[[Shape, Setting], Estimate], done: Shape | None = None
) -> Analysis:
    """Analysis from sizes. `done`: what the implementation does, where that is not the least."""
    setting = setting_of(ctx, (done or shape).layout)
    found = estimate(done or shape, setting)
    return Analysis(least(shape, ctx), found.base(), found.features(setting), net)


def _layout(requests: Requests, cols: Columns, ctx: Context, options: Mapping[str, Any]) -> Heads:
    """Head layout from the columns heads, kv_heads, window and the options head_dim, head_dim_v, kv_dtype, causal."""
    dim = float(options["head_dim"])
    window: Array = cols["window"]
    return Heads(
        heads=requests.per_call(cols["heads"]),
        kv_heads=requests.per_call(cols["kv_heads"]),
        window=requests.per_call(window) if window.any() else None,
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

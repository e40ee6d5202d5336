"""Softmax attention over ragged batches, plain and latent: least work, base estimate, and features for their nets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pipewave.calls.dtypes import ACTIVATION_BYTES, kv_bytes
from pipewave.kernels.attention import decode as attention_decode
from pipewave.kernels.attention import prefill as attention_prefill
from pipewave.kernels.attention.setting import AttentionSetting, Estimate, setting_of
from pipewave.kernels.attention.software import engine_of
from pipewave.kernels.attention.tasks import (
    Alike,
    Amount,
    AnyRequests,
    Heads,
    Requests,
    Shape,
    requests_of,
    requests_of_one,
    shape_of,
)
from pipewave.kernels.base import Analysis, Columns, Context, Sketch
from pipewave.physics.arith import Arith
from pipewave.physics.cache import least_dram
from pipewave.physics.power import Work
from pipewave.software.rules import constant

DECODE, PREFILL = "attention_decode", "attention_prefill"


def phase(case: Mapping[str, Any]) -> str:
    """Decode when every request brings one query, else prefill; an encoder of one token has no cache to walk."""
    alone = not case.get("causal", True) and max(case["kv_lens"]) == 1
    return DECODE if max(case["q_lens"]) == 1 and not alone else PREFILL


def analyse(cols: Columns, ctx: Context, requests: Requests | None = None) -> Analysis:
    """Demand, base estimate and features of a batch of attention calls; `requests` where they are grouped already."""
    requests = requests or requests_of(cols)
    heads, kv_heads = requests.per_call(cols["heads"]), requests.per_call(cols["kv_heads"])
    window, softcap = (
        requests.per_call(cols[name]) if name in cols and cols[name].any() else None for name in ("window", "softcap")
    )
    return _sketched(requests, heads, kv_heads, window, softcap, ctx).analysis(requests.calls)


def one(case: Mapping[str, Any], ctx: Context) -> Sketch:
    """The same of one call."""
    return _of_one(requests_of_one(case["q_lens"], case["kv_lens"]), case, ctx)


def alike(case: Mapping[str, Any], ctx: Context, numbers: Sequence[Any], xp: Arith) -> Sketch:
    """The same of one call whose requests are alike; `numbers`: new tokens and keys of each, and how many there are."""
    q, kv, requests = numbers
    return _of_one(Alike(q, kv, requests, xp), case, ctx)


def _of_one(requests: AnyRequests, case: Mapping[str, Any], ctx: Context) -> Sketch:
    window, softcap = float(case.get("window") or 0.0) or None, float(case.get("softcap") or 0.0) or None
    return _sketched(requests, float(case["heads"]), float(case["kv_heads"]), window, softcap, ctx)


def _sketched(
    requests: AnyRequests, heads: Amount, kv_heads: Amount, window: Amount, softcap: Amount, ctx: Context
) -> Sketch:
    """From amounts of each call; no window and no softcap are None, or 0 in some calls of many."""
    options = dict(ctx.options)
    net, dim = str(options.get("variant", PREFILL)), float(options["head_dim"])
    layout = Heads(
        heads=heads,
        kv_heads=kv_heads,
        window=window,
        dim=dim,
        dim_v=float(
            options.get("head_dim_v") or constant("attention_value_dim", framework=ctx.framework, head_dim=dim) or dim
        ),
        kv_bytes=kv_bytes(options.get("kv_dtype"), ctx.dtype),
        q_bytes=kv_bytes(None, ctx.dtype),
        causal=bool(options.get("causal", True)),
    )
    shape = shape_of(requests, layout)
    estimate = attention_decode.estimate if net == DECODE else attention_prefill.estimate
    plain = sketch_shape(shape, ctx, net, estimate)
    if softcap is None:
        return plain
    # A tanh for every score, on the unit that exponentiates; no measured row has one, so the net adds nothing.
    gpu, tanhs = ctx.gpu, (softcap > 0) * shape.pairs
    seconds = tanhs / (gpu.xu_per_clk_per_sm * gpu.sms * gpu.sustained_clock_mhz * 1e6)
    amounts = {**plain.amounts, "xu": plain.amounts["xu"] + tanhs}
    return plain._replace(amounts=amounts, base_s=plain.base_s + seconds)


def sketch_shape(
    shape: Shape,
    ctx: Context,
    net: str,
    estimate: Callable[[Shape, AttentionSetting], Estimate],
    done: Shape | None = None,
) -> Sketch:
    """Analysis from sizes. `done`: what the implementation does, where that is not the least."""
    real = done or shape
    setting = setting_of(ctx, real.layout)
    found = estimate(real, setting)
    alone = setting.engine.alone_decode if net == DECODE else setting.engine.alone
    flops = real.pairs * (2.0 * (real.layout.dim + real.layout.dim_v))
    work = Work(flops, real.moved * setting.missing(real.moved, real.xp), real.moved, setting.product)
    return Sketch(least(shape, ctx), found.base_s, found.features(setting, real.xp), "" if alone else net, work)


def least(shape: Shape, ctx: Context) -> dict[str, Amount]:
    """Least work: visible pairs, K and V of the visible keys once, Q and O once.

    Tensor work counts in operations of `ctx.dtype`. Over an fp8 cache the products may run in fp8 (several kernels
    quantise the queries), hence count for what they take at that rate.
    """
    gpu, layout = ctx.gpu, shape.layout
    fp8 = layout.kv_bytes == 1.0 and gpu.supports("fp8")
    faster = gpu.peak_flops("fp8") / gpu.peak_flops(ctx.dtype) if fp8 else 1.0
    return {
        "tensor": shape.pairs * (2.0 / faster * (layout.dim + layout.dim_v)),
        "dram": least_dram(gpu, ctx.protocol, shape.cache_bytes, shape.query_bytes, shape.out_bytes, xp=shape.xp),
        "l2": shape.moved,
        "xu": shape.pairs,
        "launch": 1.0,
    }


def assumed(ctx: Context) -> str:
    """Whose costs stand in for those of a kernel that nobody measured on such parts; empty where rows tell."""
    alone = engine_of(ctx, int(ctx.option("head_dim"))).alone
    where, other = ctx.gpu.architecture, alone.borrowed_from.get(ctx.gpu.architecture) if alone else None
    if other is None or ctx.option("variant") == DECODE:
        return ""
    return f"no rows of {ctx.impl} on {where} parts: it takes the cycles measured on {other}"


# Multi-head latent attention: expanded heads in the context phase, the compressed cache in generation.

CONTEXT, GENERATION = "mla_context", "mla_generation"
NOPE_DIM = VALUE_DIM = 128.0  # qk_nope_head_dim and v_head_dim of DeepSeek V2 and V3


def analyse_mla(cols: Columns, ctx: Context, requests: Requests | None = None) -> Analysis:
    """Demand, base estimate and features of a batch of latent-attention calls.

    Heads with keys and values of their own take the fewest operations for many queries; one compressed row a token that
    all heads read takes the fewest bytes, and is what a cache holds. Some context kernels work on such rows, too.
    """
    requests = requests or requests_of(cols)
    heads, rope, rank = (
        requests.per_call(cols["heads"]),
        float(ctx.option("rope_dim")),
        float(ctx.option("kv_lora_rank")),
    )
    cached = kv_bytes(ctx.option("kv_dtype"), ctx.dtype)
    latent = Heads(heads, 1.0, None, rank + rope, rank, cached, ACTIVATION_BYTES, latent=True)
    if ctx.option("phase") == "generation":
        found = sketch_shape(shape_of(requests, latent), ctx, GENERATION, attention_decode.estimate)
    else:
        expanded = Heads(heads, heads, None, NOPE_DIM + rope, VALUE_DIM, ACTIVATION_BYTES, ACTIVATION_BYTES)
        done = shape_of(requests, latent) if ctx.rule("mla_stays_latent") else None
        found = sketch_shape(shape_of(requests, expanded), ctx, CONTEXT, attention_prefill.estimate, done)
    return found.analysis(requests.calls)

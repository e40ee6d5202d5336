"""The attention family: analysis of calls, and features for its nets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from pipewave.calls.dtypes import ATTENTION_DTYPES, kv_bytes
from pipewave.calls.families import Attention
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
from pipewave.kernels.base import Analysis, Columns, Context, Family, Sketch
from pipewave.physics.arith import Arith
from pipewave.physics.cache import least_dram
from pipewave.physics.energy import Work
from pipewave.software.rules import constant

DECODE, PREFILL = "attention_decode", "attention_prefill"


def phase(case: Mapping[str, Any]) -> str:
    """Decode when every request brings one query, else prefill (chunked and mixed batches too).

    An encoder that sees one token has no cache to walk: the kernel is that of its other lengths.
    """
    alone = not case.get("causal", True) and max(case["kv_lens"]) == 1
    return DECODE if max(case["q_lens"]) == 1 and not alone else PREFILL


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


def analyse(cols: Columns, ctx: Context) -> Analysis:
    """Demand, base estimate and features of a batch of attention calls."""
    return analyse_requests(requests_of(cols), cols, ctx)


def analyse_requests(requests: Requests, cols: Columns, ctx: Context) -> Analysis:
    """The same from requests that are grouped already."""
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
    net = str(options.get("variant", PREFILL))
    estimate = attention_decode.estimate if net == DECODE else attention_prefill.estimate
    shape = shape_of(requests, _layout(heads, kv_heads, window, ctx, options))
    plain = sketch_shape(shape, ctx, net, estimate)
    return plain if softcap is None else _capped(plain, shape, softcap > 0, ctx)


def _capped(plain: Sketch, shape: Shape, capped: Any, ctx: Context) -> Sketch:
    """With a tanh for every score, on the unit that exponentiates; no measured row has one, so the net adds nothing."""
    gpu = ctx.gpu
    tanhs = capped * shape.pairs
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
    taught = "" if alone else net
    return Sketch(least(shape, ctx), found.base_s, found.features(setting, real.xp), taught, work(real, setting))


def work(shape: Shape, setting: AttentionSetting) -> Work:
    """What an implementation does: every visible pair is multiplied twice; Q, K, V and O pass the L2 once."""
    layout = shape.layout
    flops = shape.pairs * (2.0 * (layout.dim + layout.dim_v))
    return Work(flops, shape.moved * setting.missing(shape.moved, shape.xp), shape.moved, setting.product)


def _layout(heads: Amount, kv_heads: Amount, window: Amount, ctx: Context, options: Mapping[str, Any]) -> Heads:
    """Head layout from amounts and the options head_dim, head_dim_v, kv_dtype, causal."""
    dim = float(options["head_dim"])
    return Heads(
        heads=heads,
        kv_heads=kv_heads,
        window=window,
        dim=dim,
        dim_v=float(options.get("head_dim_v") or _value_dim(ctx.framework, dim)),
        kv_bytes=kv_bytes(options.get("kv_dtype"), ctx.dtype),
        q_bytes=kv_bytes(None, ctx.dtype),
        causal=bool(options.get("causal", True)),
    )


@lru_cache(maxsize=256)
def _value_dim(framework: str, dim: float) -> float:
    """Width of values when the call names none."""
    return float(constant("attention_value_dim", framework=framework, head_dim=dim) or dim)


def assumed(ctx: Context) -> str:
    """Whose costs stand in for those of a kernel that nobody measured on such parts; empty where rows tell."""
    alone = engine_of(ctx, int(ctx.option("head_dim"))).alone
    if alone is None or ctx.option("variant") == DECODE or not alone.borrowed_from:
        return ""
    where, other = ctx.gpu.architecture, alone.borrowed_from
    return f"no rows of {ctx.impl} on {where} parts: it takes the cycles measured on {other}"


FAMILY = Family(
    "attention",
    Attention,
    analyse,
    options=("kv_dtype", "causal", "sinks", "head_dim", "head_dim_v", "page_size"),
    ragged=("q_lens", "kv_lens"),
    variant=phase,
    nets=(DECODE, PREFILL),
    one=one,
    alike=alike,
    dtypes=ATTENTION_DTYPES,
    selected_by=("kv_dtype", "head_dim", "causal"),
    example="pipewave predict attention 3500*8 3500*8 40 8 128 --gpu H100",
    metadata="pipewave.kernels.attention.metadata:ATTENTION",
    reads="operands",
    assumed=assumed,
)

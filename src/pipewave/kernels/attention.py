"""Softmax attention over ragged batches: query tiles × KV blocks, exp throughput, K and V bytes, KV splits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pipewave.calls import Attention
from pipewave.demand import Array, Demand, demand
from pipewave.kernels.base import Analysis, Columns, Context, Family, Ragged, register
from pipewave.kernels.dtypes import ACTIVATION_BYTES, kv_bytes
from pipewave.kernels.estimate import combine, launch_s, log2
from pipewave.kernels.residency import least_dram

DECODE, PREFILL = "attention_decode", "attention_prefill"


def phase(case: Mapping[str, Any]) -> str:
    """Decode when every request brings one query, else prefill (chunked and mixed batches too)."""
    return DECODE if max(case["q_lens"]) == 1 else PREFILL


def visible_pairs(q: Array, kv: Array, window: Array, causal: bool) -> Array:
    """Query-key pairs a request must score. `window` keys at most per query; 0 means all."""
    full = q * kv - (q * (q - 1) / 2 if causal else 0.0)
    reach = np.where(window > 0, np.minimum(window, kv), kv)
    if not causal:
        return np.minimum(full, q * reach)
    short = np.clip(reach - (kv - q), 0.0, q)  # first queries still see fewer keys than the window
    first = kv - q + 1
    return np.where(window > 0, short * first + short * (short - 1) / 2 + (q - short) * reach, full)


def least(cols: Columns, ctx: Context) -> Demand:
    """Least work: visible pairs, K and V of the visible keys once, Q and O once."""
    q, kv = cols["q_lens"], cols["kv_lens"]
    causal = bool(ctx.option("causal", True))
    window = cols["window"][q.owner]
    pairs = q.sum(visible_pairs(q.values, kv.values, window, causal))
    seen = np.where(window > 0, np.minimum(kv.values, window + q.values - 1), kv.values)
    heads, kv_heads, dim, dim_v = cols["heads"], cols["kv_heads"], cols["head_dim"], cols["head_dim_v"]
    cache = kv_bytes(ctx.option("kv_dtype"), ctx.dtype) * q.sum(seen) * kv_heads * (dim + dim_v)
    queries = ACTIVATION_BYTES * q.sum(q.values) * heads * dim
    out = ACTIVATION_BYTES * q.sum(q.values) * heads * dim_v
    dram = least_dram(ctx.gpu, ctx.protocol, cache, queries, out)
    return demand(
        len(heads),
        tensor=2.0 * pairs * heads * (dim + dim_v),
        xu=pairs * heads,
        dram=dram,
        l2=cache + queries + out,
        launch=1.0,
    )


def analyse(cols: Columns, ctx: Context) -> Analysis:
    """Demand, base estimate and features of a batch of attention calls."""
    filled = dict(cols) | {"head_dim_v": np.where(cols["head_dim_v"] > 0, cols["head_dim_v"], cols["head_dim"])}
    work = least(filled, ctx)
    seconds = work.seconds(ctx.gpu, ctx.dtype)
    base = launch_s(ctx.gpu) + combine(seconds[0] / 0.6 + seconds[5], work.dram / (0.8e9 * ctx.gpu.dram_gbps))
    q: Ragged = cols["q_lens"]
    features = {"tensor": log2(work.tensor), "dram": log2(work.dram), "batch": log2(q.lengths.astype(float))}
    return Analysis(work, base, features, str(ctx.option("variant", PREFILL)))


FAMILY = register(
    Family(
        "attention",
        Attention,
        analyse,
        options=("kv_dtype", "causal", "sinks"),
        ragged=("q_lens", "kv_lens"),
        variant=phase,
        nets=(DECODE, PREFILL),
    )
)

"""Multi-head latent attention: expanded heads in the context phase, the compressed cache in generation."""

from __future__ import annotations

from pipewave.calls import Mla
from pipewave.demand import Demand, demand
from pipewave.kernels.attention import visible_pairs
from pipewave.kernels.base import Analysis, Columns, Context, Family, register
from pipewave.kernels.dtypes import ACTIVATION_BYTES, kv_bytes
from pipewave.kernels.estimate import combine, launch_s, log2
from pipewave.kernels.residency import least_dram

NOPE_DIM = 128.0
VALUE_DIM = 128.0


def least(cols: Columns, ctx: Context) -> Demand:
    """Least work of either phase; in generation all heads share one compressed key-value row per token."""
    q, kv, heads = cols["q_lens"], cols["kv_lens"], cols["heads"]
    rank, rope = cols["kv_lora_rank"], cols["rope_dim"]
    pairs = q.sum(visible_pairs(q.values, kv.values, 0.0 * q.values, True))
    tokens, cached = q.sum(q.values), q.sum(kv.values)
    per_row = kv_bytes(ctx.option("kv_dtype"), ctx.dtype)
    if ctx.option("phase") == "context":
        key, value = NOPE_DIM + rope, VALUE_DIM + 0.0 * rope
        cache = ACTIVATION_BYTES * cached * heads * (NOPE_DIM + VALUE_DIM) + ACTIVATION_BYTES * cached * rope
    else:
        key, value = rank + rope, rank
        cache = per_row * cached * (rank + rope)
    queries, out = ACTIVATION_BYTES * tokens * heads * key, ACTIVATION_BYTES * tokens * heads * value
    return demand(
        len(heads),
        tensor=2.0 * pairs * heads * (key + value),
        xu=pairs * heads,
        dram=least_dram(ctx.gpu, ctx.protocol, cache, queries, out),
        l2=cache + queries + out,
        launch=1.0,
    )


def analyse(cols: Columns, ctx: Context) -> Analysis:
    """Demand, base estimate and features of a batch of latent-attention calls."""
    work = least(cols, ctx)
    seconds = work.seconds(ctx.gpu, ctx.dtype)
    base = launch_s(ctx.gpu) + combine(seconds[0] / 0.6 + seconds[5], work.dram / (0.8e9 * ctx.gpu.dram_gbps))
    features = {"tensor": log2(work.tensor), "dram": log2(work.dram)}
    return Analysis(work, base, features, f"mla_{ctx.option('phase')}")


FAMILY = register(
    Family(
        "mla",
        Mla,
        analyse,
        options=("kv_dtype", "phase"),
        ragged=("q_lens", "kv_lens"),
        nets=("mla_context", "mla_generation"),
    )
)

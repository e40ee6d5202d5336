"""Multi-head latent attention: expanded heads in the context phase, the compressed cache in generation."""

from __future__ import annotations

from pipewave.calls.dtypes import ACTIVATION_BYTES, ATTENTION_DTYPES, kv_bytes
from pipewave.calls.families import Mla
from pipewave.kernels.attention import decode as attention_decode
from pipewave.kernels.attention import prefill as attention_prefill
from pipewave.kernels.attention.family import sketch_shape
from pipewave.kernels.attention.tasks import Amount, Heads, Requests, requests_of, shape_of
from pipewave.kernels.base import Analysis, Columns, Context, Family

CONTEXT, GENERATION = "mla_context", "mla_generation"
NOPE_DIM = 128.0
VALUE_DIM = 128.0


def expanded(heads: Amount, ctx: Context) -> Heads:
    """Every head with keys and values of its own: the fewest operations for many queries."""
    return Heads(
        heads, heads, None, NOPE_DIM + float(ctx.option("rope_dim")), VALUE_DIM, ACTIVATION_BYTES, ACTIVATION_BYTES
    )


def latent(heads: Amount, ctx: Context) -> Heads:
    """All heads read one compressed row a token: the fewest bytes, and what a cache holds."""
    rank = float(ctx.option("kv_lora_rank"))
    cached, dim = kv_bytes(ctx.option("kv_dtype"), ctx.dtype), rank + float(ctx.option("rope_dim"))
    return Heads(heads, heads / heads, None, dim, rank, cached, ACTIVATION_BYTES, latent=True)


def stays_latent(ctx: Context) -> bool:
    """Whether a context kernel works on compressed rows."""
    return bool(ctx.rule("mla_stays_latent"))


def analyse(cols: Columns, ctx: Context) -> Analysis:
    """Demand, base estimate and features of a batch of latent-attention calls."""
    return analyse_requests(requests_of(cols), cols, ctx)


def analyse_requests(requests: Requests, cols: Columns, ctx: Context) -> Analysis:
    """The same from requests that are grouped already."""
    heads = requests.per_call(cols["heads"])
    if ctx.option("phase") == "generation":
        shape = shape_of(requests, latent(heads, ctx))
        return sketch_shape(shape, ctx, GENERATION, attention_decode.estimate).analysis(requests.calls)
    shape = shape_of(requests, expanded(heads, ctx))
    done = shape_of(requests, latent(heads, ctx)) if stays_latent(ctx) else None
    return sketch_shape(shape, ctx, CONTEXT, attention_prefill.estimate, done).analysis(requests.calls)


FAMILY = Family(
    "mla",
    Mla,
    analyse,
    options=("kv_dtype", "phase", "kv_lora_rank", "rope_dim"),
    ragged=("q_lens", "kv_lens"),
    nets=(CONTEXT, GENERATION),
    dtypes=ATTENTION_DTYPES,
    example="pipewave predict mla 1*16 4096*16 128 generation --gpu H200",
    metadata="pipewave.kernels.attention.metadata:MLA",
    reads="operands",
)

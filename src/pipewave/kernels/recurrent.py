"""Layers that carry a state from token to token: delta nets, the short convolution before them, Mamba 2."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipewave.calls.dtypes import ACTIVATION_BYTES
from pipewave.kernels.attention.tasks import Requests, requests_of
from pipewave.kernels.base import Analysis, Columns, Context, features_of
from pipewave.kernels.stages import Stage, Stages, in_units_of
from pipewave.kernels.streaming.stream import Stream
from pipewave.physics.demand import Array
from pipewave.physics.overlap import launch_s

STATE_BYTES = {"fp32": 4.0, "bf16": 2.0}
FP32 = 4.0
CHUNK_STEP_S = 0.6e-6  # a chunk's two dependent products, state in registers
TOKEN_STEP_S = 0.5e-6  # the same of one token in decoding


@dataclass(frozen=True, slots=True)
class Sequences:
    """Amounts per call."""

    batch: Array  # requests
    tokens: Array  # new ones of all requests
    longest: Array  # of the longest request
    chunks: Array  # of all requests
    longest_chunks: Array

    @property
    def full(self) -> Array:
        """Requests as long as the longest that make up the same work."""
        return self.chunks / self.longest_chunks

    def features(self, ctx: Context) -> dict[str, Any]:
        """Sizes every operator over sequences tells its net."""
        return features_of("sequences", ctx, **{name: getattr(self, name) for name in self.__slots__})


def sequences(requests: Requests, chunk: float | Array) -> Sequences:
    """Counts of a batch that is cut into chunks of `chunk` tokens, of each call or of all."""
    chunks = np.ceil(requests.q / requests.spread(chunk))
    tokens, longest = requests.total(requests.q), requests.largest(requests.q)
    amounts = (requests.batch, tokens, longest, requests.total(chunks), requests.largest(chunks))
    return Sequences(*map(requests.column, amounts))


def scanned(ctx: Context) -> bool:
    """Whether calls bring prompts, not tokens one by one."""
    return bool(ctx.option("phase", "context") == "context")


# Gated delta net and Kimi delta attention: S ← decay·S + k (β(v − Sᵀk))ᵀ, y = Sᵀq, one state of dk × dv a value head.
#
# Prompts run chunk by chunk in the WY form (Yang et al., 2024, arXiv:2406.06484): products inside each chunk and the
# solution of a triangular system, then a scan over the chunks' states, then outputs. Decoding reads and writes every
# state once; a verification step writes one state a token, so that rejected tokens can be forgotten.

CHUNK = 64.0
VALUE_BLOCK = 64.0  # values of a head that one block of the scan carries
WALK_CLOCKS = 6000.0  # of a chunk where one block walks them in order: 3.0 to 3.2 µs on H100 and H200
WALK_START_S = 9e-6
PASSES = 4  # kernels that share what a scan leaves between them


@dataclass(frozen=True, slots=True)
class Heads:
    """Amounts per call."""

    k: Array  # key heads
    v: Array  # value heads
    dim_k: Array  # their widths
    dim_v: Array
    state: Array  # bytes of a request's states
    inputs: Array  # bytes of a token's inputs
    out: Array  # and outputs


def heads_of(cols: Columns, ctx: Context) -> Heads:
    """Queries and keys of `k` heads, values of `v`, β, and decays in fp32: one a head (gdn) or a channel (kda)."""
    k, v, dk, dv = (cols[name] for name in ("k_heads", "v_heads", "head_k_dim", "head_v_dim"))
    decays = v * (dk if ctx.option("kind") == "kda" else 1.0)
    inputs = ACTIVATION_BYTES * (2.0 * k * dk + v * dv + v) + FP32 * decays
    state = STATE_BYTES[ctx.option("state_dtype", "fp32")] * v * dk * dv
    return Heads(k, v, dk, dv, state, inputs, ACTIVATION_BYTES * v * dv)


def net_of(case: Mapping[str, Any]) -> str:
    """The net of a call: kernels of the two kinds are made by others, and so are scans and steps."""
    part = "context" if case.get("phase", "context") == "context" else "step"
    return f"{case.get('kind', 'gdn')}_{part}"


def analyse_delta_net(cols: Columns, ctx: Context, requests: Requests | None = None) -> Analysis:
    """Demand, base estimate and features of a batch; `requests` where they are grouped already."""
    seqs, heads = sequences(requests or requests_of(cols), CHUNK), heads_of(cols, ctx)
    read, out, states = seqs.tokens * heads.inputs, seqs.tokens * heads.out, seqs.batch * heads.state
    if scanned(ctx):
        border = Stream(0.0 * read, read, out + states)
        parts = scan(ctx, seqs, heads) if ctx.rule("delta_scan") == "beside" else walk(ctx, seqs, heads, border)
        # Through the state three products a token; a prompt shorter than a key is wide may do with pairs of tokens.
        fewest = np.minimum(seqs.longest / (2.0 * heads.dim_k), 1.0)
        least = in_units_of(ctx, 6.0 * seqs.tokens * heads.v * heads.dim_k * heads.dim_v * fewest, "bf16")
    else:  # one state in, one out for each token that may turn out to be the last accepted
        kept = seqs.tokens if ctx.option("phase") == "verify" else seqs.batch
        border, least = Stream(states, read, kept * heads.state + out, in_place=True), 0.0
        blocks, chain_s = seqs.batch * heads.v * np.ceil(heads.dim_v / 32.0), TOKEN_STEP_S * seqs.longest
        parts = (Stage("steps", fresh=states, read=read, written=border.written, blocks=blocks, chain_s=chain_s),)
    stages = Stages(ctx, len(read), parts, border, least)
    per_sm = seqs.batch * heads.v / ctx.gpu.sms
    features = seqs.features(ctx) | features_of("delta_net", ctx, heads=heads, per_sm=per_sm, states=states)
    return stages.analysis(features, net_of(dict(ctx.options)))


def scan(ctx: Context, seqs: Sequences, heads: Heads) -> tuple[Stage, ...]:
    """Chunks in parallel, then their states in order, then outputs in parallel."""
    dk, dv, pairs = heads.dim_k, heads.dim_v, CHUNK * seqs.chunks * heads.v  # rows of all chunks and heads
    w, u = (ACTIVATION_BYTES * seqs.tokens * heads.v * dim for dim in (dk, dv))
    keys, kept = ACTIVATION_BYTES * seqs.tokens * heads.k * dk, seqs.batch * heads.state
    states = ACTIVATION_BYTES * seqs.chunks * heads.v * dk * dv  # kept in 16 bits between the chunks
    blocks, flops = seqs.chunks * heads.v, ctx.rule("delta_flops")
    inside, outputs = 2.0 * pairs * CHUNK * (2.0 * dk + dv + CHUNK), 2.0 * pairs * (CHUNK * (dk + dv) + dk * dv)
    carried, through = seqs.full * heads.v * np.ceil(dv / VALUE_BLOCK), 4.0 * pairs * dk * dv
    # What the kernels leave one another beside keys, values and states, written and read once more each.
    each = ctx.rule("delta_between")
    between = each * seqs.tokens * heads.v * dk / PASSES
    return (
        Stage("inside", inside, cycles=inside / flops, read=keys + u, written=w + u, blocks=blocks, launches=4.0),
        *((Stage("inside", read=between, written=between),) * PASSES if each else ()),
        Stage(
            "scan",
            through,
            cycles=through / flops,
            read=w + u + keys + kept,
            written=u + states + kept,
            blocks=carried,
            chain_s=CHUNK_STEP_S * seqs.longest_chunks * np.ceil(carried / (2.0 * ctx.gpu.sms)),
        ),
        Stage("outputs", outputs, cycles=outputs / flops, read=2.0 * keys + u + states, written=u, blocks=blocks),
    )


def walk(ctx: Context, seqs: Sequences, heads: Heads, border: Stream) -> tuple[Stage, ...]:
    """One block a request and value head walks the chunks: as long as the longest request, times waves of blocks."""
    blocks = seqs.full * heads.v
    chunk_s = WALK_CLOCKS / (1e6 * ctx.gpu.boost_clock_mhz)
    chain_s = WALK_START_S + chunk_s * seqs.longest_chunks * np.ceil(blocks / ctx.gpu.sms)
    walked = Stage("scan", read=border.read, written=border.written, blocks=blocks, chain_s=chain_s)
    return Stage("inside", launches=0.0), walked, Stage("outputs", launches=0.0)


# The short causal convolution before a state-space layer: a few multiply-adds a value, so memory and starts decide.

CONV = "causal_conv1d"
VALUE_CYCLES = 0.38  # clocks of an SM a value: 0.38 to 0.43 in rows of H100, H200, B200 and GB200, whose DRAM idles
# Clocks of an SM a value of a block of threads that takes one channel of one request, whether its chunk is full or not,
# once and for each chunk; as many as once more where the request's tokens are no multiple of 8 (read one by one).
# From rows of H100 and H200: 224 clocks for up to 512 tokens, 154 for every 512 more.
BLOCK_CYCLES, CHUNK_CYCLES, VECTOR = 0.137, 0.30, 8.0
ROWS = 8.0  # tokens that a block walks at most: vLLM's and SGLang's Triton kernel


def analyse_conv(cols: Columns, ctx: Context, requests: Requests | None = None) -> Analysis:
    """Demand, base estimate and features of a batch; `requests` where they are grouped already."""
    requests = requests or requests_of(cols)
    seqs, channels = sequences(requests, ROWS), cols["channels"]
    size = ACTIVATION_BYTES * seqs.tokens * channels
    history = ACTIVATION_BYTES * seqs.batch * channels * (cols["width"] - 1.0)
    before = 0.0 * history if scanned(ctx) else history
    chunk = ctx.rule("conv_chunk", scanned=scanned(ctx))
    if chunk:  # each block of a channel has a request
        each = BLOCK_CYCLES * (1.0 + (requests.q % VECTOR > 0.0)) + CHUNK_CYCLES * np.ceil(requests.q / chunk)
        cycles = channels * requests.column(chunk * requests.total(each))
    else:
        cycles = channels * VALUE_CYCLES * seqs.tokens
    blocks = seqs.batch * channels if chunk else seqs.chunks * np.ceil(channels / 256.0)
    more = launch_s(ctx.gpu) * (cols["branches"] - 1.0)  # each branch is a kernel of its own
    moving = Stage("stream", fresh=before, read=size, written=size + history, blocks=blocks, cycles=cycles)
    parts = (moving, Stage("branches", chain_s=more, launches=0.0))
    # Results may be written over the inputs, so no row has to leave more than it brought.
    border = Stream(before, size, size + history, in_place=True)
    stages = Stages(ctx, len(size), parts, border, 0.0)
    named = {name: cols[name] for name in ("channels", "branches")}
    return stages.analysis(seqs.features(ctx) | features_of(CONV, ctx, size=size, **named), CONV)


# Mamba 2's selective scan in chunks (state-space duality; Dao & Gu, 2024, arXiv:2405.21060, section 6).
#
# Per head a state of `head_dim` × `state_dim`; B and C are shared by the heads of a group. No rows of it are public:
# the estimate is physics alone, with the wide interval of a family without a net.


def analyse_mamba2(cols: Columns, ctx: Context, requests: Requests | None = None) -> Analysis:
    """Demand and base estimate of a batch; `requests` where they are grouped already."""
    seqs = sequences(requests or requests_of(cols), cols["chunk"])
    heads, dim, width, groups = (cols[name] for name in ("heads", "head_dim", "state_dim", "groups"))
    states = STATE_BYTES[ctx.option("state_dtype", "fp32")] * heads * dim * width
    x = ACTIVATION_BYTES * seqs.tokens * heads * dim  # and y, which is as large
    shared = 2.0 * ACTIVATION_BYTES * seqs.tokens * groups * width  # B and C
    read = x + shared + ACTIVATION_BYTES * seqs.tokens * heads  # and the time steps
    if scanned(ctx):
        parts = _chunks(cols, ctx, seqs, (x, shared, read - x), states)
        border = Stream(0.0 * x, read, x + seqs.batch * states)
        least = 4.0 * seqs.tokens * heads * dim * width * np.minimum(seqs.longest / (2.0 * width), 1.0)
    else:
        kept = seqs.tokens if ctx.option("phase") == "verify" else seqs.batch
        border, least = Stream(seqs.batch * states, read, x + kept * states, in_place=True), 0.0 * x
        moved = {"fresh": border.fresh, "read": read, "written": border.written}
        parts = (Stage("steps", **moved, chain_s=TOKEN_STEP_S * seqs.longest),)
    stages = Stages(ctx, len(x), parts, border, in_units_of(ctx, least, "bf16"))
    return stages.analysis(seqs.features(ctx), "mamba2")


def _chunks(
    cols: Columns, ctx: Context, seqs: Sequences, moved: tuple[Array, Array, Array], states: Array
) -> tuple[Stage, ...]:
    """Products inside chunks, their states, a scan over these, outputs. `moved`: bytes of x, of what the heads of a
    group share, and of that with the time steps.
    """
    x, shared, scores = moved
    heads, dim, width, groups, chunk = (cols[name] for name in ("heads", "head_dim", "state_dim", "groups", "chunk"))
    rows, kept = chunk * seqs.chunks, FP32 * seqs.chunks * heads * dim * width
    blocks, pairs = seqs.chunks * heads, FP32 * rows * chunk * groups
    inside, carried = 2.0 * rows * chunk * groups * width, 2.0 * rows * heads * dim * width
    outputs, flops = 2.0 * rows * heads * dim * (chunk + width), ctx.rule("delta_flops")
    few = {"blocks": seqs.chunks * groups, "launches": 2.0}
    return (
        Stage("inside", inside, cycles=inside / flops, read=scores, written=pairs, **few),
        Stage("states", carried, cycles=carried / flops, read=x + shared, written=kept, blocks=blocks),
        Stage("scan", read=kept, written=kept + seqs.batch * states, chain_s=CHUNK_STEP_S * seqs.longest_chunks),
        Stage("outputs", outputs, cycles=outputs / flops, read=x + shared + kept, written=x, blocks=blocks),
    )

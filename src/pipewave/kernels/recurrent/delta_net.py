"""Gated delta net and Kimi delta attention: S ← decay·S + k (β(v − Sᵀk))ᵀ, y = Sᵀq, one state of dk × dv a value head.

Prompts run chunk by chunk in the WY form (Yang et al., 2024, arXiv:2406.06484): products inside each chunk and the
solution of a triangular system, then a scan over the chunks' states, then outputs. Decoding reads and writes every
state once; a verification step writes one state a token, so that rejected tokens can be forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipewave.calls.dtypes import ACTIVATION_BYTES, ATTENTION_DTYPES
from pipewave.calls.operators import DeltaNet
from pipewave.kernels.attention.tasks import Requests, requests_of
from pipewave.kernels.base import Analysis, Columns, Context, Family
from pipewave.kernels.stages import Stage, Stages, elementwise, in_units_of
from pipewave.kernels.streaming.stream import Stream
from pipewave.physics.demand import Array
from pipewave.physics.launch import log2

# Sequences of a batch of state-space calls: tokens, chunks and states, counted a call.

STATE_BYTES = {"fp32": 4.0, "bf16": 2.0}


@dataclass(frozen=True, slots=True)
class Sequences:
    """Per call: requests, new tokens of all, of the longest, and chunks of all and of the longest."""

    batch: Array
    tokens: Array
    longest: Array
    chunks: Array
    longest_chunks: Array

    def features(self) -> dict[str, Array]:
        """Sizes every operator over sequences tells its net."""
        return {
            "log_batch": np.minimum(log2(self.batch), 14.0),
            "log_tokens": np.minimum(log2(self.tokens), 22.0),
            "log_longest": np.minimum(log2(self.longest), 18.0),
            "chunk_fill": np.minimum(self.tokens / self.chunks, 256.0) / 64.0,
        }


def sequences(requests: Requests, chunk: float) -> Sequences:
    """Counts of a batch that is cut into chunks of `chunk` tokens."""
    chunks = np.ceil(requests.q / chunk)
    tokens, longest = requests.total(requests.q), requests.largest(requests.q)
    amounts = (requests.batch, tokens, longest, requests.total(chunks), requests.largest(chunks))
    return Sequences(*(np.asarray(amount, float).reshape(requests.calls) for amount in amounts))


def requests_in(cols: Columns) -> Requests:
    """The requests of columns that have no keys."""
    return requests_of({**cols, "kv_lens": cols["q_lens"]})


NETS = ("gdn_context", "gdn_step", "kda_context", "kda_step")
CHUNK = 64.0
FP32 = 4.0
VALUE_BLOCK = 64.0  # values of a head that one block of the scan carries
CHUNK_STEP_S = 0.6e-6  # a chunk's two dependent products, state in registers
WALK_CLOCKS = 6000.0  # of a chunk where one block walks them in order: 3.0 to 3.2 µs on H100 and H200
WALK_START_S = 9e-6
PASSES = 4  # kernels that share what a scan leaves between them
TOKEN_STEP_S = 0.5e-6  # the same of one token in decoding


@dataclass(frozen=True, slots=True)
class Heads:
    """Per call: key and value heads and their widths, bytes of all states of a request and of a token's inputs."""

    k: Array
    v: Array
    dim_k: Array
    dim_v: Array
    state: Array
    inputs: Array

    @property
    def out(self) -> Array:
        """Bytes a token leaves."""
        return np.asarray(ACTIVATION_BYTES * self.v * self.dim_v)


def heads_of(cols: Columns, ctx: Context) -> Heads:
    """Queries and keys of `k` heads, values of `v`, β, and decays in fp32: one a head (gdn) or a channel (kda)."""
    k, v, dk, dv = (cols[name] for name in ("k_heads", "v_heads", "head_k_dim", "head_v_dim"))
    decays = v * (dk if ctx.option("kind") == "kda" else 1.0)
    inputs = ACTIVATION_BYTES * (2.0 * k * dk + v * dv + v) + FP32 * decays
    return Heads(k, v, dk, dv, STATE_BYTES[ctx.option("state_dtype", "fp32")] * v * dk * dv, inputs)


def net_of(case: Mapping[str, Any]) -> str:
    """The net of a call: kernels of the two kinds are made by others, and so are scans and steps."""
    part = "context" if case.get("phase", "context") == "context" else "step"
    return f"{case.get('kind', 'gdn')}_{part}"


def analyse(cols: Columns, ctx: Context) -> Analysis:
    """Demand, base estimate and features of a batch."""
    return analyse_requests(requests_in(cols), cols, ctx)


def analyse_requests(requests: Requests, cols: Columns, ctx: Context) -> Analysis:
    """The same from requests that are grouped already."""
    seqs, heads = sequences(requests, CHUNK), heads_of(cols, ctx)
    scanned = ctx.option("phase", "context") == "context"
    found = _SCANS[ctx.rule("delta_scan")] if scanned else steps
    stages = found(ctx, seqs, heads)
    return stages.analysis(_features(ctx, seqs, heads), net_of(dict(ctx.options)))


def scan(ctx: Context, seqs: Sequences, heads: Heads) -> Stages:
    """Chunks in parallel, then their states in order, then outputs in parallel."""
    dk, dv, pairs = heads.dim_k, heads.dim_v, CHUNK * seqs.chunks * heads.v  # rows of all chunks and heads
    w, u = (ACTIVATION_BYTES * seqs.tokens * heads.v * dim for dim in (dk, dv))
    keys = ACTIVATION_BYTES * seqs.tokens * heads.k * dk
    states = ACTIVATION_BYTES * seqs.chunks * heads.v * dk * dv  # kept in 16 bits between the chunks
    blocks, flops = seqs.chunks * heads.v, ctx.rule("delta_flops")
    inside, outputs = 2.0 * pairs * CHUNK * (2.0 * dk + dv + CHUNK), 2.0 * pairs * (CHUNK * (dk + dv) + dk * dv)
    full = seqs.chunks / seqs.longest_chunks  # requests as long as the longest that make up the same work
    carried = full * heads.v * np.ceil(dv / VALUE_BLOCK)
    parts = (
        Stage("inside", inside, cycles=inside / flops, read=keys + u, written=w + u, blocks=blocks, launches=4.0),
        *between(ctx, seqs, heads),
        Stage(
            "scan",
            4.0 * pairs * dk * dv,
            cycles=4.0 * pairs * dk * dv / flops,
            read=w + u + keys + seqs.batch * heads.state,
            written=u + states + seqs.batch * heads.state,
            blocks=carried,
            chain_s=CHUNK_STEP_S * seqs.longest_chunks * np.ceil(carried / (2.0 * ctx.gpu.sms)),
        ),
        Stage("outputs", outputs, cycles=outputs / flops, read=2.0 * keys + u + states, written=u, blocks=blocks),
    )
    return Stages(ctx, len(u), parts, _border(seqs, heads), _least(ctx, seqs, heads))


def between(ctx: Context, seqs: Sequences, heads: Heads) -> tuple[Stage, ...]:
    """What kernels of a scan leave one another beside keys, values and states, written and read once more each."""
    each = ctx.rule("delta_between")
    size = each * seqs.tokens * heads.v * heads.dim_k / PASSES
    return (elementwise("inside", size, size),) * PASSES if each else ()


def walk(ctx: Context, seqs: Sequences, heads: Heads) -> Stages:
    """One block a request and value head keeps the state and walks the chunks: as long as the longest request, times
    the waves of blocks.
    """
    border = _border(seqs, heads)
    full = seqs.chunks / seqs.longest_chunks  # requests as long as the longest that make up the same work
    waves = np.ceil(full * heads.v / ctx.gpu.sms)
    chunk_s = WALK_CLOCKS / (1e6 * ctx.gpu.boost_clock_mhz)
    parts = (
        Stage("inside", launches=0.0),
        Stage(
            "scan", read=border.read, written=border.written, blocks=full * heads.v,
            chain_s=WALK_START_S + chunk_s * seqs.longest_chunks * waves,
        ),
        Stage("outputs", launches=0.0),
    )  # fmt: skip
    return Stages(ctx, len(full), parts, border, _least(ctx, seqs, heads))


def _border(seqs: Sequences, heads: Heads) -> Stream:
    """Bytes in and out of all kernels of a scan."""
    return Stream(0.0 * seqs.tokens, seqs.tokens * heads.inputs, seqs.tokens * heads.out + seqs.batch * heads.state)


def _least(ctx: Context, seqs: Sequences, heads: Heads) -> Array:
    """Through the state three products a token; a prompt shorter than a key is wide may do with pairs of tokens."""
    fewest = np.minimum(seqs.longest / (2.0 * heads.dim_k), 1.0)
    least = 6.0 * seqs.tokens * heads.v * heads.dim_k * heads.dim_v * fewest
    return np.asarray(in_units_of(ctx, least, "bf16"))


_SCANS: dict[str, Callable[[Context, Sequences, Heads], Stages]] = {"beside": scan, "in_order": walk}


def steps(ctx: Context, seqs: Sequences, heads: Heads) -> Stages:
    """One state in, one out for each token that may turn out to be the last accepted."""
    kept = seqs.tokens if ctx.option("phase") == "verify" else seqs.batch
    states, io = seqs.batch * heads.state, seqs.tokens * heads.inputs
    written = kept * heads.state + seqs.tokens * heads.out
    blocks = seqs.batch * heads.v * np.ceil(heads.dim_v / 32.0)
    one = Stage(
        "steps", fresh=states, read=io, written=written, blocks=blocks, chain_s=TOKEN_STEP_S * seqs.longest
    )  # fmt: skip
    return Stages(ctx, len(io), (one,), Stream(states, io, written, in_place=True), 0.0)


def _features(ctx: Context, seqs: Sequences, heads: Heads) -> dict[str, Any]:
    per_sm = seqs.batch * heads.v / ctx.gpu.sms
    return seqs.features() | {
        "log_v_heads": np.minimum(log2(heads.v), 9.0),
        "log_group": np.minimum(log2(heads.v / heads.k), 5.0),
        "log_heads_per_sm": np.clip(log2(per_sm), -8.0, 10.0),
        "wave": np.minimum(per_sm % 1.0, 1.0) * (per_sm < 8.0),
        "log_state": np.clip(log2(seqs.batch * heads.state / (ctx.gpu.l2_mb * 2.0**20)), -12.0, 8.0),
        "verify": float(ctx.option("phase") == "verify"),
        "bf16_state": float(ctx.option("state_dtype", "fp32") == "bf16"),
    }


FAMILY = Family(
    "delta_net",
    DeltaNet,
    analyse,
    options=("kind", "phase", "state_dtype"),
    ragged=("q_lens",),
    variant=net_of,
    nets=NETS,
    dtypes=ATTENTION_DTYPES,
    selected_by=("kind", "phase"),
    reads="operands",
    example="pipewave predict delta_net 8192*4 16 32 --gpu H100",
)

"""Mamba-2 layers: their causal convolution, and the state-space scan."""

from __future__ import annotations

from typing import Any

import numpy as np

from pipewave.calls.dtypes import ACTIVATION_BYTES, ATTENTION_DTYPES, STREAMED_DTYPES
from pipewave.calls.operators import CausalConv1d, Mamba2
from pipewave.kernels.attention.tasks import Requests
from pipewave.kernels.base import Analysis, Columns, Context, Family
from pipewave.kernels.recurrent.delta_net import (
    CHUNK_STEP_S,
    STATE_BYTES,
    TOKEN_STEP_S,
    Sequences,
    requests_in,
    sequences,
)
from pipewave.kernels.stages import Stage, Stages, in_units_of
from pipewave.kernels.streaming.stream import Stream
from pipewave.physics.demand import Array
from pipewave.physics.launch import launch_s, log2

# The short causal convolution before a state-space layer: a few multiply-adds a value, so memory and starts decide.

CONV = "causal_conv1d"
VALUE_CYCLES = 0.38  # clocks of an SM a value: 0.38 to 0.43 in rows of H100, H200, B200 and GB200, whose DRAM idles
# Clocks of an SM a value of a block of threads that takes one channel of one request, whether its chunk is full or not,
# once and for each chunk; as many as once more where the request's tokens are no multiple of 8 (read one by one).
# From rows of H100 and H200: 224 clocks for up to 512 tokens, 154 for every 512 more.
BLOCK_CYCLES, CHUNK_CYCLES, VECTOR = 0.137, 0.30, 8.0
ROWS = 8.0  # tokens that a block walks at most: vLLM's and SGLang's Triton kernel


def analyse_conv(cols: Columns, ctx: Context) -> Analysis:
    """Demand, base estimate and features of a batch."""
    return analyse_conv_requests(requests_in(cols), cols, ctx)


def analyse_conv_requests(requests: Requests, cols: Columns, ctx: Context) -> Analysis:
    """The same from requests that are grouped already."""
    seqs, channels, width = sequences(requests, ROWS), cols["channels"], cols["width"]
    scanned = ctx.option("phase", "context") == "context"
    size = ACTIVATION_BYTES * seqs.tokens * channels
    history = ACTIVATION_BYTES * seqs.batch * channels * (width - 1.0)
    before = 0.0 * history if scanned else history
    chunk = ctx.rule("conv_chunk", scanned=scanned)
    cycles = channels * (_cycles(requests, chunk) if chunk else VALUE_CYCLES * seqs.tokens)
    blocks = seqs.batch * channels if chunk else seqs.chunks * np.ceil(channels / 256.0)
    more = launch_s(ctx.gpu) * (cols["branches"] - 1.0)  # each branch is a kernel of its own
    moving = Stage("stream", fresh=before, read=size, written=size + history, blocks=blocks, cycles=cycles)
    parts = (moving, Stage("branches", chain_s=more, launches=0.0))
    # Results may be written over the inputs, so no row has to leave more than it brought.
    border = Stream(before, size, size + history, in_place=True)
    stages = Stages(ctx, len(size), parts, border, 0.0)
    return stages.analysis(seqs.features() | _conv_features(ctx, channels, seqs.tokens, cols, scanned), CONV)


def _cycles(requests: Requests, chunk: float) -> Array:
    """Clocks of an SM that the blocks of one channel take, each of which has a request."""
    each = BLOCK_CYCLES * (1.0 + (requests.q % VECTOR > 0.0)) + CHUNK_CYCLES * np.ceil(requests.q / chunk)
    return np.asarray(chunk * requests.total(each), float).reshape(requests.calls)


def _conv_features(ctx: Context, channels: Array, tokens: Array, cols: Columns, scanned: bool) -> dict[str, Any]:
    moved = 2.0 * ACTIVATION_BYTES * tokens * channels
    return {
        "log_channels": np.clip(log2(channels), 5.0, 16.0),
        "in_l2": np.clip(log2(moved / (ctx.gpu.l2_mb * 2.0**20)), -12.0, 6.0),
        "scanned": float(scanned),
        "branches": np.minimum(cols["branches"], 4.0),
    }


CAUSAL_CONV1D = Family(
    CONV,
    CausalConv1d,
    analyse_conv,
    options=("phase",),
    ragged=("q_lens",),
    nets=(CONV,),
    dtypes=STREAMED_DTYPES,
    selected_by=("phase",),
    reads="operands",
    example="pipewave predict causal_conv1d 8192*4 8192 --gpu H100",
)


# Mamba 2's selective scan in chunks (state-space duality; Dao & Gu, 2024, arXiv:2405.21060, section 6).
#
# Per head a state of `head_dim` × `state_dim`; B and C are shared by the heads of a group. No rows of it are public:
# the estimate is physics alone, with the wide interval of a family without a net.

NET = "mamba2"
FP32 = 4.0


def analyse(cols: Columns, ctx: Context) -> Analysis:
    """Demand and base estimate of a batch."""
    requests = requests_in(cols)
    chunk = float(cols["chunk"].max(initial=1.0))
    return _analysed(requests, cols, ctx, sequences(requests, chunk), chunk)


def _analysed(_requests: Requests, cols: Columns, ctx: Context, seqs: Sequences, chunk: float) -> Analysis:
    states = STATE_BYTES[ctx.option("state_dtype", "fp32")] * cols["heads"] * cols["head_dim"] * cols["state_dim"]
    scanned = ctx.option("phase", "context") == "context"
    stages = (_scan if scanned else _steps)(cols, ctx, seqs, states, chunk)
    return stages.analysis(seqs.features(), NET)


def _io(cols: Columns, seqs: Sequences) -> tuple[Array, Array, Array]:
    """Bytes of x (and of y, which is as large), of B and C, and of the time steps."""
    x = ACTIVATION_BYTES * seqs.tokens * cols["heads"] * cols["head_dim"]
    shared = 2.0 * ACTIVATION_BYTES * seqs.tokens * cols["groups"] * cols["state_dim"]
    return x, shared, ACTIVATION_BYTES * seqs.tokens * cols["heads"]


def _scan(cols: Columns, ctx: Context, seqs: Sequences, states: Array, chunk: float) -> Stages:
    x, shared, steps = _io(cols, seqs)
    heads, dim, width, groups = (cols[name] for name in ("heads", "head_dim", "state_dim", "groups"))
    rows, kept = chunk * seqs.chunks, FP32 * seqs.chunks * heads * dim * width
    blocks, pairs = seqs.chunks * heads, FP32 * rows * chunk * groups
    inside, carried = 2.0 * rows * chunk * groups * width, 2.0 * rows * heads * dim * width
    outputs, flops = 2.0 * rows * heads * dim * (chunk + width), ctx.rule("delta_flops")
    parts = (
        Stage(
            "inside",
            inside,
            cycles=inside / flops,
            read=shared + steps,
            written=pairs,
            blocks=seqs.chunks * groups,
            launches=2.0,
        ),
        Stage("states", carried, cycles=carried / flops, read=x + shared, written=kept, blocks=blocks),
        Stage("scan", read=kept, written=kept + seqs.batch * states, chain_s=CHUNK_STEP_S * seqs.longest_chunks),
        Stage("outputs", outputs, cycles=outputs / flops, read=x + shared + kept, written=x, blocks=blocks),
    )
    border = Stream(0.0 * x, x + shared + steps, x + seqs.batch * states)
    least = 4.0 * seqs.tokens * heads * dim * width * np.minimum(seqs.longest / (2.0 * width), 1.0)
    return Stages(ctx, len(x), parts, border, in_units_of(ctx, least, "bf16"))


def _steps(cols: Columns, ctx: Context, seqs: Sequences, states: Array, _chunk: float) -> Stages:
    x, shared, steps = _io(cols, seqs)
    kept = seqs.tokens if ctx.option("phase") == "verify" else seqs.batch
    read, written = x + shared + steps, x + kept * states
    before = seqs.batch * states
    one = Stage("steps", fresh=before, read=read, written=written, chain_s=TOKEN_STEP_S * seqs.longest)
    return Stages(ctx, len(x), (one,), Stream(before, read, written, in_place=True), 0.0)


MAMBA2 = Family(
    NET,
    Mamba2,
    analyse,
    options=("phase", "state_dtype"),
    ragged=("q_lens",),
    nets=(NET,),
    dtypes=ATTENTION_DTYPES,
    reads="operands",
    example="pipewave predict mamba2 8192*4 64 --gpu H100",
)

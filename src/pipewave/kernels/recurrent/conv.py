"""The short causal convolution before a state-space layer: a few multiply-adds a value, so memory and starts decide."""

from __future__ import annotations

from typing import Any

import numpy as np

from pipewave.calls.dtypes import ACTIVATION_BYTES, STREAMED_DTYPES
from pipewave.calls.operators import CausalConv1d
from pipewave.kernels.attention.requests import Requests
from pipewave.kernels.base import Analysis, Columns, Context, Family
from pipewave.kernels.recurrent.sequences import requests_in, sequences
from pipewave.kernels.stages import Stage, Stages
from pipewave.kernels.streaming.stream import Stream
from pipewave.physics.demand import Array
from pipewave.physics.launch import launch_s, log2

NET = "causal_conv1d"
VALUE_CYCLES = 0.38  # clocks of an SM a value: 0.38 to 0.43 in rows of H100, H200, B200 and GB200, whose DRAM idles
# Clocks of an SM a value of a block of threads that takes one channel of one request, whether its chunk is full or not,
# once and for each chunk; as many as once more where the request's tokens are no multiple of 8 (read one by one).
# From rows of H100 and H200: 224 clocks for up to 512 tokens, 154 for every 512 more.
BLOCK_CYCLES, CHUNK_CYCLES, VECTOR = 0.137, 0.30, 8.0
ROWS = 8.0  # tokens that a block walks at most: vLLM's and SGLang's Triton kernel


def analyse(cols: Columns, ctx: Context) -> Analysis:
    """Demand, base estimate and features of a batch."""
    return analyse_requests(requests_in(cols), cols, ctx)


def analyse_requests(requests: Requests, cols: Columns, ctx: Context) -> Analysis:
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
    return stages.analysis(seqs.features() | _features(ctx, channels, seqs.tokens, cols, scanned), NET)


def _cycles(requests: Requests, chunk: float) -> Array:
    """Clocks of an SM that the blocks of one channel take, each of which has a request."""
    each = BLOCK_CYCLES * (1.0 + (requests.q % VECTOR > 0.0)) + CHUNK_CYCLES * np.ceil(requests.q / chunk)
    return np.asarray(chunk * requests.total(each), float).reshape(requests.calls)


def _features(ctx: Context, channels: Array, tokens: Array, cols: Columns, scanned: bool) -> dict[str, Any]:
    moved = 2.0 * ACTIVATION_BYTES * tokens * channels
    return {
        "log_channels": np.clip(log2(channels), 5.0, 16.0),
        "in_l2": np.clip(log2(moved / (ctx.gpu.l2_mb * 2.0**20)), -12.0, 6.0),
        "scanned": float(scanned),
        "branches": np.minimum(cols["branches"], 4.0),
    }


FAMILY = Family(
    NET,
    CausalConv1d,
    analyse,
    options=("phase",),
    ragged=("q_lens",),
    nets=(NET,),
    dtypes=STREAMED_DTYPES,
    selected_by=("phase",),
    reads="operands",
    example="pipewave predict causal_conv1d 8192*4 8192 --gpu H100",
)

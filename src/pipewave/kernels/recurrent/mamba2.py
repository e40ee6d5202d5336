"""Mamba 2's selective scan in chunks (state-space duality; Dao & Gu, 2024, arXiv:2405.21060, section 6).

Per head a state of `head_dim` × `state_dim`; B and C are shared by the heads of a group. No rows of it are public: the
estimate is physics alone, with the wide interval of a family without a net.
"""

from __future__ import annotations

import numpy as np

from pipewave.calls.dtypes import ACTIVATION_BYTES, ATTENTION_DTYPES
from pipewave.calls.operators import Mamba2
from pipewave.kernels.attention.requests import Requests
from pipewave.kernels.base import Analysis, Columns, Context, Family
from pipewave.kernels.recurrent.delta_net import CHUNK_STEP_S, TOKEN_STEP_S
from pipewave.kernels.recurrent.sequences import STATE_BYTES, Sequences, requests_in, sequences
from pipewave.kernels.stages import Stage, Stages, in_units_of
from pipewave.kernels.streaming.stream import Stream
from pipewave.physics.demand import Array

NET = "mamba2"
FP32 = 4.0


def analyse(cols: Columns, ctx: Context) -> Analysis:
    """Demand and base estimate of a batch."""
    requests = requests_in(cols)
    chunk = float(cols["chunk"].max(initial=1.0))
    return _analysed(requests, cols, ctx, sequences(requests, chunk), chunk)


def _analysed(requests: Requests, cols: Columns, ctx: Context, seqs: Sequences, chunk: float) -> Analysis:
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


def _steps(cols: Columns, ctx: Context, seqs: Sequences, states: Array, chunk: float) -> Stages:
    x, shared, steps = _io(cols, seqs)
    kept = seqs.tokens if ctx.option("phase") == "verify" else seqs.batch
    read, written = x + shared + steps, x + kept * states
    before = seqs.batch * states
    one = Stage("steps", fresh=before, read=read, written=written, chain_s=TOKEN_STEP_S * seqs.longest)
    return Stages(ctx, len(x), (one,), Stream(before, read, written, in_place=True), 0.0)


FAMILY = Family(
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

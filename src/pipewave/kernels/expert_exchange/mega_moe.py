"""Routed experts with dispatch and combine in one kernel (DeepGEMM's MegaMoE): exchange behind the products.

Tokens arrive in 8 bits and return in 16; weights are 4 bits. Every rank works as the busiest does, for all wait for it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pipewave.calls.dtypes import ACTIVATION_BYTES, OPERAND_BYTES
from pipewave.calls.operators import MegaMoe
from pipewave.gpus import GPU
from pipewave.kernels.base import Analysis, Columns, Context, Family
from pipewave.kernels.expert_exchange.copies import copies, rates
from pipewave.kernels.moe.routing import Routing, routing
from pipewave.kernels.stages import Stage, Stages, rate
from pipewave.kernels.streaming.stream import Stream
from pipewave.physics.demand import PIPES, Array
from pipewave.physics.launch import log2

NET = "mega_moe"
LINK_SHARE = 0.6
ROWS, COLUMNS = 128.0, 128.0  # of a tile
BARRIERS_S = 30e-6  # ranks meet before the first tile and after the last


def analyse(cols: Columns, ctx: Context) -> Analysis:
    """Demand, base estimate and features of a batch."""
    every = {**cols, "tokens": cols["tokens"] * cols["ep"]}
    routed = routing(every, ctx.option("routing", "balanced"))
    weights = 3.0 * cols["hidden"] * cols["inter"]  # elements of one expert
    exchange_s, least_link = _exchange(cols, ctx, routed)
    stages = _stages(cols, ctx, routed, weights, exchange_s)
    found = stages.analysis(_features(cols, ctx, routed), NET)
    found.demand.amounts[LINK] = least_link
    return found


def _exchange(cols: Columns, ctx: Context, routed: Routing) -> tuple[Array, Array]:
    """Seconds of the busiest rank's traffic, in and out, and the bytes that an even share must send at least."""
    sent = copies(ctx.gpu, cols["topk"], cols["ep"], cols["nodes"], "deepep_ht")
    size = cols["tokens"] * cols["hidden"] * (OPERAND_BYTES["fp8"] + ACTIVATION_BYTES)
    link, network = rates(ctx.gpu)
    seconds = routed.skew * size * (sent.inside / link + sent.across / network) / LINK_SHARE
    return seconds, cols["tokens"] * cols["hidden"] * sent.least * OPERAND_BYTES["fp8"]


def _stages(cols: Columns, ctx: Context, routed: Routing, weights: Array, exchange_s: Array) -> Stages:
    tiles = routed.blocks(np.array([ROWS]))
    io = ACTIVATION_BYTES * cols["tokens"] * cols["hidden"]
    fresh = routed.active * weights * OPERAND_BYTES[ctx.dtype]
    flops, kind = 2.0 * ROWS * tiles * weights, operands(ctx.gpu)
    blocks = tiles * np.ceil(2.0 * cols["inter"] / COLUMNS)
    experts = Stage("experts", flops, kind, fresh=fresh, read=io, written=io, blocks=blocks, chain_s=exchange_s)
    meeting = Stage("barriers", chain_s=BARRIERS_S, launches=2.0)
    even = cols["tokens"] * cols["topk"] * weights * 2.0  # no rank can do with less than an even share
    least = even * rate(ctx.gpu, ctx.dtype, "boost") / rate(ctx.gpu, kind, "boost")
    return Stages(ctx, len(io), (experts, meeting), Stream(0.0 * fresh, io, io, in_place=True), least)


def operands(gpu: GPU) -> str:
    """Products of 8-bit activations and 4-bit weights run at the 8-bit rate."""
    return "fp8" if gpu.supports("fp8") else "bf16"


def _features(cols: Columns, ctx: Context, routed: Routing) -> dict[str, Any]:
    return {
        "log_tokens": np.minimum(log2(cols["tokens"]), 18.0),
        "log_pairs": np.minimum(log2(routed.pairs), 22.0),
        "log_each": np.clip(log2(routed.pairs / routed.active), 0.0, 16.0),
        "active": routed.active / routed.local,
        "log_active": np.minimum(log2(routed.active), 10.0),
        "log_skew": np.clip(log2(routed.skew), 0.0, 6.0),
        "log_ep": np.minimum(log2(cols["ep"]), 7.0),
        "log_topk": np.minimum(log2(cols["topk"]), 6.0),
    }


LINK = PIPES.index("link")
FAMILY = Family(
    NET,
    MegaMoe,
    analyse,
    options=("routing",),
    nets=(NET,),
    reads="operands",
    example="pipewave predict mega_moe 4096 384 6 7168 3072 8 --gpu B200",
)

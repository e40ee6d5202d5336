"""Experts on many ranks: dispatch and combine as copies of tokens over NVLink and network, or in one kernel with the
experts (DeepGEMM's MegaMoE).

High throughput (DeepEP) sends each token once to every rank that holds one of its experts, low latency once for every
expert, without waiting for counts; TensorRT-LLM writes over NVLink from one side or both. In MegaMoE tokens arrive in
8 bits and return in 16, weights are 4 bits, and every rank works as the busiest does, for all wait for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pipewave.calls.dtypes import ACTIVATION_BYTES, OPERAND_BYTES, STREAMED_DTYPES
from pipewave.calls.operators import EXCHANGES, MegaMoe, MoeAllToAll
from pipewave.gpus import GPU
from pipewave.kernels.base import Analysis, Columns, Context, Family
from pipewave.kernels.collective.fabric import islands, network_gbps
from pipewave.kernels.moe.routing import Routing, routing
from pipewave.kernels.stages import LOG_TIME, Stage, Stages, columns_of, rate
from pipewave.kernels.streaming.stream import Stream
from pipewave.physics.demand import PIPES, Array, demand
from pipewave.physics.launch import log2
from pipewave.physics.overlap import overlapped

# How many copies of a token leave its rank, when each of `topk` experts lies on one of `ep` ranks at random.

ONE_A_RANK = ("deepep_ht", "deepep_v2", "nvlink_one_sided", "nvlink_two_sided")  # low latency sends one an expert


@dataclass(frozen=True, slots=True)
class Copies:
    """Copies of a token: to ranks that the link reaches, to other hosts over the network, and the least of the first.

    Of each rank once is the least: a rank's experts share what it received, and sum what they return.
    """

    inside: Array
    across: Array
    least: Array


def copies(gpu: GPU, topk: Array, ep: Array, nodes: Array, backend: str) -> Copies:
    """Expected copies of each token."""
    groups = islands(gpu, ep, nodes)
    ranks, hosts = (_reached(parts, topk) * (parts - 1.0) / parts for parts in (ep, groups))
    beyond = (groups - 1.0) / groups  # share of the ranks that only the network reaches
    least = ranks * (1.0 - beyond * ep / np.maximum(ep - 1.0, 1.0))
    if backend in ONE_A_RANK:  # one copy a host crosses the network and is handed on inside
        return Copies(ranks, hosts, np.maximum(least, 0.0))
    alone = topk * (ep - 1.0) / ep
    return Copies(alone, topk * beyond, np.maximum(least, 0.0))


def _reached(parts: Array, topk: Array) -> Array:
    """Expected number of `parts` that hold at least one of the chosen experts."""
    return np.asarray(parts * (1.0 - (1.0 - 1.0 / parts) ** topk))


def rates(gpu: GPU) -> tuple[float, float]:
    """Bytes/s a rank sends inside the island and over the network."""
    inside = gpu.pcie_gbps if gpu.link == "pcie" else gpu.link_gbps
    return 1e9 * inside, 1e9 * network_gbps(gpu)


# Dispatch and combine of expert parallelism: copies of tokens over NVLink and network, moved by a few SMs.
#
# High throughput (DeepEP) sends each token once to every rank that holds one of its experts, low latency once for every
# expert, without waiting for counts; TensorRT-LLM writes over NVLink from one side or both.

ALL_TO_ALL = "moe_all_to_all"
LINK_SHARE = 0.75  # of a link's rate, as NCCL's Simple protocol reaches
SM_RATE = 18e9  # bytes/s that one SM moves: 4 SMs send 76 GB/s of an H100's 450
USUAL_SMS = {"deepep_ht": 20.0, "deepep_v2": 64.0}
# Start of a kernel among ranks: counts or flags go round before and after the data.
START_S = {"deepep_ht": 25e-6, "deepep_v2": 80e-6, "deepep_ll": 10e-6}
START_OTHER_S, STEP_ACROSS_S = 8e-6, 10e-6


def analyse_all_to_all(cols: Columns, ctx: Context) -> Analysis:
    """Demand, base estimate and features of a batch."""
    backend = str(ctx.option("backend", EXCHANGES[0]))
    sent = copies(ctx.gpu, cols["topk"], cols["ep"], cols["nodes"], backend)
    size = cols["tokens"] * cols["hidden"] * OPERAND_BYTES[ctx.dtype]
    start = START_S.get(backend, START_OTHER_S) + STEP_ACROSS_S * (cols["nodes"] > 1.0)
    inside, across, sms = _times(cols, ctx, sent, size, backend)
    base = start + overlapped(3, inside, across, sms)
    least = demand(len(size), link=size * sent.least, launch=1.0)
    features = _sizes(cols, ctx, size, backend) | _shares(base, inside, across, sms)
    return Analysis(least, base, columns_of(features, len(size)), ALL_TO_ALL)


def _times(cols: Columns, ctx: Context, sent: Copies, size: Array, backend: str) -> tuple[Array, Array, Array]:
    """Seconds on the link, on the network, and of the SMs that copy."""
    link, network = rates(ctx.gpu)
    usual = USUAL_SMS.get(backend, 0.4 * ctx.gpu.sms)
    sms = np.where(cols["sms"] > 0.0, cols["sms"], usual)
    moved = size * np.maximum(sent.inside, sent.across)
    return (
        size * sent.inside / (LINK_SHARE * link),
        size * sent.across / (LINK_SHARE * network),
        moved / (SM_RATE * sms),
    )


def _sizes(cols: Columns, ctx: Context, size: Array, backend: str) -> dict[str, Any]:
    flags: dict[str, Any] = {f"by_{name}": float(name == backend) for name in EXCHANGES}
    flags["combine"] = float(ctx.option("direction") == "combine")
    flags |= {f"combine_{name}": flags["combine"] * flags[f"by_{name}"] for name in EXCHANGES}
    return flags | {
        "log_tokens": np.minimum(log2(cols["tokens"]), 18.0),
        "log_hidden": np.clip(log2(cols["hidden"]), 9.0, 15.0),
        "log_bytes": np.clip(log2(size), 8.0, 34.0),
        "log_topk": np.minimum(log2(cols["topk"]), 6.0),
        "log_ep": np.minimum(log2(cols["ep"]), 7.0),
        "log_nodes": np.minimum(log2(cols["nodes"]), 4.0),
        "log_local": np.clip(log2(cols["experts"] / cols["ep"]), 0.0, 8.0),
        "log_sms": np.where(cols["sms"] > 0.0, np.minimum(log2(np.maximum(cols["sms"], 1.0)), 8.0), 0.0),
        "bytes_each": np.full(len(size), OPERAND_BYTES[ctx.dtype]),
    }


def _shares(base: Array, inside: Array, across: Array, sms: Array) -> dict[str, Array]:
    times = {"base": base, "inside": inside, "across": across + 1e-8, "copying": sms}
    return {f"log_{name}": np.clip(log2(took), *LOG_TIME) for name, took in times.items()} | {
        "share_inside": inside / base,
        "share_across": across / base,
        "share_copying": sms / base,
    }


MOE_ALL_TO_ALL = Family(
    ALL_TO_ALL,
    MoeAllToAll,
    analyse_all_to_all,
    options=("direction", "backend"),
    nets=(ALL_TO_ALL,),
    dtypes=STREAMED_DTYPES,
    selected_by=("backend", "direction"),
    reads="operands",
    example="pipewave predict moe_all_to_all 4096 7168 8 256 8 --gpu H100",
)


# Routed experts with dispatch and combine in one kernel (DeepGEMM's MegaMoE): exchange behind the products.
#
# Tokens arrive in 8 bits and return in 16; weights are 4 bits. Every rank works as the busiest does, for all wait for
# it.

MEGA = "mega_moe"
MEGA_LINK_SHARE = 0.6
ROWS, COLUMNS = 128.0, 128.0  # of a tile
BARRIERS_S = 30e-6  # ranks meet before the first tile and after the last


def analyse_mega_moe(cols: Columns, ctx: Context) -> Analysis:
    """Demand, base estimate and features of a batch."""
    every = {**cols, "tokens": cols["tokens"] * cols["ep"]}
    routed = routing(every, ctx.option("routing", "balanced"))
    weights = 3.0 * cols["hidden"] * cols["inter"]  # elements of one expert
    exchange_s, least_link = _exchange(cols, ctx, routed)
    stages = _stages(cols, ctx, routed, weights, exchange_s)
    found = stages.analysis(_features(cols, ctx, routed), MEGA)
    found.demand.amounts[LINK] = least_link
    return found


def _exchange(cols: Columns, ctx: Context, routed: Routing) -> tuple[Array, Array]:
    """Seconds of the busiest rank's traffic, in and out, and the bytes that an even share must send at least."""
    sent = copies(ctx.gpu, cols["topk"], cols["ep"], cols["nodes"], "deepep_ht")
    size = cols["tokens"] * cols["hidden"] * (OPERAND_BYTES["fp8"] + ACTIVATION_BYTES)
    link, network = rates(ctx.gpu)
    seconds = routed.skew * size * (sent.inside / link + sent.across / network) / MEGA_LINK_SHARE
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


def _features(cols: Columns, _ctx: Context, routed: Routing) -> dict[str, Any]:
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
MEGA_MOE = Family(
    MEGA,
    MegaMoe,
    analyse_mega_moe,
    options=("routing",),
    nets=(MEGA,),
    reads="operands",
    example="pipewave predict mega_moe 4096 384 6 7168 3072 8 --gpu B200",
)

"""Operators of a few kernels each: batched products, the mixing of hyper-connections, exchange between experts."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from pipewave.calls.dtypes import ACTIVATION_BYTES, OPERAND_BYTES
from pipewave.calls.operators import EXCHANGES
from pipewave.gpus import GPU
from pipewave.kernels.base import Analysis, Columns, Context, features_of
from pipewave.kernels.collective.fabric import islands, network_gbps
from pipewave.kernels.moe.routing import routing
from pipewave.kernels.stages import LOG_TIME, Stage, Stages, columns_of, in_units_of, product
from pipewave.kernels.streaming.stream import Stream
from pipewave.physics.arith import log2
from pipewave.physics.demand import PIPES, Array, demand
from pipewave.physics.overlap import overlapped

# Many small products of one shape in one launch, such as those that absorb MLA's up-projections, one a head.

BATCHED = "batched_gemm"


def analyse_batched_gemm(cols: Columns, ctx: Context) -> Analysis:
    """Demand, base estimate and features of a batch."""
    batch, m, n, k = (cols[name] for name in ("batch", "m", "n", "k"))
    part = product("products", m, n, k, ctx.dtype, batch)
    # Operands may come quantised, whatever this stack does.
    border = Stream(batch * n * k * OPERAND_BYTES[ctx.dtype], batch * m * k * OPERAND_BYTES[ctx.dtype], part.written)
    stages = Stages(ctx, len(m), (part,), border, 2.0 * batch * m * n * k)
    moved = ACTIVATION_BYTES * batch * (m * k + m * n) + part.fresh
    features = features_of(BATCHED, ctx, batch=batch, m=m, n=n, k=k, blocks=part.blocks, moved=moved)
    return stages.analysis(features, BATCHED)


# Manifold-constrained hyper-connections (DeepSeek-V4): `mult` residual streams mixed to one and back.
#
# `pre` norms the streams of a token, projects them to mult² + 2·mult coefficients, makes the square part doubly
# stochastic by Sinkhorn steps and sums the streams; `post` writes streams mixed by it with the layer's output added.

HYPER = "hyper_connection"
FP32 = 4.0
STEP_S = 0.12e-6  # a Sinkhorn step: two normalisations of a small matrix, one after the other


def analyse_hyper_connection(cols: Columns, ctx: Context) -> Analysis:
    """Demand, base estimate and features of a batch."""
    tokens, hidden, mult = cols["tokens"], cols["hidden"], cols["mult"]
    one, every = (ACTIVATION_BYTES * tokens * hidden * streams for streams in (1.0, mult))
    weights = FP32 * mult * hidden * (mult * mult + 2.0 * mult)
    before = ctx.option("part", "pre") == "pre"
    if before:
        flops, border = 2.0 * tokens * mult * hidden * (mult * mult + 2.0 * mult), Stream(weights, every, one)
        mixing = Stage("mixing", flops, fresh=weights, read=every, blocks=np.ceil(tokens / 64.0) * 8.0)
        steps = Stage("sinkhorn", chain_s=STEP_S * cols["sinkhorn_iters"])
        parts = (mixing, steps, Stage("stream", read=every, written=one))
    else:  # with the same features
        flops, border = 0.0 * tokens, Stream(0.0 * one, one + every, every, in_place=True)
        mixing, steps = (Stage(name, launches=0.0) for name in ("mixing", "sinkhorn"))
        parts = (mixing, steps, Stage("stream", read=one + every, written=every))
    features = features_of(HYPER, ctx, tokens=tokens, hidden=hidden, every=every)
    return Stages(ctx, len(tokens), parts, border, in_units_of(ctx, flops, "bf16")).analysis(features, HYPER)


# Dispatch and combine of expert parallelism: copies of tokens over NVLink and network, moved by a few SMs.
#
# High throughput (DeepEP) sends each token once to every rank that holds one of its experts, low latency once for every
# expert, without waiting for counts; TensorRT-LLM writes over NVLink from one side or both.

ALL_TO_ALL = "moe_all_to_all"
ONE_A_RANK = ("deepep_ht", "deepep_v2", "nvlink_one_sided", "nvlink_two_sided")  # low latency sends one an expert
LINK_SHARE = 0.75  # of a link's rate, as NCCL's Simple protocol reaches
SM_RATE = 18e9  # bytes/s that one SM moves: 4 SMs send 76 GB/s of an H100's 450
USUAL_SMS = {"deepep_ht": 20.0, "deepep_v2": 64.0}
# Start of a kernel among ranks: counts or flags go round before and after the data.
START_S = {"deepep_ht": 25e-6, "deepep_v2": 80e-6, "deepep_ll": 10e-6}
START_OTHER_S, STEP_ACROSS_S = 8e-6, 10e-6


class Copies(NamedTuple):
    """Copies of a token that leave its rank."""

    inside: Array  # to ranks that the link reaches
    across: Array  # to other hosts over the network
    least: Array  # of those inside: one a rank, whose experts share what it received and sum what they return


def copies(gpu: GPU, topk: Array, ep: Array, nodes: Array, backend: str) -> Copies:
    """Expected copies of each token that leave its rank, when each of `topk` experts lies on a rank at random."""
    groups = islands(gpu, ep, nodes)
    ranks, hosts = (parts * (1.0 - (1.0 - 1.0 / parts) ** topk) * (parts - 1.0) / parts for parts in (ep, groups))
    beyond = (groups - 1.0) / groups  # share of the ranks that only the network reaches
    least = np.maximum(ranks * (1.0 - beyond * ep / np.maximum(ep - 1.0, 1.0)), 0.0)
    if backend in ONE_A_RANK:  # one copy a host crosses the network and is handed on inside
        return Copies(ranks, hosts, least)
    return Copies(topk * (ep - 1.0) / ep, topk * beyond, least)


def rates(gpu: GPU) -> tuple[float, float]:
    """Bytes/s a rank sends inside the island and over the network."""
    return 1e9 * (gpu.pcie_gbps if gpu.link == "pcie" else gpu.link_gbps), 1e9 * network_gbps(gpu)


def analyse_all_to_all(cols: Columns, ctx: Context) -> Analysis:
    """Demand, base estimate and features of a batch: seconds on the link, on the network, and of SMs that copy."""
    backend, calls = str(ctx.option("backend", EXCHANGES[0])), len(cols["tokens"])
    sent = copies(ctx.gpu, cols["topk"], cols["ep"], cols["nodes"], backend)
    size = cols["tokens"] * cols["hidden"] * OPERAND_BYTES[ctx.dtype]
    link, network = rates(ctx.gpu)
    sms = np.where(cols["sms"] > 0.0, cols["sms"], USUAL_SMS.get(backend, 0.4 * ctx.gpu.sms))
    inside, across = size * sent.inside / (LINK_SHARE * link), size * sent.across / (LINK_SHARE * network)
    copying = size * np.maximum(sent.inside, sent.across) / (SM_RATE * sms)
    start = START_S.get(backend, START_OTHER_S) + STEP_ACROSS_S * (cols["nodes"] > 1.0)
    base = start + overlapped(3, inside, across, copying)
    parts = {"base": base, "inside": inside, "across": across + 1e-8, "copying": copying}
    combine = float(ctx.option("direction") == "combine")
    features: dict[str, Any] = {f"by_{name}": float(name == backend) for name in EXCHANGES} | {"combine": combine}
    features |= {f"combine_{name}": combine * features[f"by_{name}"] for name in EXCHANGES}
    each = np.full(calls, OPERAND_BYTES[ctx.dtype])
    features |= features_of(ALL_TO_ALL, ctx, **cols, size=size, bytes_each=each)
    features |= {f"log_{name}": np.clip(log2(took), *LOG_TIME) for name, took in parts.items()}
    features |= {"share_inside": inside / base, "share_across": across / base, "share_copying": copying / base}
    least = demand(calls, link=size * sent.least, launch=1.0)
    return Analysis(least, base, columns_of(features, calls), ALL_TO_ALL)


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
    routed = routing({**cols, "tokens": cols["tokens"] * cols["ep"]}, ctx.option("routing", "balanced"))
    elements = cols["tokens"] * cols["hidden"]
    # The busiest rank's traffic, in and out; an even share must send its 8-bit tokens at least.
    sent, (link, network) = copies(ctx.gpu, cols["topk"], cols["ep"], cols["nodes"], "deepep_ht"), rates(ctx.gpu)
    size = elements * (OPERAND_BYTES["fp8"] + ACTIVATION_BYTES)
    exchange_s = routed.skew * size * (sent.inside / link + sent.across / network) / MEGA_LINK_SHARE
    weights = 3.0 * cols["hidden"] * cols["inter"]  # elements of one expert
    tiles, io = routed.blocks(np.array([ROWS])), ACTIVATION_BYTES * elements
    kind = "fp8" if ctx.gpu.supports("fp8") else "bf16"  # 8-bit activations and 4-bit weights run at the 8-bit rate
    fresh = routed.active * weights * OPERAND_BYTES[ctx.dtype]
    blocks = tiles * np.ceil(2.0 * cols["inter"] / COLUMNS)
    flops = 2.0 * ROWS * tiles * weights
    experts = Stage("experts", flops, kind, fresh=fresh, read=io, written=io, blocks=blocks, chain_s=exchange_s)
    meeting = Stage("barriers", chain_s=BARRIERS_S, launches=2.0)
    least = in_units_of(ctx, cols["tokens"] * cols["topk"] * weights * 2.0, kind)  # of an even share
    stages = Stages(ctx, len(io), (experts, meeting), Stream(0.0 * fresh, io, io, in_place=True), least)
    found = stages.analysis(features_of(MEGA, ctx, **cols, routed=routed), MEGA)
    found.demand.amounts[PIPES.index("link")] = elements * sent.least * OPERAND_BYTES["fp8"]
    return found

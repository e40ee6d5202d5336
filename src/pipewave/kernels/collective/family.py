"""Collectives: start, steps and bandwidth of the algorithm that runs, per link type; the slowest rank's latency."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from pipewave.calls.collective import COLLECTIVES, Collective
from pipewave.gpus import GPU
from pipewave.kernels.base import Analysis, Columns, Context, Family
from pipewave.kernels.collective.algorithms import (
    CUSTOM_BELOW,
    CUSTOM_WORLDS,
    NONE,
    Bools,
    Chosen,
    Nccl,
    Own,
    Ring,
    chosen,
    nccl,
    own,
    reachable,
    ring,
)
from pipewave.kernels.collective.fabric import Link, check_reach, islands, joined, link, network_gbps
from pipewave.physics.demand import Array, demand
from pipewave.physics.launch import log2
from pipewave.physics.power import Work

SMALL_ALL_REDUCE = "all_reduce_small"  # the net of messages that frameworks may reduce by their own kernels
LOG_TIME = -24.0, -4.0  # 60 ns to 60 ms: beyond, collectives only scale
# Rows of send_recv have up to four ranks, over NVLink or the network; what a host's PCIe costs, and more neighbours at
# once on it, is in the base estimate, as for the other operations.
SENDERS = 4.0
NODES, WORLD = 1.0, 4.0  # log2 of the most hosts and ranks of any row; what more cost is in the base estimate
CUSTOM_STACKS = ("vllm", "sglang", "trtllm")


NETWORK = "network"
LARGE = "all_reduce"  # the net of all other all-reduces of a host
ONE_BYTE = ("int8", "fp8")


def reach(case: Mapping[str, Any]) -> str:
    """What calls are distinguished by: those of one host from those over a network."""
    return NETWORK if (case.get("nodes") or 1) > 1 else ""


def assumed(ctx: Context) -> str:
    """The network between hosts, of which there are no rows; racks joined by NVLink have none."""
    if ctx.option("variant") != NETWORK or joined(ctx.gpu) > ctx.gpu.gpus_per_node:
        return ""
    rate = network_gbps(ctx.gpu)
    return f"no rows of a network between hosts: {rate:.0f} GB/s a GPU in each direction are assumed"


def regime(case: Mapping[str, Any]) -> str:
    """The net that answers an all-reduce: whether a custom kernel could run decides it, and the default `impl`."""
    if reach(case):
        return NETWORK
    small = case["bytes"] < CUSTOM_BELOW and case["world"] in CUSTOM_WORLDS and case.get("nodes", 1) == 1
    return SMALL_ALL_REDUCE if small else LARGE


def least_sent(gpu: GPU, op: str, path: Ring, size: Array) -> Array:
    """Bytes no algorithm can avoid sending; switches that reduce in flight (NVLS) halve those of an all-reduce."""
    in_network = op == "all_reduce" and gpu.link == "nvlink" and gpu.traits.nvlink_reduces
    return np.minimum(path.sent, size) if in_network else path.sent


def _analyse(op: str) -> Callable[[Columns, Context], Analysis]:
    def analyse(cols: Columns, ctx: Context) -> Analysis:
        size, world, hosts = cols["bytes"], cols["world"], cols["nodes"]
        nodes = islands(ctx.gpu, world, hosts)
        over, path = link(ctx.gpu, world, nodes), ring(op, size, world)
        ways = nccl(path, over, sends=op == "send_recv")
        mine = own(ctx, size, world, over) if op == "all_reduce" else None
        runs = np.zeros(len(size), bool) if mine is None else _runs(ctx, mine, reachable(world, hosts, over))
        base = ways.best if mine is None else np.where(runs, mine.seconds, ways.best)
        least = demand(len(size), link=least_sent(ctx.gpu, op, path, size), launch=1.0)
        known = np.minimum(world, SENDERS) if op == "send_recv" else world
        features = _shape(ctx, size, known, nodes) | _times(path, over, ways, base)
        if op == "send_recv":
            features["direct"] = np.full(len(size), float(ctx.rule("sends_directly")))
        features |= _software(ctx, runs.astype(float))
        if mine is not None:
            by_nccl = chosen(ctx.gpu, size, world, nodes, over, in_switch=ctx.dtype not in ONE_BYTE)
            features |= _which(mine, runs.astype(float), by_nccl, ways)
        return Analysis(least, base, features, _net(ctx, op), _done(path))

    return analyse


def _of_framework(ctx: Context) -> bool:
    """Whether a framework's own all-reduce is asked for: from `CUSTOM_BELOW` on, its rule alone hands over to NCCL.

    Cold calls are of the kernel that is named.
    """
    large = ctx.option("variant") == LARGE and ctx.framework in CUSTOM_STACKS and ctx.protocol != "cold"
    return ctx.impl == "custom" or large


def _runs(ctx: Context, mine: Own, within_reach: Bools) -> Bools:
    """Where a kernel of the framework runs."""
    return np.asarray(within_reach & (mine.algorithm != NONE) & _of_framework(ctx))


def _which(mine: Own, runs: Array, by_nccl: Chosen, ways: Nccl) -> dict[str, Array]:
    """Which kernel sums: the framework's, or NCCL's protocol, and what a turn to Simple costs that came early."""
    nccl_runs = 1.0 - runs
    flags = {"one_shot": ("one_shot", "pushed"), "pushed": ("pushed",), "switched": ("switched",)}
    flags |= {"symmetric": ("symmetric",)}
    found = {name: runs * mine.named(*of) for name, of in flags.items()}
    found |= {f"nccl_{name}": nccl_runs * getattr(by_nccl, name) for name in ("ll128", "simple", "switched")}
    early = np.clip(log2(ways.simple / ways.best), 0.0, 2.0) * by_nccl.simple
    return found | {"nccl_margin": nccl_runs * by_nccl.margin, "nccl_early": nccl_runs * early}


def _done(path: Ring) -> Work:
    """Bytes sent are read from memory and as many are written; its energy goes by its time (`step.power`)."""
    return Work(0.0 * path.sent, 2.0 * path.sent, 2.0 * path.sent)


def _net(ctx: Context, op: str) -> str:
    return SMALL_ALL_REDUCE if ctx.option("variant") == SMALL_ALL_REDUCE else op


def _shape(ctx: Context, size: Array, world: Array, nodes: Array) -> dict[str, Array]:
    return {
        "log_bytes": np.clip(log2(size), 8.0, 31.0),
        "log_part": np.clip(log2(size / world), 5.0, 30.0),
        "log_world": np.minimum(log2(world), WORLD),
        "log_nodes": np.minimum(log2(nodes), NODES),
        "ragged": (size % 16.0 > 0.0).astype(float),
        "one_byte": np.full(len(size), float(ctx.dtype in ONE_BYTE)),
    }


def _times(path: Ring, over: Link, ways: Nccl, base: Array) -> dict[str, Array]:
    return {
        "log_base": np.clip(log2(base), *LOG_TIME),
        "log_transfer": np.clip(log2(path.sent / over.rate), *LOG_TIME),
        "low_latency": np.clip(log2(ways.low_latency / ways.simple), -4.0, 4.0),
        "log_steps": np.minimum(log2(path.steps), 6.0),
        "direct": over.direct,
    }


def _software(ctx: Context, own: Array) -> dict[str, Array]:
    """Whose all-reduce it is; a framework's keeps its own ways even where its kernel does not run."""
    zero = 0.0 * own
    custom = float(_of_framework(ctx))
    kernels = ctx.rule("all_reduce_kernels") or ctx.framework
    flags = {f"{name}_all_reduce": zero + custom * (kernels == name) for name in CUSTOM_STACKS}
    return flags | {"custom": own, "one_shot": zero, "sarathi": zero + (ctx.framework == "sarathi")}


def _family(call: type[Collective], **own: Any) -> Family:
    given: dict[str, Any] = {
        "nets": (call.kernel,),
        "metadata": "pipewave.kernels.collective.metadata:METADATA",
        "variant": reach,
    }
    given |= {"check_on": check_reach, "assumed": assumed}
    return Family(call.kernel, call, _analyse(call.kernel), **given | own)


OWN: Mapping[str, Mapping[str, Any]] = {
    "all_reduce": {
        "variant": regime,
        "nets": (LARGE, SMALL_ALL_REDUCE),
        "example": "pipewave predict all_reduce 16777216 4 --gpu A100",
    }
}
FAMILIES = {call.kernel: _family(call, **OWN.get(call.kernel, {})) for call in COLLECTIVES}

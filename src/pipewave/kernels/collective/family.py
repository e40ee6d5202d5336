"""Collectives: start, steps and bandwidth of the algorithm that runs, per link type; the slowest rank's latency."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from pipewave.calls.collective import COLLECTIVES
from pipewave.kernels.base import Columns, Context, Sketch, features_of
from pipewave.kernels.collective import algorithms
from pipewave.kernels.collective.algorithms import Chosen, Nccl, Own
from pipewave.kernels.collective.fabric import islands, joined, link, network_gbps
from pipewave.physics.arith import Arith, clipped, log2
from pipewave.physics.power import Work

SMALL_ALL_REDUCE = "all_reduce_small"  # the net of messages that frameworks may reduce by their own kernels
# Rows of send_recv have up to four ranks, over NVLink or the network; what a host's PCIe costs, and more neighbours at
# once on it, is in the base estimate, as for the other operations.
SENDERS = 4.0
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
    custom = case["world"] in algorithms.CUSTOM_WORLDS and case.get("nodes", 1) == 1
    return SMALL_ALL_REDUCE if custom and case["bytes"] < algorithms.CUSTOM_BELOW else LARGE


def formula(op: str, call: Columns, ctx: Context, xp: Arith) -> Sketch:
    """Physics of one collective (floats) or of many (arrays)."""
    size, world, hosts = call["bytes"], call["world"], call["nodes"]
    nodes = islands(ctx.gpu, world, hosts, xp)
    over, path = link(ctx.gpu, world, nodes, xp), algorithms.ring(op, size, world)
    ways = algorithms.nccl(path, over, xp, sends=op == "send_recv")
    base, runs, which = ways.best, 0.0, dict[str, Any]()
    if op == "all_reduce":
        mine = algorithms.own(ctx, size, world, over, xp)
        within = algorithms.reachable(world, hosts, over) & (mine.algorithm != algorithms.NONE) & _of_framework(ctx)
        base, runs = xp.where(within, mine.seconds, ways.best), xp.where(within, 1.0, 0.0)
        by_nccl = algorithms.chosen(ctx.gpu, size, world, nodes, over, xp, in_switch=ctx.dtype not in ONE_BYTE)
        which = _which(mine, runs, by_nccl, ways, xp)
    # Switches that reduce in flight (NVLS) halve what an all-reduce must send.
    in_flight = op == "all_reduce" and ctx.gpu.link == "nvlink" and ctx.gpu.traits.nvlink_reduces
    least = {"link": xp.minimum(path.sent, size) if in_flight else path.sent, "launch": 1.0}
    net = SMALL_ALL_REDUCE if ctx.option("variant") == SMALL_ALL_REDUCE else op
    # Bytes sent are read from memory and as many are written; the energy goes by the time (`step.power`).
    done = Work(0.0 * path.sent, 2.0 * path.sent, 2.0 * path.sent)
    known = xp.minimum(world, SENDERS) if op == "send_recv" else world
    # Hosts and ranks count up to the most of any row: what more of them cost is in the base estimate.
    sizes = {"size": size, "world": known, "nodes": nodes, "base": base, "path": path, "over": over, "ways": ways}
    features = features_of("collective", xp=xp, **sizes, one_byte=float(ctx.dtype in ONE_BYTE))
    if op == "send_recv":
        features["direct"] = float(ctx.rule("sends_directly"))
    return Sketch(least, base, features | _software(ctx, runs) | which, net, done)


def _of_framework(ctx: Context) -> bool:
    """Whether a framework's own all-reduce is asked for: by name, or, unless cold, where its rule may hand over."""
    large = ctx.option("variant") == LARGE and ctx.framework in CUSTOM_STACKS and ctx.protocol != "cold"
    return ctx.impl == "custom" or large


def _which(mine: Own, runs: Any, by_nccl: Chosen, ways: Nccl, xp: Arith) -> dict[str, Any]:
    """Which kernel sums: the framework's, or NCCL's protocol, and what a turn to Simple costs that came early."""
    nccl_runs = 1.0 - runs
    flags = {"one_shot": ("one_shot", "pushed"), "pushed": ("pushed",), "switched": ("switched",)}
    flags |= {"symmetric": ("symmetric",)}
    found = {name: runs * algorithms.one_of(mine.algorithm, of, xp) for name, of in flags.items()}
    found |= {f"nccl_{name}": nccl_runs * getattr(by_nccl, name) for name in ("ll128", "simple", "switched")}
    early = clipped(log2(ways.simple / ways.best, xp), 0.0, 2.0, xp) * by_nccl.simple
    return found | {"nccl_margin": nccl_runs * by_nccl.margin, "nccl_early": nccl_runs * early}


def _software(ctx: Context, runs: Any) -> dict[str, Any]:
    """Whose all-reduce it is; a framework's keeps its own ways even where its kernel does not run."""
    custom = float(_of_framework(ctx))
    kernels = ctx.rule("all_reduce_kernels") or ctx.framework
    flags = {f"{name}_all_reduce": custom * (kernels == name) for name in CUSTOM_STACKS}
    return flags | {"custom": runs, "one_shot": 0.0, "sarathi": float(ctx.framework == "sarathi")}


all_reduce, all_gather, reduce_scatter, all_to_all, send_recv = (partial(formula, call.kernel) for call in COLLECTIVES)

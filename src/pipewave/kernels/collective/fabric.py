"""What joins the ranks of a collective: the link inside a node, and the network between nodes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from pipewave.errors import BadInput
from pipewave.gpus import GPU
from pipewave.physics.arith import ARRAY, Arith, clipped
from pipewave.software.rules import constant


class Link(NamedTuple):
    """Per call: bytes/s a rank sends in one direction, the time of one step, and of a start, in seconds."""

    rate: Any
    step_s: Any
    start_s: Any
    direct: Any  # 1 where every rank reaches every other over NVLink


def bridged(gpu: GPU) -> bool:
    """Whether NVLink reaches one neighbour only."""
    return gpu.link == "nvlink" and bool(constant("nvlink_in_pairs", gpu=gpu.base_gpu))


@lru_cache(maxsize=256)
def joined(gpu: GPU) -> int:
    """How many GPUs the link of a host joins: those of the host, or of a rack."""
    return int(constant("nvlink_rack", gpu=gpu.base_gpu)) or gpu.gpus_per_node


def check_reach(case: Mapping[str, Any], gpu: GPU) -> None:
    """Raise BadInput when a host would hold more ranks than GPUs: over several hosts, `nodes` must say so."""
    world, nodes, most = int(case["world"]), int(case.get("nodes") or 1), joined(gpu)
    if world > nodes * most:
        raise BadInput(
            f"world = {world} on nodes = {nodes}: a node joins at most {most} {gpu.name}; "
            f"give nodes = {-(-world // most)} or a GPU file with another gpus_per_node",
            field="nodes",
        )


def islands(gpu: GPU, world: Any, nodes: Any, xp: Arith = ARRAY) -> Any:
    """Groups of ranks with nothing but the network between them: hosts, or whole racks."""
    rack = constant("nvlink_rack", gpu=gpu.base_gpu)
    return xp.ceil(world / rack) if rack else nodes


def network_gbps(gpu: GPU) -> float:
    """GB/s that a GPU sends over the network between hosts: an assumption."""
    found = constant("network")
    return float(min(found.gbps, found.pcie_share * gpu.pcie_gbps))


def link(gpu: GPU, world: Any, nodes: Any, xp: Arith = ARRAY) -> Link:
    """The slowest link that a ring over `world` ranks on `nodes` islands must cross."""
    local, outside = world / nodes, nodes > 1.0
    direct = (local <= (2.0 if bridged(gpu) else math.inf)) & (gpu.link != "pcie")
    inside = xp.where(direct, _reached_gbps(gpu, local, xp), gpu.pcie_gbps * _crowding(gpu, local, xp))
    network = network_gbps(gpu)
    times = {over: constant("link_times", over=over) for over in ("network", "nvlink", "pcie")}

    def slowest(name: str) -> Any:
        within = xp.where(direct, getattr(times["nvlink"], name), getattr(times["pcie"], name))
        return xp.where(outside, getattr(times["network"], name), within)

    return Link(
        rate=1e9 * xp.where(outside, xp.minimum(inside, network * xp.minimum(local, 8.0)), inside),
        step_s=slowest("step_s"),
        start_s=slowest("start_s"),
        direct=xp.where(direct, 1.0, 0.0),
    )


def _reached_gbps(gpu: GPU, local: Any, xp: Arith) -> Any:
    """GB/s to the other ranks of a host: the whole port through a switch, or the links that lead to them in a mesh."""
    if gpu.link != "xgmi":
        return gpu.link_gbps
    others = max(gpu.gpus_per_node - 1.0, 1.0)
    return gpu.link_gbps * clipped(local - 1.0, 1.0, others, xp) / others


def _crowding(gpu: GPU, local: Any, xp: Arith) -> Any:
    """Share of its PCIe that a GPU keeps beside the others of a host."""
    shared = constant("pcie_sharing")
    if gpu.pcie_gbps <= shared.staged_gbps:
        return (2.0 / clipped(local, 2.0, 8.0, xp)) ** 2
    return xp.where(local > 2.0, shared.crowded_share, 1.0)

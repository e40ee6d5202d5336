"""What joins the ranks of a collective: the link inside a node, and the network between nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipewave.errors import BadInput
from pipewave.gpus import GPU
from pipewave.physics.demand import Array
from pipewave.software.rules import constant


@dataclass(frozen=True, slots=True)
class Link:
    """Per call: bytes/s a rank sends in one direction, the time of one step, and of a start, in seconds."""

    rate: Array
    step_s: Array
    start_s: Array
    direct: Array  # 1 where every rank reaches every other over NVLink


def bridged(gpu: GPU) -> bool:
    """Whether NVLink reaches one neighbour only."""
    return gpu.link == "nvlink" and bool(constant("nvlink_in_pairs", gpu=gpu.base_gpu))


def joined(gpu: GPU) -> int:
    """How many GPUs the link of a host joins: those of the host, or of a rack."""
    return int(constant("nvlink_rack", gpu=gpu.base_gpu)) or gpu.gpus_per_node


def check_reach(case: Mapping[str, Any], gpu: GPU) -> None:
    """Raise BadInput when a host would hold more ranks than GPUs: over several hosts, `nodes` must say so."""
    world, nodes, most = int(case["world"]), int(case.get("nodes") or 1), joined(gpu)
    if world > nodes * most:
        raise BadInput(
            f"world = {world} on nodes = {nodes}: a node joins at most {most} {gpu.name}; "
            f"give nodes = {-(-world // most)} or a GPU file "
            "with another gpus_per_node",
            field="nodes",
        )


def islands(gpu: GPU, world: Array, nodes: Array) -> Array:
    """Groups of ranks with nothing but the network between them: hosts, or whole racks."""
    rack = constant("nvlink_rack", gpu=gpu.base_gpu)
    return np.asarray(np.ceil(world / rack)) if rack else nodes


def network_gbps(gpu: GPU) -> float:
    """GB/s that a GPU sends over the network between hosts: an assumption."""
    found = constant("network")
    return float(min(found.gbps, found.pcie_share * gpu.pcie_gbps))


def link(gpu: GPU, world: Array, nodes: Array) -> Link:
    """The slowest link that a ring over `world` ranks on `nodes` islands must cross."""
    local, outside = world / nodes, nodes > 1.0
    direct = (local <= (2.0 if bridged(gpu) else np.inf)) & (gpu.link != "pcie")
    inside = np.where(direct, _reached_gbps(gpu, local), gpu.pcie_gbps * _crowding(gpu, local))
    network = network_gbps(gpu)
    times = {over: constant("link_times", over=over) for over in ("network", "nvlink", "pcie")}

    def slowest(name: str) -> Array:
        within = np.where(direct, getattr(times["nvlink"], name), getattr(times["pcie"], name))
        return np.asarray(np.where(outside, getattr(times["network"], name), within))

    return Link(
        rate=1e9 * np.where(outside, np.minimum(inside, network * np.minimum(local, 8.0)), inside),
        step_s=slowest("step_s"),
        start_s=slowest("start_s"),
        direct=direct.astype(float),
    )


def _reached_gbps(gpu: GPU, local: Array) -> Array | float:
    """GB/s to the other ranks of a host: the whole port through a switch, or the links that lead to them in a mesh."""
    if gpu.link != "xgmi":
        return gpu.link_gbps
    others = max(gpu.gpus_per_node - 1.0, 1.0)
    return np.asarray(gpu.link_gbps * np.clip(local - 1.0, 1.0, others) / others)


def _crowding(gpu: GPU, local: Array) -> Array:
    """Share of its PCIe that a GPU keeps beside the others of a host."""
    shared = constant("pcie_sharing")
    if gpu.pcie_gbps <= shared.staged_gbps:
        return np.asarray((2.0 / np.clip(local, 2.0, 8.0)) ** 2)
    return np.where(local > 2.0, shared.crowded_share, 1.0)

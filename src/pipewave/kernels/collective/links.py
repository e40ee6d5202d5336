"""What joins the ranks of a collective: the link inside a node, and the network between nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipewave.errors import BadInput
from pipewave.gpus import GPU
from pipewave.physics.demand import Array

# Cards that NVLink joins in pairs only, where a bridge is fitted (`link="nvlink"`); four of them meet over PCIe.
BRIDGED = ("A30", "A40", "A100 PCIe", "H100 NVL", "H100 PCIe", "RTX 3090", "RTX A6000", "V100 PCIe")
RACKS = ("GB200", "GB300")  # NVL72: hosts of four cards, joined by NVLink up to a rack of 72
RACK = 72
# A GPU's share of the network: one 400 Gb/s port each, or what its PCIe slot feeds. An assumption, no row says it.
NETWORK_GBPS, PCIE_TO_NETWORK = 50.0, 0.8
# More than two PCIe cards share root ports; hosts of PCIe 4 cards stage through memory, each further pair through more.
CROWDED, STAGED_GBPS = 0.5, 32.0


@dataclass(frozen=True, slots=True)
class Link:
    """Per call: bytes/s a rank sends in one direction, the time of one step, and of a start, in seconds."""

    rate: Array
    step_s: Array
    start_s: Array
    direct: Array  # 1 where every rank reaches every other over NVLink


def bridged(gpu: GPU) -> bool:
    """Whether NVLink reaches one neighbour only."""
    return gpu.link == "nvlink" and gpu.kin.startswith(BRIDGED)


def joined(gpu: GPU) -> int:
    """How many GPUs the link of a host joins: those of the host, or of an NVL72 rack."""
    return RACK if gpu.kin.startswith(RACKS) else gpu.gpus_per_node


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
    return np.ceil(world / RACK) if gpu.kin.startswith(RACKS) else nodes


def network_gbps(gpu: GPU) -> float:
    """GB/s that a GPU sends over the network between hosts: an assumption."""
    return min(NETWORK_GBPS, PCIE_TO_NETWORK * gpu.pcie_gbps)


def link(gpu: GPU, world: Array, nodes: Array) -> Link:
    """The slowest link that a ring over `world` ranks on `nodes` islands must cross."""
    local = world / nodes
    direct = (local <= (2.0 if bridged(gpu) else np.inf)) & (gpu.link == "nvlink")
    staged = (2.0 / np.clip(local, 2.0, 8.0)) ** 2
    crowding = staged if gpu.pcie_gbps <= STAGED_GBPS else np.where(local > 2.0, CROWDED, 1.0)
    inside = np.where(direct, gpu.link_gbps, gpu.pcie_gbps * crowding)
    network = network_gbps(gpu)
    apart = nodes > 1.0
    return Link(
        rate=1e9 * np.where(apart, np.minimum(inside, network * np.minimum(local, 8.0)), inside),
        step_s=np.where(apart, 3.0e-6, np.where(direct, 0.9e-6, 1.4e-6)),
        start_s=np.where(apart, 12e-6, np.where(direct, 4.5e-6, 3.5e-6)),
        direct=direct.astype(float),
    )

"""How many copies of a token leave its rank, when each of `topk` experts lies on one of `ep` ranks at random."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipewave.gpus import GPU
from pipewave.kernels.collective.links import islands, network_gbps
from pipewave.physics.demand import Array

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

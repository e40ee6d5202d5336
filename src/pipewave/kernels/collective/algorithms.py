"""How long the algorithms of a collective take: NCCL's rings under its three protocols, and custom all-reduce kernels.

`size` is `bytes` of the contract. Ring traffic per rank is that of nccl-tests' PERFORMANCE.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipewave.kernels.collective.links import Link
from pipewave.physics.demand import Array

Bools = NDArray[np.bool_]

# NCCL's protocols: extra start, and share of the link's rate. LL and LL128 carry flags with the data and use few
# channels; Simple synchronises each step but fills the link.
LOW_LATENCY_SHARE = 0.28
SIMPLE_S, SIMPLE_SHARE = 14e-6, 0.75

KIB, MIB = 2.0**10, 2.0**20
CUSTOM_BELOW = 8.0 * MIB  # vLLM and SGLang give larger messages to NCCL
CUSTOM_WORLDS = (2.0, 4.0, 6.0, 8.0)
CUSTOM_START_S, CUSTOM_SHARE, TWO_SHOT_S = 2.6e-6, 0.62, 1.5e-6


@dataclass(frozen=True, slots=True)
class Ring:
    """Bytes each rank sends and the steps they take, one after the other."""

    sent: Array
    steps: Array


@dataclass(frozen=True, slots=True)
class Nccl:
    """Seconds under the low-latency protocols and under Simple; NCCL takes the better."""

    low_latency: Array
    simple: Array

    @property
    def best(self) -> Array:
        """The faster of the two."""
        return np.minimum(self.low_latency, self.simple)


def ring(op: str, size: Array, world: Array) -> Ring:
    """Traffic and steps of a bandwidth-optimal ring; all ranks exchange at once in `all_to_all`."""
    share = (world - 1.0) / world
    if op == "all_reduce":
        return Ring(2.0 * share * size, 2.0 * (world - 1.0))
    if op == "send_recv":
        return Ring(size, np.ones_like(world))
    return Ring(share * size, 1.0 + 0.25 * (world - 2.0) if op == "all_to_all" else world - 1.0)


def nccl(path: Ring, over: Link) -> Nccl:
    """Both regimes of NCCL on a link."""
    start = over.start_s + path.steps * over.step_s
    return Nccl(
        start + path.sent / (LOW_LATENCY_SHARE * over.rate),
        start + SIMPLE_S + path.sent / (SIMPLE_SHARE * over.rate),
    )


def one_shot(size: Array, world: Array) -> Bools:
    """Whether a custom all-reduce lets every rank read all others' buffers whole (vLLM's rule), not in two shots."""
    return np.asarray((world == 2.0) | (size < np.where(world <= 4.0, 512.0 * KIB, 256.0 * KIB)))


def custom_s(size: Array, world: Array, over: Link) -> Array:
    """Peer-to-peer all-reduce: read everything at once, or reduce a part each and gather the parts."""
    once = one_shot(size, world)
    received = np.where(once, (world - 1.0) * size, 2.0 * (world - 1.0) / world * size)
    return np.asarray(CUSTOM_START_S + TWO_SHOT_S * (1.0 - once) + received / (CUSTOM_SHARE * over.rate))


def custom_runs(size: Array, world: Array, nodes: Array, over: Link) -> Bools:
    """Where frameworks use their own kernel: small messages of 2, 4, 6 or 8 ranks of a node, by NVLink or in pairs."""
    reachable = (nodes == 1.0) & ((over.direct > 0.0) | (world == 2.0))
    return np.asarray((size < CUSTOM_BELOW) & np.isin(world, CUSTOM_WORLDS) & reachable)

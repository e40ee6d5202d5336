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
SENT_S, SENT_SHARE = 3.5e-6, 0.92  # of a send by NVLink under Simple: one step, and nothing to add up

MIB = 2.0**20
CUSTOM_BELOW = 8.0 * MIB  # the net of small messages answers below: most kernels of frameworks end here
CUSTOM_WORLDS = (2.0, 4.0, 6.0, 8.0)
OWN_SHARE = 0.62  # of a link's rate that kernels of frameworks fill
START_S, PUSHED_START_S, TWO_SHOT_S = 2.6e-6, 1.2e-6, 1.5e-6


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


def nccl(path: Ring, over: Link, *, sends: bool = False) -> Nccl:
    """Both regimes of NCCL on a link."""
    start = over.start_s + path.steps * over.step_s
    lone = over.direct * float(sends)
    fills = SIMPLE_SHARE + (SENT_SHARE - SIMPLE_SHARE) * lone
    return Nccl(
        start + path.sent / (LOW_LATENCY_SHARE * over.rate),
        start + SIMPLE_S + (SENT_S - SIMPLE_S) * lone + path.sent / (fills * over.rate),
    )


def reachable(world: Array, nodes: Array, over: Link) -> Bools:
    """Where kernels of frameworks can run: 2, 4, 6 or 8 ranks of a host, by NVLink or in pairs."""
    return np.asarray(np.isin(world, CUSTOM_WORLDS) & (nodes == 1.0) & ((over.direct > 0.0) | (world == 2.0)))


def one_shot_s(size: Array, world: Array, over: Link) -> Array:
    """Every rank reads all others' buffers whole, between two barriers."""
    return START_S + (world - 1.0) * size / (OWN_SHARE * over.rate)


def pushed_s(size: Array, world: Array, over: Link) -> Array:
    """Every rank writes its buffer to all others, who wait for the data itself: no barrier before."""
    return one_shot_s(size, world, over) - START_S + PUSHED_START_S


def two_shot_s(size: Array, world: Array, over: Link) -> Array:
    """Every rank reduces a part, and reads the parts of the others."""
    return START_S + TWO_SHOT_S + 2.0 * (world - 1.0) / world * size / (OWN_SHARE * over.rate)


def switched_s(size: Array, _: Array, over: Link) -> Array:
    """The switch reduces a part for each rank and hands its sum to all: a message up and a message down."""
    return START_S + TWO_SHOT_S + size / (OWN_SHARE * over.rate)

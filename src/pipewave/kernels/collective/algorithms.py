"""How long the algorithms of a collective take, and which runs: NCCL's rings and sums in the switch by NCCL's own cost
model, custom all-reduce kernels by the rules of a framework's version.

`size` is `bytes` of the contract. Ring traffic per rank is that of nccl-tests' PERFORMANCE.md. Limits of frameworks are
the rule `all_reduce_algorithms`; NCCL's numbers are `nccl_cost` and `nccl_caps`. Inside a host trees never win.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipewave.errors import BadFile
from pipewave.gpus import GPU
from pipewave.kernels.base import Context
from pipewave.kernels.collective.fabric import Link
from pipewave.physics.demand import Array
from pipewave.software.rule_values import SizeLimit
from pipewave.software.rules import constant

# How long the algorithms of a collective take: NCCL's rings under its three protocols, and custom all-reduce kernels.
#
# `size` is `bytes` of the contract. Ring traffic per rank is that of nccl-tests' PERFORMANCE.md.

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


# Which kernel sums a message inside a host, and how long it takes.

Limits = Mapping[str, Sequence[SizeLimit]]  # by ranks, in rising order of bytes
SECONDS: Mapping[str, Callable[[Array, Array, Link], Array]] = {
    "one_shot": one_shot_s,
    "pushed": pushed_s,
    "two_shot": two_shot_s,
    "symmetric": two_shot_s,
    "switched": switched_s,
}
NONE = -1
ALGORITHMS = tuple(SECONDS)
COPIED = ("symmetric", "switched")  # into a buffer that all ranks see, and out of it
MARGIN = -3.0, 3.0


@dataclass(frozen=True, slots=True)
class Own:
    """Kernels of a framework, per call: the place of the one that runs in ALGORITHMS (NONE: none), and its seconds."""

    algorithm: NDArray[np.int8]
    seconds: Array

    def named(self, *names: str) -> Array:
        """1 where one of these runs."""
        return np.isin(self.algorithm, [ALGORITHMS.index(name) for name in names]).astype(float)


def own(ctx: Context, size: Array, world: Array, over: Link) -> Own:
    """What the framework runs by its rule, whether ranks reach one another or not."""
    algorithm = np.full(len(size), NONE, dtype=np.int8)
    ends = ctx.rule("all_reduce_ends") * 1.0
    for ranks, limits in _limits(ctx).items():
        for name, below in reversed(limits):
            end = below + ends * (name in COPIED)
            algorithm[(world == float(ranks)) & (size < end)] = _place(name)
    return Own(algorithm, _seconds(algorithm, size, world, over, ctx.gpu))


def _place(name: str) -> int:
    """Place of an algorithm that a rule names. BadFile where it is none of ours, which would cost nothing."""
    if name not in ALGORITHMS:
        raise BadFile(f"all_reduce_algorithms: {name!r} is none of {', '.join(ALGORITHMS)}", field="rules")
    return ALGORITHMS.index(name)


def _limits(ctx: Context) -> Limits:
    found: Limits = ctx.rule("all_reduce_algorithms", link=ctx.gpu.link)
    return found


def _seconds(algorithm: NDArray[np.int8], size: Array, world: Array, over: Link, gpu: GPU) -> Array:
    """Seconds of each call's algorithm; 0 where none runs. A copy reads and writes memory."""
    copies = 4.0 * size / (1e9 * gpu.dram_gbps) * np.isin(algorithm, [ALGORITHMS.index(name) for name in COPIED])
    times = [law(size, world, over) for law in SECONDS.values()]
    return np.asarray(copies + np.select([algorithm == place for place in range(len(times))], times, 0.0))


@dataclass(frozen=True, slots=True)
class Chosen:
    """What NCCL takes, per call, 1 where it does; nothing for low-latency rings. `margin`: log2 of the low-latency
    ring's cost over the best other's.
    """

    ll128: Array
    simple: Array
    switched: Array
    margin: Array


def chosen(gpu: GPU, size: Array, world: Array, nodes: Array, over: Link, *, in_switch: bool) -> Chosen:
    """The protocol of an all-reduce in one host by NCCL's model; `in_switch`: the switch can sum this type."""
    low, *others = _costs_us(gpu, size, world, over, in_switch=in_switch)
    best = np.argmin([low, *others], axis=0) * (nodes == 1.0)
    ll128, simple, switched = ((best == place).astype(float) for place in (1, 2, 3))
    margin = np.clip(np.log2(low / np.minimum.reduce(others)), *MARGIN)
    return Chosen(ll128, simple, switched, np.where(nodes == 1.0, margin, 0.0))


def _costs_us(gpu: GPU, size: Array, world: Array, over: Link, *, in_switch: bool) -> tuple[Array, ...]:
    """What NCCL takes LL, LL128 and Simple rings and sums in the switch for; infinite where it does not offer one."""
    caps = constant("nccl_caps", mma=gpu.traits.mma)
    linked = over.direct > 0.0
    models = [constant("nccl_cost", over=name) for name in ("nvlink", "pcie")]

    def of(name: str) -> Array:
        return np.asarray(np.where(linked, *(getattr(model, name) for model in models)))

    gbps = (
        np.where(linked, gpu.link_gbps, gpu.pcie_gbps)
        * of("link_share")
        * np.where(world > of("halved_beyond_ranks"), 0.5, 1.0)
    )
    bus_us = 2.0 * (world - 1.0) / world * size / (1e3 * gbps)  # a ring's traffic at the full rate
    steps = 2.0 * (world - 1.0)
    low = of("ll_us") + steps * of("ll_step_us") + bus_us * np.maximum(2.0, gbps / caps.ll_gbps)
    middle = of("ll128_us") + steps * of("ll128_step_us") + bus_us / of("ll128_share")
    simple = of("simple_us") + steps * of("simple_step_us") + bus_us
    switch = np.full(len(size), np.inf)
    if in_switch and caps.switch_share:
        switch = caps.switch_us + size / (1e3 * gbps * caps.switch_share)
    return low, np.where(linked, middle, np.inf), simple, np.where(linked & (world > 2.0), switch, np.inf)

"""How long the algorithms of a collective take and which runs: NCCL's rings and sums in the switch by NCCL's own cost
model, custom all-reduce kernels by the rules of a framework's version.

`size` is `bytes` of the contract. Ring traffic per rank is that of nccl-tests' PERFORMANCE.md. Limits of frameworks are
the rule `all_reduce_algorithms`; NCCL's numbers are `nccl_cost` and `nccl_caps`. Inside a host trees never win.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import or_
from typing import Any, NamedTuple

from pipewave.errors import BadFile
from pipewave.gpus import GPU
from pipewave.kernels.base import Context
from pipewave.kernels.collective.fabric import Link
from pipewave.physics.arith import ARRAY, Arith, clipped
from pipewave.software.rule_values import SizeLimit
from pipewave.software.rules import constant

# NCCL's protocols: extra start, and share of the link's rate. LL and LL128 carry flags with the data and use few
# channels; Simple synchronises each step but fills the link.
LOW_LATENCY_SHARE = 0.28
SIMPLE_S, SIMPLE_SHARE = 14e-6, 0.75
SENT_S, SENT_SHARE = 3.5e-6, 0.92  # of a send by NVLink under Simple: one step, and nothing to add up

CUSTOM_BELOW = 8.0 * 2.0**20  # bytes: the net of small messages answers below: most kernels of frameworks end here
CUSTOM_WORLDS = (2.0, 4.0, 6.0, 8.0)
OWN_SHARE = 0.62  # of a link's rate that kernels of frameworks fill
START_S, PUSHED_START_S, TWO_SHOT_S = 2.6e-6, 1.2e-6, 1.5e-6


class Ring(NamedTuple):
    """Bytes each rank sends and the steps they take, one after the other."""

    sent: Any
    steps: Any


class Nccl(NamedTuple):
    """Seconds under the low-latency protocols and under Simple; NCCL takes the better."""

    low_latency: Any
    simple: Any
    best: Any  # the faster of the two


def ring(op: str, size: Any, world: Any) -> Ring:
    """Traffic and steps of a bandwidth-optimal ring; all ranks exchange at once in `all_to_all`."""
    share = (world - 1.0) / world
    if op == "all_reduce":
        return Ring(2.0 * share * size, 2.0 * (world - 1.0))
    if op == "send_recv":
        return Ring(size, 0.0 * world + 1.0)
    return Ring(share * size, 1.0 + 0.25 * (world - 2.0) if op == "all_to_all" else world - 1.0)


def nccl(path: Ring, over: Link, xp: Arith = ARRAY, *, sends: bool = False) -> Nccl:
    """Both regimes of NCCL on a link."""
    start = over.start_s + path.steps * over.step_s
    lone = over.direct * float(sends)
    fills = SIMPLE_SHARE + (SENT_SHARE - SIMPLE_SHARE) * lone
    low_latency = start + path.sent / (LOW_LATENCY_SHARE * over.rate)
    simple = start + SIMPLE_S + (SENT_S - SIMPLE_S) * lone + path.sent / (fills * over.rate)
    return Nccl(low_latency, simple, xp.minimum(low_latency, simple))


def reachable(world: Any, nodes: Any, over: Link) -> Any:
    """Where kernels of frameworks can run: 2, 4, 6 or 8 ranks of a host, by NVLink or in pairs."""
    ranks = reduce(or_, (world == each for each in CUSTOM_WORLDS))
    return ranks & (nodes == 1.0) & ((over.direct > 0.0) | (world == 2.0))


# Which kernel sums a message inside a host, and how long it takes.

# Seconds by the bytes of a message, the ranks, and the rate that a kernel draws of a link.
SECONDS: Mapping[str, Callable[[Any, Any, Any], Any]] = {
    # Every rank reads all others' buffers whole, between two barriers.
    "one_shot": lambda size, world, rate: START_S + (world - 1.0) * size / rate,
    # Every rank writes its buffer to all others, who wait for the data itself: no barrier before.
    "pushed": lambda size, world, rate: PUSHED_START_S + (world - 1.0) * size / rate,
    # Every rank reduces a part, and reads the parts of the others; "symmetric" in a buffer that all ranks see.
    **dict.fromkeys(
        ("two_shot", "symmetric"),
        lambda size, world, rate: START_S + TWO_SHOT_S + 2.0 * (world - 1.0) / world * size / rate,
    ),
    # The switch reduces a part for each rank and hands its sum to all: a message up and a message down.
    "switched": lambda size, _world, rate: START_S + TWO_SHOT_S + size / rate,
}
NONE = -1
ALGORITHMS = tuple(SECONDS)
COPIED = ("symmetric", "switched")  # into a buffer that all ranks see, and out of it
MARGIN = -3.0, 3.0


class Own(NamedTuple):
    """Kernels of a framework, per call."""

    algorithm: Any  # place in ALGORITHMS of the one that runs (NONE: none)
    seconds: Any


def one_of(algorithm: Any, names: Sequence[str], xp: Arith) -> Any:
    """1 where one of these runs."""
    return xp.where(reduce(or_, (algorithm == ALGORITHMS.index(name) for name in names)), 1.0, 0.0)


def own(ctx: Context, size: Any, world: Any, over: Link, xp: Arith = ARRAY) -> Own:
    """What the framework runs by its rule, and its time. BadFile where that is none of our algorithms."""
    algorithm = xp.where(size < 0.0, 0, NONE)
    ends = ctx.rule("all_reduce_ends") * 1.0
    limits: Mapping[str, Sequence[SizeLimit]] = ctx.rule("all_reduce_algorithms", link=ctx.gpu.link)  # rising, by ranks
    for ranks, of_ranks in limits.items():
        for name, below in reversed(of_ranks):
            if name not in ALGORITHMS:
                raise BadFile(f"all_reduce_algorithms: {name!r} is none of {', '.join(ALGORITHMS)}", field="rules")
            end = below + ends * (name in COPIED)
            algorithm = xp.where((world == float(ranks)) & (size < end), ALGORITHMS.index(name), algorithm)
    found = 0.0 * size
    for place, law in enumerate(SECONDS.values()):
        found = xp.where(algorithm == place, law(size, world, OWN_SHARE * over.rate), found)
    copies = 4.0 * size / (1e9 * ctx.gpu.dram_gbps) * one_of(algorithm, COPIED, xp)  # reads and writes of memory
    return Own(algorithm, copies + found)


class Chosen(NamedTuple):
    """What NCCL takes, 1 where it does. `margin`: log2 of the low-latency ring's cost over the best other's."""

    ll128: Any
    simple: Any
    switched: Any
    margin: Any


def chosen(gpu: GPU, size: Any, world: Any, nodes: Any, over: Link, xp: Arith = ARRAY, *, in_switch: bool) -> Chosen:
    """The protocol of an all-reduce in one host by NCCL's model; `in_switch`: the switch can sum this type."""
    low, *others = _costs_us(gpu, size, world, over, xp, in_switch=in_switch)
    place, best = 0, low
    for number, other in enumerate(others, 1):
        place = xp.where(other < best, number, place)
        best = xp.minimum(other, best)
    ll128, simple, switched = (xp.where((place == number) & (nodes == 1.0), 1.0, 0.0) for number in (1, 2, 3))
    margin = clipped(xp.log2(low / reduce(xp.minimum, others)), *MARGIN, xp)
    return Chosen(ll128, simple, switched, xp.where(nodes == 1.0, margin, 0.0))


def _costs_us(gpu: GPU, size: Any, world: Any, over: Link, xp: Arith, *, in_switch: bool) -> tuple[Any, ...]:
    """What NCCL takes LL, LL128 and Simple rings and sums in the switch for; infinite where it does not offer one."""
    caps = constant("nccl_caps", mma=gpu.traits.mma)
    linked = over.direct > 0.0
    models = [constant("nccl_cost", over=name) for name in ("nvlink", "pcie")]

    def of(name: str) -> Any:
        return xp.where(linked, *(getattr(model, name) for model in models))

    gbps = (
        xp.where(linked, gpu.link_gbps, gpu.pcie_gbps)
        * of("link_share")
        * xp.where(world > of("halved_beyond_ranks"), 0.5, 1.0)
    )
    bus_us = 2.0 * (world - 1.0) / world * size / (1e3 * gbps)  # a ring's traffic at the full rate
    steps = 2.0 * (world - 1.0)
    low = of("ll_us") + steps * of("ll_step_us") + bus_us * xp.maximum(2.0, gbps / caps.ll_gbps)
    middle = of("ll128_us") + steps * of("ll128_step_us") + bus_us / of("ll128_share")
    simple = of("simple_us") + steps * of("simple_step_us") + bus_us
    switch = math.inf
    if in_switch and caps.switch_share:
        switch = caps.switch_us + size / (1e3 * gbps * caps.switch_share)
    return low, xp.where(linked, middle, math.inf), simple, xp.where(linked & (world > 2.0), switch, math.inf)

"""How tokens spread over experts, and the sizes of an expert layer that follow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

from pipewave.calls.dtypes import ACTIVATION_BYTES
from pipewave.kernels.base import Columns, Context
from pipewave.physics.cache import PROFILER_WARM
from pipewave.physics.demand import Array
from pipewave.software.rules import constant

SHAPE = ("hidden", "inter", "topk", "experts")
UNGATED = "ungated"  # layers that a stack gives to another kernel than others of their type
WHOLE, SHARED = "whole", "shared"  # whether a rank holds all experts or shares them with others


def model(case: Mapping[str, Any]) -> str:
    """Which model's experts they are, where a stack may care; empty for the usual layer."""
    if not case.get("gated", True):
        return UNGATED
    return str(constant("moe_model", layer=tuple(case[name] for name in SHAPE)))


def chosen_by(case: Mapping[str, Any]) -> str:
    """What a stack may choose a kernel by, besides GPU and type: `model,whole` or `model,shared`."""
    return f"{model(case)},{SHARED if case.get('ep', 1) > 1 else WHOLE}"


# How many tokens each expert of a rank receives: a histogram of expected loads for a whole batch of calls.
#
# Experts are sorted by load and stood for by `NODES` of them, denser towards the busy end. A node is a load of its own
# (not of whole experts), so 8 or 512 experts take the same arrays.
#
# Power laws follow the collector of AIConfigurator: each expert draws a weight x from a density x^-A, on [1,
# 0.8·tokens] where there are more routed pairs than experts and on [0.01, 2] otherwise; loads are the weights scaled
# to the routed pairs and rounded; what rounding lost goes one by one to the idlest experts; rank 0 is given the
# busiest group. Among equally idle experts it went to any (`SPREAD`) or, in older collections, to the `FIRST` ones by
# number, so that few tokens all met on one rank; in the oldest it went to the `BUSIEST` experts first (rule
# `moe_rounding_remainder`).

NODES = 32
SPREAD, FIRST, BUSIEST = "spread", "first", "busiest"  # which experts get the tokens that rounding lost
_EDGES = 1.0 - (1.0 - np.linspace(0.0, 1.0, NODES + 1)) ** 2.5
_WEIGHT = np.diff(_EDGES)
_AT = (_EDGES[1:] + _EDGES[:-1]) / 2.0  # quantile of each node
_NORMAL = np.array([NormalDist().inv_cdf(at) for at in _AT])


@dataclass(frozen=True, slots=True)
class Routing:
    """Loads of one rank's experts, [call] but for `loads` and `weight`."""

    local: Array  # experts of the rank
    active: Array  # those with a token
    sure: Array  # as many have one in all but rare draws
    pairs: Array  # (token, choice) pairs it works on
    busiest: Array  # tokens of the busiest expert
    skew: Array  # its pairs over those of an even share
    loads: Array  # tokens, [call, node]
    weight: Array

    def blocks(self, rows: Array) -> Array:
        """Expected blocks of `rows` tokens ([call] or [1]), every expert's share padded to whole blocks."""
        more = np.maximum(np.ceil(self.loads / rows[:, None]) - 1.0, 0.0)
        return np.asarray(self.active + self.local * (more @ self.weight))


def routing(cols: Any, kind: str | tuple[int, ...], leftover: str = SPREAD) -> Routing:
    """Loads for `balanced`, `random`, `uniform`, `power_law_A`, `power_law_A_eplb`, `alike_N`, or given tokens per
    expert.

    `random` and `uniform` choose k experts a token at random without preference (a softmax of independent normal
    logits does), so loads are binomial. `alike_N`: the same of N requests that are copies of one another, so that
    each token comes N times. `leftover`: who gets what a power law's rounding lost.
    """
    if isinstance(kind, tuple):
        return _given(cols, np.asarray(kind, np.float64))
    if kind.startswith("power_law"):
        alpha, _, eplb = kind.removeprefix("power_law_").partition("_")
        return _power_law(cols, float(alpha), SPREAD if eplb else leftover, spread=bool(eplb))
    if kind.startswith("alike_"):
        return _alike(cols, float(kind.removeprefix("alike_")))
    if kind != "balanced":
        return _random(cols)
    # Every expert within one token of every other; with few tokens, one each for evenly spaced experts.
    mean = cols["tokens"] * cols["topk"] / cols["experts"]
    pairs = np.maximum(mean * cols["experts"] / cols["ep"], 1.0)
    return _exact(cols, np.floor(mean[:, None] + _AT), pairs, pairs)


def _exact(cols: Any, loads: Array, active: Array, pairs: Array, weight: Array = _WEIGHT) -> Routing:
    """Loads that are known, not drawn."""
    local = cols["experts"] / cols["ep"]
    active = np.clip(active, 1.0, local)
    even = cols["tokens"] * cols["topk"] / cols["ep"]
    top = np.clip(np.cumsum(weight) - (1.0 - 1.0 / local)[:, None], 0.0, weight)  # the busiest expert's share of nodes
    busiest = np.maximum((loads * top).sum(axis=1) / top.sum(axis=1), pairs / active)
    return Routing(local, active, active, pairs, busiest, pairs / even, loads, weight)


def _drawn(cols: Any, loads: Array, active: Array, pairs: Array) -> Routing:
    """Loads that vary from draw to draw, fitted to the pairs, which are known better than single loads."""
    total = cols["experts"] / cols["ep"] * (loads @ _WEIGHT)
    fitted = np.round(loads * (pairs / np.maximum(total, 1e-9))[:, None])
    known = _exact(cols, np.minimum(fitted, cols["tokens"][:, None]), active, pairs)
    deviation = np.sqrt(known.active * (1.0 - known.active / known.local))
    fewest = np.where(cols["ep"] > 1, 1.0, cols["topk"])  # every token needs as many experts as it chooses
    return replace(known, sure=np.minimum(np.maximum(known.active - 2.5 * deviation, fewest), known.active))


def _random(cols: Any) -> Routing:
    share = cols["topk"] / cols["experts"]
    mean = cols["tokens"] * share
    deviation = np.sqrt(mean * (1.0 - share))
    skewed = (1.0 - 2.0 * share[:, None]) * (_NORMAL**2 - 1.0) / 6.0
    loads = np.maximum(mean[:, None] + deviation[:, None] * _NORMAL + skewed, 0.0)
    local = cols["experts"] / cols["ep"]
    idle = (1.0 - share) ** cols["tokens"]
    return _drawn(cols, loads, local * (1.0 - idle), np.maximum(local * mean, 1.0))


def _alike(cols: Any, copies: float) -> Routing:
    distinct = np.maximum(np.ceil(cols["tokens"] / copies), 1.0)
    each = cols["tokens"] / distinct
    once = _random({name: cols[name] for name in ("experts", "topk", "ep")} | {"tokens": distinct})
    pairs = once.pairs * each
    idle = 1.0 - (once.active / once.local)[:, None]
    chosen = np.clip((np.cumsum(_WEIGHT) - idle) / _WEIGHT, 0.0, 1.0)  # of each node, by a single token
    loads = np.where(distinct[:, None] > 1.0, once.loads * each[:, None], chosen * (pairs / once.active)[:, None])
    return replace(once, loads=loads, pairs=pairs, busiest=once.busiest * each)


def _power_law(cols: Any, alpha: float, leftover: str, *, spread: bool) -> Routing:
    tokens, experts = cols["tokens"][:, None], cols["experts"][:, None]
    routed = tokens * cols["topk"][:, None]
    many = routed > experts
    low, high = np.where(many, 1.0, 0.01), np.where(many, np.maximum(0.8 * tokens, 1.0 + 1e-3), 2.0)
    power = 1.0 - (alpha if abs(alpha - 1.0) > 1e-3 else 1.001)
    first, last = low**power, high**power
    drawn = (first + (last - first) * _AT) ** (1.0 / power)
    mean = (drawn @ _WEIGHT)[:, None]
    tilt = 1.0 if spread else _tilt(cols, drawn, mean)
    scale = routed / (experts * mean)
    lost = np.maximum(routed - experts * (np.round(drawn * scale) @ _WEIGHT)[:, None], 0.0)  # loads below one half
    loads = (first + (last - first) * _AT ** (1.0 / tilt)) ** (1.0 / power) * scale
    half = np.clip((0.5 / scale) ** power, np.minimum(first, last), np.maximum(first, last))
    below = (half - first) / (last - first)  # share of experts with less than half a token
    local = cols["experts"] / cols["ep"]
    whole = local * (np.minimum(np.round(loads), tokens) @ _WEIGHT)
    busiest = _Rank(local * (1.0 - below**tilt)[:, 0], whole)
    even = _Rank(local * (1.0 - below)[:, 0], (routed - lost)[:, 0] / cols["ep"])
    rank = _with_leftover(busiest, even, lost[:, 0], cols, leftover)
    pairs = np.where(cols["ep"] > 1, np.clip(rank.pairs, 1.0, routed[:, 0]), routed[:, 0])
    loads = np.round(loads / (1.0 + (loads / routed - 1.0 / experts)))  # a large weight raises the sum it is part of
    return _drawn(cols, loads, np.minimum(rank.active, pairs), pairs)


class _Rank(NamedTuple):
    """Active experts and pairs of a rank [call]."""

    active: Array
    pairs: Array


def _with_leftover(busiest: _Rank, even: _Rank, lost: Array, cols: Any, leftover: str) -> _Rank:
    """The rank with most pairs after the tokens that rounding lost are dealt, one an expert.

    Spread, every rank gets its share. In the order of their numbers, the first rank's idle experts get them all (the
    first rank is as good as any before); `BUSIEST` deals to experts that have tokens before those that have none.
    """
    ep, local = cols["ep"], cols["experts"] / cols["ep"]
    if leftover == SPREAD:
        return _Rank(busiest.active + lost / ep, busiest.pairs + lost / ep)
    more = np.minimum(lost, even.active * ep) / ep if leftover == BUSIEST else np.zeros_like(lost)
    filled = np.minimum(lost - more * ep, local - even.active)
    first = _Rank(even.active + filled, even.pairs + more + filled)
    other = _Rank(busiest.active, busiest.pairs + more)
    here = first.pairs > other.pairs
    return _Rank(np.where(here, first.active, other.active), np.where(here, first.pairs, other.pairs))


def _tilt(cols: Any, drawn: Array, mean: Array) -> Array:
    """How far the busiest of `ep` groups leans to high quantiles: u becomes u^(1/tilt). Fitted to simulated draws.

    With one expert a group it is the largest of `ep` draws (tilt = ep); large groups differ little.
    """
    experts, ep = cols["experts"][:, None], cols["ep"][:, None]
    variation = np.sqrt(np.maximum((drawn**2 @ _WEIGHT)[:, None] / mean**2 - 1.0, 1e-9))
    large = np.minimum(2.1 * experts**-0.62 * np.sqrt(variation), 1.0)
    return np.asarray(1.0 + (ep - 1.0) * (large + (1.0 - large) * (ep / experts) ** 4))


def _given(cols: Any, counts: Array) -> Routing:
    """One list for all calls: per expert of the model (the busiest rank is taken) or per local expert."""
    local = cols["experts"] / cols["ep"]
    sizes, of = np.unique(local.astype(int), return_inverse=True)  # experts of a rank, all of which divide the list
    nodes = int(np.lcm.reduce(sizes))
    ranks = (counts.reshape(-1, size) for size in sizes)
    loads = np.array([np.sort(each[each.sum(axis=1).argmax()]).repeat(nodes // each.shape[1]) for each in ranks])[of]
    active, pairs = (each.sum(axis=1) * (local / nodes) for each in (loads > 0.0, loads))
    return _exact(cols, loads, active, np.maximum(pairs, 1.0), np.full(nodes, 1.0 / nodes))


# A fused-MoE call on one rank, as numbers its formulas share: routing, products, and bytes that enter and leave.

LOCAL = "local"  # of all tokens, those with a choice on the rank enter its kernels (rule `moe_rank_tokens`)


class Product(NamedTuple):
    """One grouped GEMM: every active expert multiplies its tokens by its own [n, k] matrix."""

    n: Array
    k: Array


@dataclass(frozen=True, slots=True)
class Layer:
    """A batch of calls: the rank's routing, its products, and bytes [call]."""

    part: str
    tokens: Array
    experts: Array
    topk: Array
    hidden: Array
    inter: Array  # of one expert on this rank
    up: Array  # matrices in w13: 2 when gated
    routing: Routing
    carried: Array  # pairs of all ranks, which some engines carry along
    products: tuple[Product, ...]

    @property
    def matrices(self) -> Array:
        """Elements of one expert's weights that this call uses."""
        return np.asarray(sum(product.n * product.k for product in self.products))

    @property
    def flops(self) -> Array:
        """Least arithmetic: no padding."""
        return np.asarray(2.0 * self.routing.pairs * self.matrices)

    @property
    def inputs(self) -> Array:
        """Bytes entering: the hidden states, or for w2 alone the activated pairs."""
        if self.part == "w2":
            return ACTIVATION_BYTES * self.routing.pairs * self.inter
        tokens = np.minimum(self.tokens, np.ceil(self.routing.pairs / self.topk))  # with a local expert, at least
        return np.asarray(ACTIVATION_BYTES * tokens * self.hidden)

    @property
    def outputs(self) -> Array:
        """Bytes leaving: hidden states, or the pairs of one product alone."""
        per_pair = {"w13": self.up * self.inter, "w2": self.hidden}.get(self.part)
        return ACTIVATION_BYTES * (self.tokens * self.hidden if per_pair is None else self.routing.pairs * per_pair)


def layer(cols: Columns, ctx: Context) -> Layer:
    """Numbers of a batch of calls. PipeWeave's rows, which define `profiler_warm`, were routed evenly."""
    part, kind = ctx.option("part", "all"), ctx.option("routing", "random")
    if ctx.protocol == PROFILER_WARM and kind == "random":
        kind = "balanced"
    inter = cols["inter"] / cols["tp"]
    up = np.where(cols["gated"] > 0, 2.0, 1.0)
    first, second = Product(up * inter, cols["hidden"]), Product(cols["hidden"], inter)
    products = {"w13": (first,), "w2": (second,)}.get(part, (first, second))
    sizes = {name: cols[name] for name in ("tokens", "experts", "topk", "hidden")}
    routed = routing(cols, kind, ctx.rule("moe_rounding_remainder"))
    if ctx.rule("moe_rank_tokens") == LOCAL:
        tokens, topk = sizes["tokens"], sizes["topk"]
        if kind == "balanced":  # one choice each
            sizes["tokens"] = np.minimum(tokens, np.ceil(routed.pairs))
        else:
            sizes["tokens"] = tokens * (1.0 - (1.0 - np.minimum(routed.pairs / (tokens * topk), 1.0)) ** topk)
    carried = sizes["tokens"] * sizes["topk"]
    return Layer(part=part, inter=inter, up=up, routing=routed, products=products, carried=carried, **sizes)


# Weights that do not depend on a step's tokens: how much of a whole load each expert draws.
#
# `power_law_A` names two laws. Of a call (above), weights span a range that follows its tokens, as AIConfigurator's
# collector draws them for each measurement. Of a load that many steps share (here), they span three decades whatever a
# step holds: what an expert-parallel load balancer sees, and what makes one rank fuller than another.

DRAWS, WIDEST = 16, 1000.0  # draws to average over; the largest weight over the smallest


def steady_weights(power: float, experts: int) -> list[Array]:
    """Weights of experts from a density x^-power on [1, 1000], in no order; seeded."""
    rng = np.random.default_rng(0)
    rest = 1.0 - power if abs(power - 1.0) > 1e-3 else 1e-3
    top = WIDEST**rest
    return [np.asarray((1.0 + (top - 1.0) * rng.random(experts)) ** (1.0 / rest)) for _ in range(DRAWS)]

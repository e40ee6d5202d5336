"""A fused-MoE call on one rank, as numbers its formulas share: routing, products, and bytes that enter and leave."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipewave.calls.dtypes import ACTIVATION_BYTES
from pipewave.kernels.base import Columns, Context
from pipewave.kernels.moe.routing import Routing, routing
from pipewave.physics.cache import PROFILER_WARM
from pipewave.physics.demand import Array

LOCAL = "local"  # of all tokens, those with a choice on the rank enter its kernels (rule `moe_enters`)


@dataclass(frozen=True, slots=True)
class Product:
    """One grouped GEMM: every active expert multiplies its tokens by its own [n, k] matrix."""

    n: Array
    k: Array

    def flops(self, pairs: Array) -> Array:
        """Two per multiply-add."""
        return 2.0 * pairs * self.n * self.k


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
        return np.asarray(sum(product.flops(self.routing.pairs) for product in self.products))

    @property
    def inputs(self) -> Array:
        """Bytes entering: the hidden states, or for w2 alone the activated pairs."""
        rows = self.routing.pairs * self.inter if self.part == "w2" else self.entering * self.hidden
        return np.asarray(ACTIVATION_BYTES * rows)

    @property
    def entering(self) -> Array:
        """Tokens with at least one local expert, at least."""
        return np.asarray(np.minimum(self.tokens, np.ceil(self.routing.pairs / self.topk)))

    @property
    def outputs(self) -> Array:
        """Bytes leaving: hidden states, or the pairs of one product alone."""
        per_pair = {"w13": self.up * self.inter, "w2": self.hidden}.get(self.part)
        return ACTIVATION_BYTES * (self.tokens * self.hidden if per_pair is None else self.routing.pairs * per_pair)


def _with_a_choice_here(tokens: Array, topk: Array, pairs: Array, kind: str | tuple[int, ...]) -> Array:
    """Tokens with an expert on the rank: one choice each where routing is balanced, else as chance has it."""
    if kind == "balanced":
        return np.minimum(tokens, np.ceil(pairs))
    return np.asarray(tokens * (1.0 - (1.0 - np.minimum(pairs / (tokens * topk), 1.0)) ** topk))


def layer(cols: Columns, ctx: Context) -> Layer:
    """Numbers of a batch of calls.

    PipeWeave's rows, which define `profiler_warm`, were routed evenly.
    """
    part, kind = ctx.option("part", "all"), ctx.option("routing", "random")
    if ctx.protocol == PROFILER_WARM and kind == "random":
        kind = "balanced"
    inter = cols["inter"] / cols["tp"]
    up = np.where(cols["gated"] > 0, 2.0, 1.0)
    first, second = Product(up * inter, cols["hidden"]), Product(cols["hidden"], inter)
    products = {"w13": (first,), "w2": (second,)}.get(part, (first, second))
    sizes = {name: cols[name] for name in ("tokens", "experts", "topk", "hidden")}
    routed = routing(cols, kind, ctx.rule("moe_leftover"))
    if ctx.rule("moe_enters") == LOCAL:
        sizes["tokens"] = _with_a_choice_here(sizes["tokens"], sizes["topk"], routed.pairs, kind)
    carried = sizes["tokens"] * sizes["topk"]
    return Layer(part=part, inter=inter, up=up, routing=routed, products=products, carried=carried, **sizes)

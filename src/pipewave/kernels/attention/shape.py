"""What a batch of attention calls with one context asks for, before any implementation is chosen."""

from __future__ import annotations

from typing import NamedTuple

from pipewave.calls.dtypes import ACTIVATION_BYTES
from pipewave.kernels.attention.requests import Amount, Requests
from pipewave.kernels.attention.tiles import visible_keys, visible_pairs
from pipewave.physics.arith import Arith
from pipewave.physics.demand import Array


class Heads(NamedTuple):
    """Head layout of a batch: counts per call, dimensions of the batch. `window` is None where every call sees all.

    `latent`: values are a part of the keys, as in a compressed cache.
    """

    heads: Amount
    kv_heads: Amount
    window: Amount | None
    dim: float
    dim_v: float
    kv_bytes: float  # per cached element
    q_bytes: float  # per element of the queries
    causal: bool = True
    latent: bool = False

    @property
    def cached(self) -> float:
        """Elements a KV head caches for one token."""
        return self.dim if self.latent else self.dim + self.dim_v


class Shape(NamedTuple):
    """Sizes per call, but for `window`: that is per request group."""

    requests: Requests
    layout: Heads
    group: Amount  # query heads per KV head
    window: Array | float | None
    tokens: Amount  # new tokens of all requests
    longest: Amount  # new tokens of the request that brings most
    pairs: Amount  # query-key pairs of all heads
    keys: Amount  # keys that any query sees, of all requests
    cache_bytes: Amount
    query_bytes: Amount
    out_bytes: Amount
    moved: Amount  # bytes in and out when each is touched once

    @property
    def xp(self) -> Arith:
        """Arithmetic of amounts per call."""
        return self.requests.xp

    @property
    def batch(self) -> Amount:
        """Requests of each call."""
        return self.requests.batch


def shape_of(requests: Requests, layout: Heads) -> Shape:
    """Count tokens, pairs and bytes."""
    window = None if layout.window is None else requests.spread(layout.window)
    tokens = requests.total(requests.q)
    keys = requests.total(visible_keys(requests.q, requests.kv, window))
    pairs = requests.total(visible_pairs(requests.q, requests.kv, window, layout.causal))
    rows = tokens * layout.heads
    cache = keys * layout.kv_heads * (layout.kv_bytes * layout.cached)
    queries, out = rows * (layout.q_bytes * layout.dim), rows * (ACTIVATION_BYTES * layout.dim_v)
    return Shape(
        requests=requests,
        layout=layout,
        group=layout.heads / layout.kv_heads,
        window=window,
        tokens=tokens,
        longest=requests.largest(requests.q),
        pairs=pairs * layout.heads,
        keys=keys,
        cache_bytes=cache,
        query_bytes=queries,
        out_bytes=out,
        moved=cache + queries + out,
    )

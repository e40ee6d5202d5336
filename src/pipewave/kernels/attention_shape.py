"""What a batch of attention calls with one context asks for, before any implementation is chosen."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipewave.demand import Array
from pipewave.kernels.attention_requests import Requests
from pipewave.kernels.attention_tiles import visible_keys, visible_pairs
from pipewave.kernels.dtypes import ACTIVATION_BYTES


@dataclass(frozen=True, slots=True)
class Heads:
    """Head layout of a batch: counts and window per call, dimensions of the batch. `latent`: V is a part of K."""

    heads: Array
    kv_heads: Array
    window: Array
    dim: float
    dim_v: float
    kv_bytes: float
    causal: bool = True
    latent: bool = False

    @property
    def cached(self) -> float:
        """Elements a KV head caches for one token."""
        return self.dim if self.latent else self.dim + self.dim_v


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes per call, but for `window` and `seen` (keys any query sees): those are per request group."""

    requests: Requests
    layout: Heads
    group: Array  # query heads per KV head
    window: Array
    batch: Array
    tokens: Array  # new tokens of all requests
    pairs: Array  # query-key pairs of all heads
    seen: Array
    keys: Array  # `seen` of all requests
    cache_bytes: Array
    query_bytes: Array
    out_bytes: Array

    @property
    def moved(self) -> Array:
        """Bytes in and out when each is touched once."""
        return self.cache_bytes + self.query_bytes + self.out_bytes


def shape_of(requests: Requests, layout: Heads) -> Shape:
    """Count tokens, pairs and bytes."""
    spread = requests.spread(layout.window)
    seen = visible_keys(requests.q, requests.kv, spread)
    tokens, keys = requests.total(requests.q), requests.total(seen)
    activations = ACTIVATION_BYTES * tokens * layout.heads
    return Shape(
        requests=requests,
        layout=layout,
        group=layout.heads / layout.kv_heads,
        window=spread,
        batch=np.add.reduceat(requests.count, requests.starts),
        tokens=tokens,
        pairs=requests.total(visible_pairs(requests.q, requests.kv, spread, layout.causal)) * layout.heads,
        seen=seen,
        keys=keys,
        cache_bytes=layout.kv_bytes * layout.cached * keys * layout.kv_heads,
        query_bytes=activations * layout.dim,
        out_bytes=activations * layout.dim_v,
    )

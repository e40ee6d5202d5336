"""Work of attention calls: groups of alike requests, tiles of queries and keys, bytes and FLOPs of each call."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipewave.calls.dtypes import ACTIVATION_BYTES
from pipewave.kernels.base import Columns
from pipewave.physics.arith import ARRAY, SCALAR, Arith, clipped
from pipewave.physics.demand import Array

# The requests of a batch of attention calls as run-length groups: 2,048 equal sequences are as cheap as one.

# Below this many requests a call, finding runs costs more than it saves.
WORTH_GROUPING = 64

ONLY = np.zeros(1, np.intp)  # where the groups of the only call start

Amount = Any  # of each call: an array, or a plain float where the batch is one call


@dataclass(frozen=True, slots=True)
class Requests:
    """Groups of equal neighbours; call i owns the groups starts[i] to starts[i + 1], at least one."""

    q: Array  # new tokens of a request
    kv: Array  # its keys
    count: Array | None  # requests of each group; None: one each
    batch: Amount  # requests of each call
    starts: NDArray[np.intp]
    owner: NDArray[np.intp] | None  # the call of each group, None where they match one to one
    calls: int = field(init=False)
    xp: Arith = field(init=False)  # of amounts per call
    each: Arith = field(init=False, default=ARRAY)  # of amounts per group

    def __post_init__(self) -> None:
        object.__setattr__(self, "calls", len(self.starts))
        object.__setattr__(self, "xp", SCALAR if len(self.starts) == 1 else ARRAY)

    def per_call(self, column: Array) -> Amount:
        """A column of the calls as an amount."""
        return float(column[0]) if self.calls == 1 else column

    def column(self, amount: Amount) -> Array:
        """An amount as a column of the calls."""
        return np.asarray(amount, float).reshape(self.calls)

    def total(self, per_request: Array) -> Amount:
        """Sum of a quantity over the requests of each call."""
        every = per_request if self.count is None else per_request * self.count
        return sum(every.tolist()) if self.calls == 1 else np.add.reduceat(every, self.starts)

    def largest(self, per_request: Array) -> Amount:
        """Largest of a quantity among the requests of each call."""
        return max(per_request.tolist()) if self.calls == 1 else np.maximum.reduceat(per_request, self.starts)

    def so_far(self, per_request: Array) -> Array:
        """For each group, the sum over the requests of its call up to its last one."""
        every = per_request if self.count is None else per_request * self.count
        ends = every.cumsum()
        if self.calls > 1:
            first = ends[self.starts] - every[self.starts]
            ends -= first if self.owner is None else first[self.owner]
        return ends

    def spread(self, amount: Amount) -> Array | float:
        """An amount of each call, for its groups."""
        if self.owner is None or not isinstance(amount, np.ndarray):
            return amount  # type: ignore[no-any-return]
        return np.asarray(amount[self.owner])


@dataclass(frozen=True, slots=True)
class Alike:
    """The requests of one call that are all alike: as `Requests`, in numbers, or in symbols of a recorded formula."""

    q: Amount
    kv: Amount
    batch: Amount
    xp: Arith = SCALAR

    @property
    def each(self) -> Arith:
        """Arithmetic of amounts per group: there is one."""
        return self.xp

    def total(self, per_request: Amount) -> Amount:
        """Sum over the requests."""
        return per_request * self.batch

    so_far = total

    def largest(self, per_request: Amount) -> Amount:
        """Of any request."""
        return per_request

    spread = largest


AnyRequests = Requests | Alike


def requests_of(cols: Columns) -> Requests:
    """The lists `q_lens` and, where calls have keys, `kv_lens` of the columns, grouped where that pays."""
    q, kv, offsets = cols["q_lens"].values, cols.get("kv_lens", cols["q_lens"]).values, cols["q_lens"].offsets
    calls = len(offsets) - 1
    if len(q) >= WORTH_GROUPING * calls:
        return _grouped(q, kv, offsets)
    if calls == 1:
        return Requests(q, kv, None, float(len(q)), ONLY, None)
    batch = np.diff(offsets)
    owner = None if calls == len(q) else np.repeat(np.arange(calls), batch)
    return Requests(q, kv, None, batch.astype(float), offsets[:-1], owner)


def requests_of_one(q_lens: Sequence[int], kv_lens: Sequence[int]) -> AnyRequests:
    """The lists of one call, grouped where that pays."""
    if q_lens.count(q_lens[0]) == kv_lens.count(kv_lens[0]) == len(q_lens):
        return Alike(float(q_lens[0]), float(kv_lens[0]), float(len(q_lens)))
    q, kv = np.array((q_lens, kv_lens), np.float64)
    if len(q) >= WORTH_GROUPING:
        return _grouped(q, kv, np.array([0, len(q)]))
    return Requests(q, kv, None, float(len(q)), ONLY, None)


def _grouped(q: Array, kv: Array, offsets: NDArray[np.intp]) -> Requests:
    first = np.empty(len(q), bool)
    first[1:] = (q[1:] != q[:-1]) | (kv[1:] != kv[:-1])
    first[offsets[:-1]] = True
    at = np.flatnonzero(first)
    starts = np.searchsorted(at, offsets[:-1])
    owner = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(at))))
    count = np.diff(np.append(at, len(q))).astype(float)
    batch = np.diff(offsets).astype(float)
    return Requests(q[at], kv[at], count, float(batch[0]) if len(batch) == 1 else batch, starts, owner)


# Which query-key pairs and which KV tiles a request visits: closed forms, no loop over tiles.
#
# A query at position p of a request with `kv` keys, of which the last `q` are its own, sees the keys up to its own
# position (causal), or all of them, and at most the last `window` of those. Where no window is given (None) all are
# seen; an entry of 0 says so for one request.

Steps = tuple[Amount, Amount, Amount]


def visible_pairs(q: Amount, kv: Amount, window: Amount | None, causal: bool, xp: Arith = ARRAY) -> Amount:
    """Query-key pairs a request must score."""
    full = q * (kv - 0.5 * (q - 1.0)) if causal else q * kv
    if window is None:
        return full
    reach = xp.where(window > 0, xp.minimum(window, kv), kv)
    if not causal:
        return xp.minimum(full, q * reach)
    short = clipped(reach - (kv - q), 0.0, q, xp)  # first queries still see fewer keys than the window
    first = kv - q + 1
    return xp.where(window > 0, short * first + short * (short - 1) / 2 + (q - short) * reach, full)


def visible_keys(q: Amount, kv: Amount, window: Amount | None, xp: Arith = ARRAY) -> Amount:
    """Keys that any query of a request sees."""
    return kv if window is None else xp.where(window > 0, xp.minimum(kv, window + q - 1), kv)


def tile_steps(
    q: Amount, kv: Amount, window: Amount | None, rows: Amount, keys: float, causal: bool, xp: Arith = ARRAY
) -> Steps:
    """Query tiles of a request, the KV tiles they visit in all, and those of its longest tile.

    `rows`: queries a tile holds (fewer than its height where heads are packed into it); `keys`: keys of a KV tile.
    Sums use the mean rounding loss over a whole period of tile offsets, so that they are exact there.
    """
    tiles = xp.ceil(q / rows)
    whole = xp.ceil(kv / keys)
    if not causal:
        return tiles, tiles * whole, whole
    before, others = kv - q, tiles - 1.0
    # All tiles but the last end at before + (t + 1) · rows keys; the last at kv.
    steps = others * ((before + rows * tiles * 0.5) * (1.0 / keys) + _mean_excess(before, rows, keys, xp)) + whole
    if window is None:
        return tiles, steps, whole
    hidden = xp.where(window > 0, _hidden_tiles(before - window + 1, tiles, rows, keys, xp), 0.0)
    longest = xp.where(window > 0, xp.minimum(whole, xp.ceil((window + rows) / keys) + 1), whole)
    # A request that sees all its keys counts alike, whatever requests stand beside it.
    return tiles, xp.where(window > 0, xp.maximum(steps - hidden, tiles), steps), longest


def _mean_excess(offset: Amount, stride: Amount, keys: float, xp: Arith) -> Amount:
    """Mean of ceil(x / keys) - x / keys over x = offset + stride, offset + 2 · stride, ... for a whole period."""
    common = math.gcd(int(stride), int(keys)) if isinstance(stride, float) else xp.gcd(stride, keys)
    if isinstance(stride, float) and common == 1:  # every phase occurs
        return (keys - 1.0) * (0.5 / keys)
    phase = offset % common
    return ((phase > 0) * (2.0 * (common - phase)) + (keys - common)) * (0.5 / keys)


def _hidden_tiles(start: Amount, tiles: Amount, rows: Amount, keys: float, xp: Arith) -> Amount:
    """KV tiles wholly before the window of a query tile, summed: tile t hides floor((start + t · rows) / keys)."""
    first = clipped(xp.ceil(-start / rows), 0.0, tiles, xp)
    count = tiles - first
    keys_hidden = count * (start + rows * (tiles - 1 + first) / 2)
    return xp.maximum(keys_hidden / keys - count * 0.5 * (1 - 1 / keys), 0.0)


# What a batch of attention calls with one context asks for, before any implementation is chosen.


class Heads(NamedTuple):
    """Head layout of a batch: counts per call, dimensions of the batch."""

    heads: Amount
    kv_heads: Amount
    window: Amount | None  # None where every call sees all
    dim: float
    dim_v: float
    kv_bytes: float  # per cached element
    q_bytes: float  # per element of the queries
    causal: bool = True
    latent: bool = False  # values are a part of the keys, as in a compressed cache

    @property
    def cached(self) -> float:
        """Elements a KV head caches for one token."""
        return self.dim if self.latent else self.dim + self.dim_v


class Shape(NamedTuple):
    """Sizes per call, but for `window`: that is per request group."""

    requests: AnyRequests
    layout: Heads
    group: Amount  # query heads per KV head
    window: Amount | None
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

    @property
    def new_bytes(self) -> tuple[Amount, Amount]:
        """Bytes of queries, and of keys and values, that are new."""
        layout = self.layout
        queries = self.tokens * layout.heads * (ACTIVATION_BYTES * layout.dim)
        return queries, self.tokens * layout.kv_heads * (ACTIVATION_BYTES * layout.cached)


def shape_of(requests: AnyRequests, layout: Heads) -> Shape:
    """Count tokens, pairs and bytes."""
    window = None if layout.window is None else requests.spread(layout.window)
    tokens = requests.total(requests.q)
    keys = requests.total(visible_keys(requests.q, requests.kv, window, requests.each))
    pairs = requests.total(visible_pairs(requests.q, requests.kv, window, layout.causal, requests.each))
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

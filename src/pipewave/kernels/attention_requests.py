"""The requests of a batch of attention calls as run-length groups: 2,048 equal sequences are as cheap as one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipewave.demand import Array
from pipewave.kernels.base import Columns

# Below this many requests a call, finding runs costs more than it saves.
WORTH_GROUPING = 64


@dataclass(frozen=True, slots=True)
class Requests:
    """Groups of equal neighbours: `count` requests with `q` new tokens and `kv` keys.

    Call i owns the groups starts[i] to starts[i + 1]; every call has at least one. `owner` is the call of each group,
    None where they match one to one. `batch` counts the requests of each call.
    """

    q: Array
    kv: Array
    count: Array | float
    batch: Array
    starts: NDArray[np.intp]
    owner: NDArray[np.intp] | None

    def total(self, per_request: Array) -> Array:
        """Sum of a quantity over the requests of each call."""
        return np.add.reduceat(per_request * self.count, self.starts)

    def largest(self, per_request: Array) -> Array:
        """Largest of a quantity among the requests of each call."""
        return np.maximum.reduceat(per_request, self.starts)

    def spread(self, per_call: Array) -> Array | float:
        """A quantity of each call, for its groups."""
        if len(self.starts) == 1:
            return float(per_call[0])
        return per_call if self.owner is None else per_call[self.owner]


def requests_of(cols: Columns) -> Requests:
    """The lists `q_lens` and `kv_lens` of the columns, grouped where that pays."""
    q, kv, offsets = cols["q_lens"].values, cols["kv_lens"].values, cols["q_lens"].offsets
    calls, batch = len(offsets) - 1, np.diff(offsets)
    if len(q) >= WORTH_GROUPING * calls:
        return _grouped(q, kv, offsets)
    owner = None if calls == len(q) else np.repeat(np.arange(calls), batch)
    return Requests(q, kv, 1.0, batch.astype(float), offsets[:-1], owner)


def _grouped(q: Array, kv: Array, offsets: NDArray[np.intp]) -> Requests:
    first = np.empty(len(q), bool)
    first[1:] = (q[1:] != q[:-1]) | (kv[1:] != kv[:-1])
    first[offsets[:-1]] = True
    at = np.flatnonzero(first)
    starts = np.searchsorted(at, offsets[:-1])
    owner = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(at))))
    count = np.diff(np.append(at, len(q))).astype(float)
    return Requests(q[at], kv[at], count, np.diff(offsets).astype(float), starts, owner)


def uniform(q: Array, kv: Array, batch: Array) -> Requests:
    """Calls whose requests are all alike: `batch` of them, `q` new tokens and `kv` keys each."""
    return Requests(q, kv, batch, batch, np.arange(len(q)), None)

"""The requests of a batch of attention calls as run-length groups, so that 2,048 equal sequences cost as much as one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipewave.demand import Array
from pipewave.kernels.base import Columns

# Below this many requests a call, finding runs costs more than it saves.
WORTH_GROUPING = 12


@dataclass(frozen=True, slots=True)
class Requests:
    """Groups of equal neighbours: `count` requests with `q` new tokens and `kv` keys; `owner` is the call of each.

    Call i owns the groups starts[i] to starts[i + 1]; every call has at least one.
    """

    q: Array
    kv: Array
    count: Array
    owner: NDArray[np.intp]
    starts: NDArray[np.intp]

    def total(self, per_request: Array) -> Array:
        """Sum of a quantity over the requests of each call."""
        return np.add.reduceat(per_request * self.count, self.starts)

    def largest(self, per_request: Array) -> Array:
        """Largest of a quantity among the requests of each call."""
        return np.asarray(np.maximum.reduceat(per_request, self.starts))

    def spread(self, per_call: Array) -> Array:
        """A quantity of each call, repeated for its groups."""
        return per_call[self.owner]


def requests_of(cols: Columns) -> Requests:
    """The lists `q_lens` and `kv_lens` of the columns, grouped where that pays."""
    q, kv, offsets = cols["q_lens"].values, cols["kv_lens"].values, cols["q_lens"].offsets
    if len(q) < WORTH_GROUPING * (len(offsets) - 1):
        return Requests(q, kv, np.ones(len(q)), cols["q_lens"].owner, offsets[:-1])
    first = np.empty(len(q), bool)
    first[1:] = (q[1:] != q[:-1]) | (kv[1:] != kv[:-1])
    first[offsets[:-1]] = True
    at = np.flatnonzero(first)
    starts = np.searchsorted(at, offsets[:-1])
    groups = np.diff(np.append(starts, len(at)))
    return Requests(
        q[at], kv[at], np.diff(np.append(at, len(q))).astype(float), np.repeat(np.arange(len(groups)), groups), starts
    )


def uniform(q: Array, kv: Array, batch: Array) -> Requests:
    """Calls whose requests are all alike: `batch` of them, `q` new tokens and `kv` keys each."""
    calls = np.arange(len(q))
    return Requests(np.asarray(q, float), np.asarray(kv, float), np.asarray(batch, float), calls, calls)

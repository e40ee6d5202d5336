"""The requests of a batch of attention calls as run-length groups: 2,048 equal sequences are as cheap as one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipewave.kernels.base import Columns
from pipewave.physics.arith import ARRAY, SCALAR, Arith
from pipewave.physics.demand import Array

# Below this many requests a call, finding runs costs more than it saves.
WORTH_GROUPING = 64

ONLY = np.zeros(1, np.intp)  # where the groups of the only call start

Amount = Any  # of each call: an array, or a plain float where the batch is one call


@dataclass(frozen=True, slots=True)
class Requests:
    """Groups of equal neighbours: `count` requests (None: one each) with `q` new tokens and `kv` keys.

    Call i owns the groups starts[i] to starts[i + 1]; every call has at least one. `owner` is the call of each group,
    None where they match one to one. `batch` counts the requests of each call.
    """

    q: Array
    kv: Array
    count: Array | None
    batch: Amount
    starts: NDArray[np.intp]
    owner: NDArray[np.intp] | None
    calls: int = field(init=False)
    xp: Arith = field(init=False)  # of amounts per call

    def __post_init__(self) -> None:
        object.__setattr__(self, "calls", len(self.starts))
        object.__setattr__(self, "xp", SCALAR if len(self.starts) == 1 else ARRAY)

    def per_call(self, column: Array) -> Amount:
        """A column of the calls as an amount."""
        return float(column[0]) if self.calls == 1 else column

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


def requests_of(cols: Columns) -> Requests:
    """The lists `q_lens` and `kv_lens` of the columns, grouped where that pays."""
    q, kv, offsets = cols["q_lens"].values, cols["kv_lens"].values, cols["q_lens"].offsets
    calls = len(offsets) - 1
    if len(q) >= WORTH_GROUPING * calls:
        return _grouped(q, kv, offsets)
    if calls == 1:
        return Requests(q, kv, None, float(len(q)), ONLY, None)
    batch = np.diff(offsets)
    owner = None if calls == len(q) else np.repeat(np.arange(calls), batch)
    return Requests(q, kv, None, batch.astype(float), offsets[:-1], owner)


def requests_of_one(q_lens: Sequence[int], kv_lens: Sequence[int]) -> Requests:
    """The lists of one call, grouped where that pays."""
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


def uniform(q: Array, kv: Array, batch: Array) -> Requests:
    """Calls whose requests are all alike: `batch` of them, `q` new tokens and `kv` keys each."""
    return Requests(q, kv, batch, float(batch[0]) if len(batch) == 1 else batch, np.arange(len(q)), None)

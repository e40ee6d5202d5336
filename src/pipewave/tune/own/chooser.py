"""Choosing for launches of one kind: a dictionary hit where a launch came before, else the few laws of its cell.

As in `choosing`: no GPU call, no lock, the same answer everywhere. A cell is the bit lengths of the sizes less one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pipewave.tune.cells import shortlist
from pipewave.tune.own.anchors import Floats, Ints
from pipewave.tune.own.model import Model
from pipewave.tune.own.sizes import Sizes, drawn
from pipewave.tune.own.works import Works
from pipewave.tune.wave import Tabulated, predict_us, tabulate

SAMPLES = 2048  # launches drawn to work out short lists
MOST = 4  # candidates of a cell: each costs more than a microsecond
HALVED = 2  # leading sizes that cells take in half octaves
CELLED = 8  # leading sizes that cells are distinguished by
MEMO = 1 << 16
Row = tuple[int, Callable[..., Any], float, Tabulated]  # configuration, its counts of a launch, correction, law
Key = tuple[Any, ...]


class Chooser:
    """`inputs`: the numbers of a launch that a key holds, in order; `memo`: what was chosen for keys."""

    def __init__(self, works: Works, sizes: Sizes, model: Model, usable: Ints, seen: Floats) -> None:
        self.works, self.sizes, self.model, self.usable = works, sizes, model, usable
        self.inputs = tuple(dict.fromkeys((*sizes.names, *works.inputs)))
        self._size_at = tuple(self.inputs.index(name) for name in sizes.names)
        self._fast = [made[0].fast(self.inputs) for made in works.formulas]
        self._laws = {int(i): tabulate(model.law[i], model.card.sms, int(model.resident[i])) for i in usable}
        self.memo: dict[Key, int] = {}
        self.rows: dict[int, tuple[Row, ...]] = {}
        if len(seen):
            self._sample(seen)

    def choose(self, key: Key) -> int:
        """Number of the configuration for the inputs of a launch."""
        found = self.memo.get(key)
        return found if found is not None else self.remember(key, self.decide(key))

    def remember(self, key: Key, config: int) -> int:
        """Keep a choice."""
        if len(self.memo) >= MEMO:
            self.memo = {}
        self.memo[key] = config
        return config

    def cell(self, key: Key) -> int:
        """The cell of a launch."""
        packed = 0
        for i, at in enumerate(self._size_at[:CELLED]):
            less = key[at] - 1
            packed = packed << 7 | (less * less if i < HALVED else less).bit_length()
        return packed

    def decide(self, key: Key) -> int:
        """Evaluate the short list of the cell; the first of equals wins."""
        rows = self.rows.get(self.cell(key)) or self._new(key)
        best, least = rows[0][0], math.inf
        if len(rows) == 1:
            return best
        sms = self.model.card.sms
        for index, counted, factor, law in rows:
            work = counted(*key)
            if work is None:
                return self._whole(key)
            us = factor * predict_us(work, sms, law)
            if us < least:
                best, least = index, us
        return best

    def _whole(self, key: Key) -> int:
        """Choose by the whole model, for a launch whose turns the fast formulas do not know."""
        counts = self.works.counts(dict(zip(self.inputs, key, strict=True)))[None]
        ranked = self.model.ranked(counts, self._logs(key))[0]
        return int(self.usable[ranked[self.usable].argmin()])

    def _logs(self, key: Key) -> Floats:
        return np.log(np.maximum([[float(key[at]) for at in self._size_at]], 1.0))

    def _new(self, key: Key) -> tuple[Row, ...]:
        """The short list of a cell that no sample fell into, by its first launch."""
        counts = self.works.counts(dict(zip(self.inputs, key, strict=True)))[None]
        rows = self._listed(counts, self._logs(key))
        self.rows[self.cell(key)] = rows
        return rows

    def _sample(self, seen: Floats) -> None:
        """Draw launches like those seen, and keep of each cell the few configurations that lose nothing there."""
        at = drawn(seen, SAMPLES)
        counts, logs = self.works.many(self.sizes.numbers(at)), np.log(np.maximum(at, 1.0))
        keys = self._cells(at)
        order = np.argsort(keys, kind="stable")
        names, start, size = np.unique(keys[order], return_index=True, return_counts=True)
        for name, first, count in zip(names.tolist(), start.tolist(), size.tolist(), strict=True):
            index = order[first : first + count]
            self.rows[name] = self._listed(counts[index], logs[index])

    def _cells(self, at: Floats) -> Ints:
        packed = np.zeros(len(at), np.int64)
        for i in range(min(at.shape[1], CELLED)):
            less = at[:, i] - 1
            packed = packed << 7 | np.frexp(less * less if i < HALVED else less)[1].astype(np.int64)
        return packed

    def _listed(self, counts: Floats, logs: Floats) -> tuple[Row, ...]:
        default = np.zeros(len(counts), np.int64)
        ranked = self.model.ranked(counts, logs)
        law = np.log(np.maximum(self.model.law_us(counts), 1e-3))
        only = ranked[:, self.usable]
        lost = only - only.min(axis=1, keepdims=True)
        position = np.flatnonzero(self.usable == 0)
        kept = default + (position[0] if len(position) else 0)
        chosen = self.usable[shortlist(lost, kept, MOST)]
        factor = np.exp((ranked - law).mean(axis=0))
        return tuple(self._row(int(i), float(factor[i])) for i in chosen)

    def _row(self, index: int, factor: float) -> Row:
        return index, self._fast[int(self.works.group[index])], factor, self._laws[index]

    def expected_us(self, key: Key) -> Floats:
        """Predicted µs [c] of every configuration at a launch."""
        counts = self.works.counts(dict(zip(self.inputs, key, strict=True)))[None]
        return np.asarray(self.model.us(counts, self._logs(key))[0])


def distinct(rows: Sequence[tuple[Row, ...]]) -> list[int]:
    """Configurations that any cell can choose: what to compile ahead."""
    return sorted({row[0] for some in rows for row in some})

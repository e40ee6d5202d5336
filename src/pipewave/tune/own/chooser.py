"""Choosing for launches of one kind: a dictionary hit where a launch came before, else the few laws of its cell.

As in `choosing`: no GPU call, no lock, the same answer everywhere. A cell is the bit lengths of the sizes less one, the
leading sizes in half octaves; where no launch was drawn into it, wider cells answer. Candidates are those of whole
octaves or more, so that they hold for several ways to fill the last wave; their corrections are the cell's own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from pipewave.tune.cells import shortlist
from pipewave.tune.own.anchors import Floats, Ints
from pipewave.tune.own.model import Model
from pipewave.tune.own.sizes import Sizes, drawn
from pipewave.tune.own.works import Works
from pipewave.tune.wave import Tabulated, predict_us, tabulate

SAMPLES = 2048  # launches drawn to work out short lists, within the sizes seen and as many beyond
CHUNK = 512  # of them at once
LEAST = 4  # of them that a short list is worked out from
WIDTHS = (1, 2, 4)  # octaves of the cells that answer where no launch was drawn into a narrower one
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
        self._laws = {int(i): tabulate(model.law[i], model.peaks.sms, int(model.resident[i])) for i in usable}
        self.memo: dict[Key, int] = {}
        self.rows: dict[int, tuple[Row, ...]] = {}
        self.wide: tuple[dict[int, tuple[Row, ...]], ...] = tuple({} for _ in WIDTHS)
        self._seen: Floats | None = seen if len(seen) else None

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

    def wide_cell(self, key: Key, octaves: int) -> int:
        """The cell of a launch, every size in so many octaves."""
        packed = 0
        for at in self._size_at[:CELLED]:
            packed = packed << 7 | (key[at] - 1).bit_length() // octaves
        return packed

    def decide(self, key: Key) -> int:
        """Evaluate the short list of the cell; the first of equals wins."""
        rows = self.rows.get(self.cell(key)) or self._found(key)
        best, least = rows[0][0], math.inf
        if len(rows) == 1:
            return best
        sms, work, before = self.model.peaks.sms, (), None
        for index, counted, factor, law in rows:
            if counted is not before:
                work, before = counted(*key), counted
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

    def _found(self, key: Key) -> tuple[Row, ...]:
        """The short list of a cell that has none yet."""
        if self._seen is not None:
            seen, self._seen = self._seen, None
            self._sample(seen)
            return self.rows.get(self.cell(key)) or self._found(key)
        rows: tuple[Row, ...] | None = None
        for octaves, listed in zip(WIDTHS, self.wide, strict=True):
            rows = rows or listed.get(self.wide_cell(key, octaves))
        rows = self.rows[self.cell(key)] = rows or self._new(key)
        return rows

    def _new(self, key: Key) -> tuple[Row, ...]:
        """The short list of a cell that no sample fell into, by its first launch."""
        counts = self.works.counts(dict(zip(self.inputs, key, strict=True)))[None]
        ranked, factor = self._judged(counts, self._logs(key))
        return self._rows(self._short(ranked), factor)

    def _sample(self, seen: Floats) -> None:
        """Draw launches like those seen, and keep of each cell the few configurations that lose nothing there."""
        at = np.concatenate([drawn(seen, SAMPLES, wider=1.0), drawn(seen, SAMPLES)])
        counts, logs = self.works.many(self.sizes.numbers(at)), np.log(np.maximum(at, 1.0))
        parts = [self._judged(counts[i : i + CHUNK], logs[i : i + CHUNK]) for i in range(0, len(at), CHUNK)]
        ranked, factor = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
        bits = np.frexp(at[:, :CELLED] - 1)[1].astype(np.int64)
        fine = bits.copy()
        fine[:, :HALVED] = np.frexp((at[:, :HALVED] - 1) ** 2)[1]
        for octaves, rows in zip(WIDTHS, self.wide, strict=True):
            for name, index in _grouped(_packed(bits // octaves)):
                if len(index) < LEAST:
                    continue
                listed = self._short(ranked[index])
                rows[name] = self._rows(listed, factor[index])
                for cell, inside in _grouped(_packed(fine[index])) if octaves == 1 else ():
                    self.rows[cell] = self._rows(listed, factor[index[inside]])

    def _judged(self, counts: Floats, logs: Floats) -> tuple[Floats, Floats]:
        """What choices go by (log µs), and how far it is above the laws alone: each [s, c]."""
        ranked = self.model.ranked(counts, logs)
        return ranked, ranked - np.log(np.maximum(self.model.law_us(counts), 1e-3))

    def _short(self, ranked: Floats) -> Ints:
        """The few configurations that lose nothing at some launches [s, c]."""
        only = ranked[:, self.usable]
        position = np.flatnonzero(self.usable == 0)
        kept = np.full(len(only), position[0] if len(position) else 0, np.int64)
        return np.asarray(self.usable[shortlist(only - only.min(axis=1, keepdims=True), kept, MOST)])

    def _rows(self, chosen: Ints, factor: Floats) -> tuple[Row, ...]:
        """These with their mean correction [s, c] over some launches; those that do the same work stand together."""
        chosen = chosen[np.argsort(self.works.group[chosen], kind="stable")]
        mean = np.exp(factor[:, chosen].mean(axis=0))
        return tuple(self._row(int(i), float(by)) for i, by in zip(chosen, mean, strict=True))

    def _row(self, index: int, factor: float) -> Row:
        return index, self._fast[int(self.works.group[index])], factor, self._laws[index]

    def expected_us(self, key: Key) -> Floats:
        """Predicted µs [c] of every configuration at a launch."""
        counts = self.works.counts(dict(zip(self.inputs, key, strict=True)))[None]
        return np.asarray(self.model.us(counts, self._logs(key))[0])


def _packed(bits: Ints) -> Ints:
    """Cells [s] by bit lengths [s, d]."""
    packed = np.zeros(len(bits), np.int64)
    for column in bits.T:
        packed = packed << 7 | column
    return packed


def _grouped(names: Ints) -> Iterator[tuple[int, Ints]]:
    """Each name [s], and where it stands."""
    order = np.argsort(names, kind="stable")
    distinct, start = np.unique(names[order], return_index=True)
    yield from zip(distinct.tolist(), np.split(order, start[1:]), strict=True)


class Always:
    """The one choice for a kind of launch that nothing is known of and nothing will be measured of."""

    inputs: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.memo: dict[Key, int] = {}

    def remember(self, key: Key, config: int) -> int:
        """Keep the choice."""
        self.memo[key] = config
        return config

    def decide(self, key: Key) -> int:
        """The choice that was kept."""
        return self.memo[()]

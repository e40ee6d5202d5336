"""Choosing for launches of one kind: a dictionary hit where a launch came before, else the few laws of its cell.

As in `choosing`: no GPU call, no lock, the same answer everywhere. A cell is the bit lengths of the sizes less one, the
leading sizes in half octaves; where no launch was drawn into it, wider cells answer. Candidates are those of whole
octaves or more, so that they hold for several ways to fill the last wave; their corrections are the cell's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from pipewave.tune.cells import shortlist
from pipewave.tune.own.anchors import Floats, Ints
from pipewave.tune.own.deciding import CELL_BITS, Candidate, Deciding, Short, short
from pipewave.tune.own.model import Model
from pipewave.tune.own.sizes import Sizes, drawn
from pipewave.tune.own.works import Works

SAMPLES, BEYOND = 4096, 2048  # launches drawn to work out short lists: within the sizes seen, and around them
CHUNK = 512  # of them at once
LEAST = 4  # of them that a short list is worked out from
WIDTHS = (1, 2, 4)  # octaves of the cells that answer where no launch was drawn into a narrower one
MOST = 16  # candidates of a cell that win at its samples: each costs a twentieth of a microsecond
BOUNDED = 32  # more, that would win if they filled every SM alike
SHARED = 2  # samples that the mean correction of a wider cell counts for in a narrower one
HALVED = 2  # leading sizes that cells take in half octaves
CELLED = 8  # leading sizes that cells are distinguished by
MEMO = 1 << 16
Key = tuple[Any, ...]


class Memo(dict[Key, int]):
    """What was chosen for keys; a new one is decided on and kept."""

    def __init__(self, decide: Callable[[Key], int]) -> None:
        super().__init__()
        self._decide = decide

    def __missing__(self, key: Key) -> int:
        if len(self) >= MEMO:
            self.clear()
        found = self[key] = self._decide(key)
        return found


class Chooser:
    """`inputs`: the numbers of a launch that a key holds, in order; `memo`: what was chosen for keys; `choose`: the
    number of the configuration for the inputs of a launch.
    """  # fmt: skip

    def __init__(self, works: Works, sizes: Sizes, model: Model, usable: Ints, seen: Floats) -> None:
        self.works, self.sizes, self.model, self.usable = works, sizes, model, usable
        self.inputs = tuple(dict.fromkeys((*sizes.names, *works.inputs)))
        self._size_at = tuple(self.inputs.index(name) for name in sizes.names)
        self.memo = Memo(self.decide)
        self.choose: Callable[[Key], int] = self.memo.__getitem__
        self.short: dict[int, Short] = {}
        self.wide: tuple[dict[int, Short], ...] = tuple({} for _ in WIDTHS)
        self._fastest: Callable[[Key], int | None] = _unlisted
        self._seen: Floats | None = seen if len(seen) else None

    def remember(self, key: Key, config: int) -> int:
        """Keep a choice."""
        self.memo[key] = config
        return config

    def decide(self, key: Key) -> int:
        """Evaluate the short list of the cell."""
        index = self._fastest(key)
        if index is None:
            self._list(key)
            index = self._fastest(key)
        return self._whole(key) if index is None else index

    def _list(self, key: Key) -> None:
        """See to it that the cell of a key has a short list, unless nothing can be compiled."""
        if self._fastest is _unlisted:
            self._fastest = self._compiled() or self._whole
        if self._seen is not None:
            seen, self._seen = self._seen, None
            self._sample(seen)
        cell = self._cell(key)
        if cell not in self.short and self._fastest(key) is None:
            self.short[cell] = self._new(key)

    def _cell(self, key: Key) -> int:
        return int(_packed(_bits(np.array([[float(key[at]) for at in self._size_at]])))[0])

    def _compiled(self) -> Callable[[Key], int | None] | None:
        every = [self._candidate(index) for index in self.usable.tolist()]
        celled = self._size_at[:CELLED]
        made = Deciding(every, self.inputs, celled[:HALVED], celled[HALVED:], (0, *WIDTHS),
                        self.model.peaks.sms)  # fmt: skip
        found: Callable[[Key], int | None] | None = made.chooser((self.short, *self.wide))
        return found

    def _whole(self, key: Key) -> int:
        """Choose by the whole model, for a launch whose turns the fast formulas do not know."""
        counts = self.works.counts(dict(zip(self.inputs, key, strict=True)))[None]
        ranked = self.model.ranked(counts, self._logs(key))[0]
        return int(self.usable[ranked[self.usable].argmin()])

    def _logs(self, key: Key) -> Floats:
        return np.log(np.maximum([[float(key[at]) for at in self._size_at]], 1.0))

    def _new(self, key: Key) -> Short:
        """The short list of a cell that no sample fell into, by its first launch."""
        counts = self.works.counts(dict(zip(self.inputs, key, strict=True)))[None]
        ranked, factor = self._judged(counts, self._logs(key))
        return self._decide(self._short(ranked, counts), factor)

    def _sample(self, seen: Floats) -> None:
        """Draw launches like those seen, and keep of each cell the few configurations that lose nothing there."""
        at = np.concatenate([drawn(seen, SAMPLES, wider=1.0), drawn(seen, BEYOND)])
        counts, logs = self.works.many(self.sizes.numbers(at)), np.log(np.maximum(at, 1.0))
        parts = [self._judged(counts[i : i + CHUNK], logs[i : i + CHUNK]) for i in range(0, len(at), CHUNK)]
        ranked, factor = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
        fine = _packed(_bits(at))
        wider: dict[int, tuple[int, ...]] = {}
        for octaves, wide in zip(reversed(WIDTHS), reversed(self.wide), strict=True):
            for name, index in _grouped(_packed(_bits(at, octaves))):
                if len(index) < LEAST:
                    continue
                beyond = wider.get(int(_packed(_bits(at[index[:1]], 2 * octaves))[0]), ())
                listed = self._with(self._short(ranked[index], counts[index]), beyond)
                wider[name] = tuple(listed)
                wide[name] = self._decide(listed, factor[index])
                shared = np.repeat(factor[index].mean(axis=0, keepdims=True), SHARED, axis=0)
                for cell, inside in _grouped(fine[index]) if octaves == 1 else ():
                    self.short[cell] = self._decide(listed, np.concatenate([factor[index[inside]], shared]))

    def _with(self, listed: Ints, beyond: tuple[int, ...]) -> Ints:
        """A short list with what wins in the wider cell around it: few samples of a cell do not tell what else does."""
        more = [one for one in beyond if one not in listed][: max(MOST - len(listed), 0)]
        return np.array([*listed, *more], np.int64)

    def _judged(self, counts: Floats, logs: Floats) -> tuple[Floats, Floats]:
        """What choices go by (log µs), and how far it is above the laws alone: each [s, c]."""
        ranked = self.model.ranked(counts, logs)
        return ranked, ranked - np.log(np.maximum(self.model.law_us(counts), 1e-3))

    def _short(self, ranked: Floats, counts: Floats) -> Ints:
        """The few configurations that lose nothing at some launches [s, c], and those that could win near them."""
        only = ranked[:, self.usable]
        position = np.flatnonzero(self.usable == 0)
        kept = np.full(len(only), position[0] if len(position) else 0, np.int64)
        lost = only - only.min(axis=1, keepdims=True)
        chosen = self.usable[shortlist(lost, kept, MOST)].tolist()
        more = [one for one in self._bounded(lost, counts[:, self.usable, 0]) if one not in chosen]
        return np.array([*chosen, *more[:BOUNDED]], np.int64)

    def _bounded(self, lost: Floats, blocks: Floats) -> list[int]:
        """Configurations that would lose nothing at some launch if their blocks filled every SM alike, the best first:
        samples of a cell seldom meet the sizes where that is so.
        """
        busiest = np.ceil(np.maximum(blocks, 1.0) / self.model.peaks.sms)
        filled = np.where(busiest > 1, blocks / (busiest * self.model.peaks.sms), 1.0)
        bound = lost + np.log(filled)
        order = np.argsort(bound.mean(axis=0), kind="stable")
        return [int(one) for one in self.usable[order[(bound.min(axis=0) <= 0.0)[order]]]]

    def _decide(self, chosen: Ints, factor: Floats) -> Short:
        """The choice among these with their mean correction [s, c] over some launches."""
        chosen = np.sort(chosen)
        return short(chosen, np.exp(factor[:, chosen].mean(axis=0)))

    def _candidate(self, index: int) -> Candidate:
        counted = self.works.formulas[int(self.works.group[index])][0]
        return Candidate(index, counted, self.model.law[index], int(self.model.resident[index]))

    def expected_us(self, key: Key) -> Floats:
        """Predicted µs [c] of every configuration at a launch."""
        counts = self.works.counts(dict(zip(self.inputs, key, strict=True)))[None]
        return np.asarray(self.model.us(counts, self._logs(key))[0])


def _unlisted(key: Key) -> None:
    """What is chosen before there are short lists."""


def _bits(at: Floats, octaves: int = 0) -> Ints:
    """Bit lengths [s, d] of sizes [s, d] less one, in so many octaves; by default of the leading ones' squares."""
    less = at[:, :CELLED] - 1
    if not octaves:
        less[:, :HALVED] **= 2
    return np.frexp(less)[1].astype(np.int64) // max(octaves, 1)


def _packed(bits: Ints) -> Ints:
    """Cells [s] by bit lengths [s, d]."""
    packed = np.zeros(len(bits), np.int64)
    for column in bits.T:
        packed = packed << CELL_BITS | column
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

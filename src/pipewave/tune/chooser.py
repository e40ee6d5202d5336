"""Choosing for launches of one kind: a dictionary hit where a launch came before, else the few laws of its cell.

No GPU call, no lock. Short lists and the C function are worked out aside: until they are there, the best of the nearest
launch measured answers, and is not remembered. A cell is the bit lengths of the sizes less one; where no launch was
drawn into it, wider cells answer. What predictions are above the laws differs within a cell, by how a binary or the
last wave is filled: it is taken from the launches drawn there that are nearest in size.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from pipewave.tune.compiled_chooser import CELL_BITS, Candidate, Key, Short, compiled_chooser, factors_at, short
from pipewave.tune.law.anchors import Floats, Ints
from pipewave.tune.law.model import Model
from pipewave.tune.law.wave import law_us
from pipewave.tune.user_kernels.aside import ASIDE
from pipewave.tune.user_kernels.launch_formulas import LaunchFormulas, Sizes, drawn

SAMPLES, BEYOND = 4096, 2048  # launches drawn to work out short lists: within the sizes seen, and around them
CHUNK = 512  # of them at once
LEAST, KEPT = 4, 64  # of them in a cell: that a short list is worked out from, and that it keeps
WIDTHS = (1, 2, 4)  # octaves of the cells: wider ones answer where no launch was drawn into a narrower one
MOST = 16  # candidates of a cell that win at its samples: each costs a twentieth of a microsecond
ENOUGH, WORST = 0.002, 0.03  # mean and worst loss at which a short list ends
FEW = 8  # samples that are hardly enough
KEEP_DEFAULT = 1.1  # the default stays a candidate wherever it is predicted within this factor
BOUNDED = 32  # candidates more, that would win if they filled every SM alike
CELLED = 8  # leading sizes that cells are distinguished by
MEMO = 1 << 16  # launches that are remembered
T = TypeVar("T")
Lists = tuple[dict[int, Short], ...]  # of cells, by `WIDTHS`
Default = Callable[[Mapping[str, Floats]], Ints]  # numbers of launches as columns → the default of each


@dataclass(frozen=True, slots=True)
class Held:
    """Blocks `resident` [s, c] that an SM holds of binaries of sizes `names`, of launches at log sizes `at` [s, n]."""

    names: tuple[str, ...]
    at: Floats
    resident: Ints

    def of(self, numbers: Mapping[str, Floats]) -> Ints:
        """Those of the nearest binary seen [s, c], of launches given as columns."""
        logs = np.log(np.maximum(np.stack([numbers[name] for name in self.names], axis=1), 1.0))
        return np.asarray(self.resident[np.abs(logs[:, None] - self.at[None]).sum(axis=2).argmin(axis=1)])


def first_configuration(numbers: Mapping[str, Floats]) -> Ints:
    """The default of launches whose author names none: the first configuration."""
    return np.zeros(len(next(iter(numbers.values()))), np.int64)


class Memo(dict[Any, T]):
    """What was chosen for launches; starts anew when it is full."""

    def keep(self, launch: Any, choice: T) -> T:
        """Remember a choice, and give it back."""
        if len(self) >= MEMO:
            self.clear()
        self[launch] = choice
        return choice


class Chooser:
    """`inputs`: the numbers of a launch that a key holds, in order; `memo`: what was chosen for keys."""

    def __init__(self, formulas: LaunchFormulas, sizes: Sizes, model: Model, usable: Ints, seen: Floats,
                 best: Ints | None = None, default: Default = first_configuration, lists: Lists | None = None,
                 held: Held | None = None) -> None:  # fmt: skip
        self.formulas, self.sizes, self.model, self.usable, self.default = formulas, sizes, model, usable, default
        self.inputs = tuple(dict.fromkeys((*sizes.names, *formulas.inputs)))
        self._size_at = tuple(self.inputs.index(name) for name in sizes.names)
        self.memo: Memo[int] = Memo()
        self.remember = self.memo.keep
        self.lists: Lists = lists or tuple({} for _ in WIDTHS)
        self._compiled: Callable[[Key], int | None] | None = None
        self._seen: Floats = seen
        self._best = best  # [s] the fastest of launches seen
        self._held = held
        self._grows = lists is None  # lists of a table are whole: choices do not depend on what was asked before
        self.is_ready = lists is not None or not len(seen)
        self._asked = 0  # the generation of `ASIDE` that works on lists and function

    def decide(self, key: Key) -> int:
        """Evaluate the short list of the cell; waits for what is worked out aside, if that is not done."""
        index = None if self._compiled is None else self._compiled(key)
        if index is not None:
            return index
        self.begin()
        if not self.is_ready:
            ASIDE.settle()
        listed = self.listed(key)
        if listed is None and self._grows:
            listed = self.lists[0][self._cell(key, WIDTHS[0])] = self._new(key)
        return self.best_of(key, self.usable) if listed is None else self._evaluated(key, listed)

    def meanwhile(self, key: Key) -> int:
        """The best of the nearest launch measured, until short lists are worked out; the default where none was."""
        self.begin()
        if self._best is None or not len(self._seen):
            return int(self.default({name: np.array([1.0]) for name in self.inputs})[0])
        away = np.abs(np.log(np.maximum(self._seen, 1.0)) - self._logs(key)).sum(axis=1)
        return int(self._best[away.argmin()])

    def begin(self) -> None:
        """Have the short lists worked out and the C function compiled, once; both take a second."""
        if self._asked == ASIDE.generation or (self.is_ready and "triton" not in sys.modules):
            return
        self._asked = ASIDE.generation
        ASIDE.do(self._prepare)

    def _prepare(self) -> None:
        if not self.is_ready:
            at = np.concatenate([drawn(self._seen, SAMPLES, wider=1.0), drawn(self._seen, BEYOND)])
            try:
                self.sample(self.sizes.numbers(at), at)
            finally:
                self.is_ready = True
        if self._compiled is None and "triton" in sys.modules:
            formulas = [self.formulas.formulas[int(group)] for group in self.formulas.group]
            every = [Candidate(i, formulas[i], self.model.law[i], int(self.model.resident[i]))
                     for i in self.usable.tolist()]  # fmt: skip
            cells = dict(zip(WIDTHS, self.lists, strict=True))
            self._compiled = compiled_chooser(every, self.inputs, self._size_at[:CELLED], cells, self.model.peaks.sms)

    def listed(self, key: Key) -> Short | None:
        """The short list for a launch; None for one that was not foreseen: far beyond the sizes measured."""
        every = (lists.get(self._cell(key, octaves)) for octaves, lists in zip(WIDTHS, self.lists, strict=True))
        return next((found for found in every if found is not None), None)

    def _cell(self, key: Key, octaves: int) -> int:
        return int(_cells(np.array([[float(key[at]) for at in self._size_at]]), octaves)[0])

    def _evaluated(self, key: Key, listed: Short) -> int:
        """The least of a short list by the laws, as in C; by the whole model for turns that were not read."""
        index, factors = factors_at(listed, self._logs(key)[0, :CELLED])
        if len(index) == 1:
            return int(index[0])
        numbers = dict(zip(self.inputs, key, strict=True))
        groups = self.formulas.group[index].tolist()  # configurations that count alike
        counted = {group: self.formulas.one(group, numbers) for group in set(groups)}
        if None in counted.values():
            return self.best_of(key, self.usable)
        sms, laws, places = self.model.peaks.sms, self.model.law[index].tolist(), self.model.resident[index].tolist()
        found = zip(map(counted.get, groups), places, laws, strict=True)
        us = [law_us(counts, sms, resident, law) for counts, resident, law in found if counts]
        return int(index[(factors * us).argmin()])

    def best_of(self, key: Key, some: Ints) -> int:
        """The best of some configurations by the whole model, as for a launch that nobody foresaw."""
        ranked, _ = self._judged(self.counts(key)[None], self._logs(key), self._columns(key))
        return int(some[ranked[0, some].argmin()])

    def blocks(self, key: Key, index: int) -> float:
        """Thread blocks of a launch under one configuration."""
        found = self.formulas.one(int(self.formulas.group[index]), dict(zip(self.inputs, key, strict=True)))
        return float(found[0] if found else self.counts(key)[index, 0])

    def counts(self, key: Key) -> Floats:
        """Counts [c, 6] of a launch."""
        return self.formulas.counts(dict(zip(self.inputs, key, strict=True)))

    def _columns(self, key: Key) -> dict[str, Floats]:
        return {name: np.array([value], float) for name, value in zip(self.inputs, key, strict=True)}

    def _logs(self, key: Key) -> Floats:
        return np.log(np.maximum([[float(key[at]) for at in self._size_at]], 1.0))

    def _new(self, key: Key) -> Short:
        """The short list of a cell that no sample fell into, by its first launch."""
        counts, columns = self.counts(key)[None], self._columns(key)
        ranked, factor = self._judged(counts, self._logs(key), columns)
        listed = self._short(ranked, counts, self.default(columns))
        return short(listed, np.exp(factor[:, listed]))

    def sample(self, numbers: Mapping[str, Floats], at: Floats, bounded: int = BOUNDED, kept: int = KEPT) -> None:
        """Keep of each cell the few configurations that lose nothing at launches given as columns, of sizes [s, d];
        the narrowest with the corrections at so many of these as are `kept`, wider ones with the mean correction.
        """
        counts, logs, default = self.formulas.many(numbers), np.log(np.maximum(at, 1.0)), self.default(numbers)
        parts = [self._judged(counts[i : i + CHUNK], logs[i : i + CHUNK],
                              {name: column[i : i + CHUNK] for name, column in numbers.items()})
                 for i in range(0, len(at), CHUNK)]  # fmt: skip
        ranked, factor = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
        wider: dict[int, Ints] = {}  # by cell, so that few samples need not tell what else may win near them
        for octaves, lists in zip(reversed(WIDTHS), reversed(self.lists), strict=True):
            for cell, index in _grouped(_cells(at, octaves)):
                if len(index) < LEAST:
                    continue
                listed = self._short(ranked[index], counts[index], default[index], bounded)
                beyond = wider.get(int(_cells(at[index[:1]], 2 * octaves)[0]), listed[:0])
                more = [one for one in beyond.tolist() if one not in listed][: max(MOST - len(listed), 0)]
                listed = np.sort(np.array([*listed, *more], np.int64))
                wider[cell] = listed
                if octaves > WIDTHS[0] or not kept:
                    lists[cell] = short(listed, np.exp(factor[index][:, listed].mean(axis=0, keepdims=True)))
                else:
                    some = index[:kept]
                    lists[cell] = short(listed, np.exp(factor[some][:, listed]), logs[some, :CELLED])

    def _judged(self, counts: Floats, logs: Floats, numbers: Mapping[str, Floats]) -> tuple[Floats, Floats]:
        """What choices go by (log µs), and how far it is above the laws alone: each [s, c]."""
        held = None if self._held is None else self._held.of(numbers)
        ranked = self.model.ranked(counts, logs, self.default(numbers), held)
        return ranked, ranked - np.log(np.maximum(self.model.law_us(counts), 1e-3))

    def _short(self, ranked: Floats, counts: Floats, default: Ints, bounded: int = BOUNDED) -> Ints:
        """The few configurations that lose nothing at some launches [s, c], and those that could win near them."""
        only = ranked[:, self.usable]
        position = np.minimum(np.searchsorted(self.usable, default), len(self.usable) - 1)
        lost = only - only.min(axis=1, keepdims=True)
        chosen = self.usable[shortlist(lost, position)].tolist()
        more = [one for one in self._bounded(lost, counts[:, self.usable, 0]) if one not in chosen]
        return np.array([*chosen, *more[:bounded]], np.int64)

    def _bounded(self, lost: Floats, blocks: Floats) -> list[int]:
        """Configurations that would lose nothing at some launch if their blocks filled every SM alike, the best first:
        samples of a cell seldom meet the sizes where that is so.
        """
        busiest = np.ceil(np.maximum(blocks, 1.0) / self.model.peaks.sms)
        filled = np.where(busiest > 1, blocks / (busiest * self.model.peaks.sms), 1.0)
        bound = lost + np.log(filled)
        order = np.argsort(bound.mean(axis=0), kind="stable")
        return [int(one) for one in self.usable[order[(bound.min(axis=0) <= 0.0)[order]]]]


def shortlist(lost: Floats, default: Ints) -> Ints:
    """Pick configurations greedily until their best loses little anywhere (`lost` [s, c] = log µs over the best's). The
    default keeps a place where it is predicted near the best.
    """
    near = [int(d) for d, row in zip(default, lost, strict=True) if row[d] < np.log(KEEP_DEFAULT)]
    kept = sorted(set(near))[:1]
    chosen: list[int] = []
    left = np.full(len(lost), np.inf)
    least = 1 if len(lost) >= FEW else 2  # few samples do not tell that one is enough
    while len({*chosen, *kept}) < MOST and (len(chosen) < least or left.mean() > ENOUGH or left.max() > WORST):
        score = (np.minimum(left[:, None], lost) + 1e-6 * lost).sum(axis=0)
        score[chosen] = np.inf
        chosen.append(int(score.argmin()))
        left = np.minimum(left, lost[:, chosen[-1]])
    return np.array(chosen + [config for config in kept if config not in chosen], np.int64)


def _cells(at: Floats, octaves: int) -> Ints:
    """Cells [s] of sizes [s, d], of so many octaves: bit lengths of sizes less one, packed."""
    packed = np.zeros(len(at), np.int64)
    for bits in np.frexp(at[:, :CELLED] - 1)[1].T:
        packed = packed << CELL_BITS | bits.astype(np.int64) // octaves
    return packed


def _grouped(names: Ints) -> Iterator[tuple[int, Ints]]:
    """Each name [s], and where it stands."""
    order = np.argsort(names, kind="stable")
    distinct, start = np.unique(names[order], return_index=True)
    yield from zip(distinct.tolist(), np.split(order, start[1:]), strict=True)

"""Choosing for launches of one kind: a dictionary hit where a launch came before, else the few laws of its cell.

As in `choosing`: no GPU call, no lock, the same answer everywhere. A cell is the bit lengths of the sizes less one, the
leading sizes in half octaves; where no launch was drawn into it, wider cells answer. Candidates are those of whole
octaves or more, so that they hold for several ways to fill the last wave; their corrections are the cell's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from pipewave.tune.cells import shortlist
from pipewave.tune.own.anchors import Floats, Ints
from pipewave.tune.own.deciding import Candidate, Deciding, Short, alone, least
from pipewave.tune.own.model import Model
from pipewave.tune.own.sizes import Sizes, drawn
from pipewave.tune.own.works import Works
from pipewave.tune.reading.emitted import function

SAMPLES, BEYOND = 4096, 2048  # launches drawn to work out short lists: within the sizes seen, and around them
CHUNK = 512  # of them at once
LEAST = 4  # of them that a short list is worked out from
WIDTHS = (1, 2, 4)  # octaves of the cells that answer where no launch was drawn into a narrower one
MOST = 4  # candidates of a cell: each costs a fifth of a microsecond or more
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
    number of the configuration for the inputs of a launch."""  # fmt: skip

    def __init__(self, works: Works, sizes: Sizes, model: Model, usable: Ints, seen: Floats) -> None:
        self.works, self.sizes, self.model, self.usable = works, sizes, model, usable
        self.inputs = tuple(dict.fromkeys((*sizes.names, *works.inputs)))
        self._size_at = tuple(self.inputs.index(name) for name in sizes.names)
        self.cell = _cell(len(self.inputs), self._size_at[:CELLED])
        self.wide_cells = [_cell(len(self.inputs), self._size_at[:CELLED], octaves) for octaves in WIDTHS]
        self.memo = Memo(self.decide)
        self.choose: Callable[[Key], int] = self.memo.__getitem__
        self.short: dict[int, Short] = {}
        self.wide: tuple[dict[int, Short], ...] = tuple({} for _ in WIDTHS)
        self._deciding: Deciding | None = None
        self._seen: Floats | None = seen if len(seen) else None

    def remember(self, key: Key, config: int) -> int:
        """Keep a choice."""
        self.memo[key] = config
        return config

    def decide(self, key: Key) -> int:
        """Evaluate the short list of the cell."""
        try:
            index = least(self.short.get(self.cell(*key)) or self._found(key), key)
        except ZeroDivisionError:  # among steps of turns that this launch does not take
            index = None
        return self._whole(key) if index is None else index

    def _whole(self, key: Key) -> int:
        """Choose by the whole model, for a launch whose turns the fast formulas do not know."""
        counts = self.works.counts(dict(zip(self.inputs, key, strict=True)))[None]
        ranked = self.model.ranked(counts, self._logs(key))[0]
        return int(self.usable[ranked[self.usable].argmin()])

    def _logs(self, key: Key) -> Floats:
        return np.log(np.maximum([[float(key[at]) for at in self._size_at]], 1.0))

    def _found(self, key: Key) -> Short:
        """The short list of a cell that has none yet."""
        if self._seen is not None:
            seen, self._seen = self._seen, None
            self._sample(seen)
            return self.short.get(self.cell(*key)) or self._found(key)
        found: Short | None = None
        for cell, listed in zip(self.wide_cells, self.wide, strict=True):
            found = found or listed.get(cell(*key))
        found = self.short[self.cell(*key)] = found or self._new(key)
        return found

    def _new(self, key: Key) -> Short:
        """The short list of a cell that no sample fell into, by its first launch."""
        counts = self.works.counts(dict(zip(self.inputs, key, strict=True)))[None]
        ranked, factor = self._judged(counts, self._logs(key))
        return self._decide(self._short(ranked), factor)

    def _sample(self, seen: Floats) -> None:
        """Draw launches like those seen, and keep of each cell the few configurations that lose nothing there."""
        at = np.concatenate([drawn(seen, SAMPLES, wider=1.0), drawn(seen, BEYOND)])
        counts, logs = self.works.many(self.sizes.numbers(at)), np.log(np.maximum(at, 1.0))
        parts = [self._judged(counts[i : i + CHUNK], logs[i : i + CHUNK]) for i in range(0, len(at), CHUNK)]
        ranked, factor = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
        bits = np.frexp(at[:, :CELLED] - 1)[1].astype(np.int64)
        fine = bits.copy()
        fine[:, :HALVED] = np.frexp((at[:, :HALVED] - 1) ** 2)[1]
        wider: dict[int, tuple[int, ...]] = {}
        for octaves, wide in zip(reversed(WIDTHS), reversed(self.wide), strict=True):
            for name, index in _grouped(_packed(bits // octaves)):
                if len(index) < LEAST:
                    continue
                beyond = wider.get(int(_packed(bits[index[:1]] // (2 * octaves))[0]), ())
                listed = self._with(self._short(ranked[index]), beyond)
                wider[name] = tuple(listed)
                wide[name] = self._decide(listed, factor[index])
                for cell, inside in _grouped(_packed(fine[index])) if octaves == 1 else ():
                    self.short[cell] = self._decide(listed, factor[index[inside]])

    def _with(self, listed: Ints, beyond: tuple[int, ...]) -> Ints:
        """A short list with what wins in the wider cell around it: few samples of a cell do not tell what else does."""
        more = [one for one in beyond if one not in listed][: max(MOST - len(listed), 0)]
        return np.array([*listed, *more], np.int64)

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

    def _decide(self, chosen: Ints, factor: Floats) -> Short:
        """The choice among these with their mean correction [s, c] over some launches."""
        chosen = np.sort(chosen)
        if len(chosen) == 1:
            return alone(int(chosen[0]))
        if self._deciding is None:
            every = [self._candidate(i) for i in self.usable.tolist()]
            self._deciding = Deciding(every, self.inputs, self.model.peaks.sms)
        return self._deciding.short(tuple(chosen.tolist()), np.exp(factor[:, chosen].mean(axis=0)).tolist())

    def _candidate(self, index: int) -> Candidate:
        counted = self.works.formulas[int(self.works.group[index])][0]
        return Candidate(index, counted, self.model.law[index], int(self.model.resident[index]))

    def expected_us(self, key: Key) -> Floats:
        """Predicted µs [c] of every configuration at a launch."""
        counts = self.works.counts(dict(zip(self.inputs, key, strict=True)))[None]
        return np.asarray(self.model.us(counts, self._logs(key))[0])


def _cell(inputs: int, sizes: Sequence[int], octaves: int = 0) -> Callable[..., int]:
    """A function of the inputs of a launch: the cell that it lies in, by the sizes among them, each in so many octaves;
    in one and the leading ones in half octaves by default."""
    packed, lines = "", []
    for i, at in enumerate(sizes):
        lines.append(f"v{at} -= 1")
        bits = f"(v{at}*v{at}).bit_length()" if i < HALVED and not octaves else f"v{at}.bit_length()"
        bits += f" // {octaves}" if octaves > 1 else ""
        packed = f"({packed} << 7 | {bits})" if packed else bits
    return function([f"v{at}" for at in range(inputs)], [*lines, f"return {packed or 0}"], {})


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

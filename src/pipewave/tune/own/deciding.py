"""Short lists evaluated by few functions of a launch: counts of the candidates, their laws, the least of them.

The same sums as `wave.predict_us` over `Formula.one`. A function is shared by all configurations whose counts are
worked out by the same steps: tiles and laws are its parameters. So a decision runs code that the decisions before it
ran too, whatever cell its launch lies in: code of its own would be new to the processor each time, and slower by
several times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import inf
from typing import Any

import numpy as np

from pipewave.tune import wave
from pipewave.tune.own.anchors import Floats
from pipewave.tune.reading.emitted import literal
from pipewave.tune.reading.formula import Formula
from pipewave.tune.reading.joined import Joined, Known, Part
from pipewave.tune.reading.traced import plain, same

MOST_KEPT = 4096  # numbers of blocks whose steps a law remembers
LOCAL = ("at", "trip", "each", "chain")  # of a launch, by the blocks of its busiest SM
BLOCKS, LEAST, MOVED, UNEVEN = 11, 13, 14, 16  # terms of a law that its steps do not hold
Counted = Callable[..., tuple[float, int | None]]  # best µs, its number, factors, rows, inputs … → with the rows' best
# Functions, each with its rows (of tiles, and of laws for each), which cells share; factors, which they do not: what a
# cell has alone must be fetched from memory when a launch comes by, so that there is little of it.
Short = tuple[tuple[tuple[Counted, Any], ...], tuple[float, ...]]


class Steps(dict[int, tuple[float, ...]]):
    """What a law makes of the blocks of the busiest SM: µs, µs a trip, a trip and block, and a longest trip if it may
    differ from the mean. Worked out when first asked for."""  # fmt: skip

    def __init__(self, law: Floats, sms: int, resident: int, *, is_even: bool) -> None:
        super().__init__()
        self._of, self._is_even = (law.tolist(), sms, resident), is_even
        columns = self._columns(np.arange(wave.MOST + 1))
        rows = zip(*(np.broadcast_to(each, wave.MOST + 1).tolist() for each in columns), strict=True)
        self.update(enumerate(rows))

    def __missing__(self, busiest: int) -> tuple[float, ...]:
        found = self._columns(busiest)
        if len(self) < MOST_KEPT:
            self[busiest] = found
        return found

    def _columns(self, busiest: Any) -> tuple[Any, ...]:
        at, trip, each, chain = wave.steps(busiest, *self._of)
        return (at, trip + chain, each) if self._is_even else (at, trip, each, chain)


@dataclass(frozen=True, slots=True)
class Candidate:
    """Number of a configuration, its counts, its law [terms] and how many of its blocks an SM holds."""

    index: int
    counted: Formula
    law: Floats
    resident: int

    @property
    def is_even(self) -> bool:
        """Whether all blocks take as many trips."""
        _, trips, longest, *_ = self.counted.traced[1]
        return same(trips, longest)


class Deciding:
    """The functions of a kernel's configurations, written when they are made."""

    def __init__(self, candidates: Sequence[Candidate], inputs: Sequence[str], sms: int) -> None:
        self._of, self._inputs, self._sms = {one.index: one for one in candidates}, tuple(inputs), sms
        self._asked = {term for term in (BLOCKS, LEAST, MOVED, UNEVEN) if any(one.law[term] for one in candidates)}
        self._laws: dict[int, tuple[Any, ...]] = {}
        self._listed: dict[tuple[int, ...], tuple[tuple[Counted, Any], ...]] = {}
        self._function: dict[int, Counted] = {}
        self._tile: dict[int, tuple[Any, ...]] = {}
        self._write()

    def _write(self) -> None:
        alike: dict[Any, list[tuple[Candidate, list[Any]]]] = {}
        for one in self._of.values():
            text, values = self._text(one, lambda place, _: f"c{place}")
            alike.setdefault((*text.before, "", *text.lines), []).append((one, values))
        for some in alike.values():
            names, pick = _parameters([values for _, values in some])
            text, _ = self._text(some[0][0], _written(names))
            made = self._made(text, list(dict.fromkeys(filter(None, names))))
            for one, values in some:
                self._function[one.index] = made
                self._tile[one.index] = tuple(_plain(values[place]) for place in pick)

    def _text(self, one: Candidate, known: Known) -> tuple[Joined, list[Any]]:
        """What a candidate takes, and that it is chosen if that is the least so far; with its known numbers."""
        trace, (blocks, trips, longest, least, moved, _) = one.counted.traced
        text = Joined([f"c{place}" for place in range(len(trace.nodes) * 4 + 64)])
        part = Part(text, trace, known)
        text.guard(part, trace.guards, "-inf, None")
        grid, turns, is_even = part.number(blocks), part.number(trips), one.is_even
        busiest = text.name(f"-(-{grid} // {self._sms})")
        if type(plain(blocks)) is not int:
            busiest = text.name(f"int({busiest})")
        us = f"at + {turns}*(trip + {grid}*each)" + ("" if is_even else f" + {part.number(longest)}*chain")
        for term, count in ((BLOCKS, blocks), (LEAST, least), (MOVED, moved)):
            us += f" + {part.number(count)}*by{term}" if term in self._asked else ""
        if UNEVEN in self._asked and not is_even:
            more = f"({part.number(longest)} - {turns})*{busiest}*(1.0 - {self._sms}*({busiest} - 1)/{grid})"
            us += f" + (by{UNEVEN}*{more} if {busiest} <= resident else 0.0)"
        law = ", ".join(["steps", *(f"by{term}" for term in sorted(self._asked)), "resident", "i"])
        text.lines += [f"for at, ({law}) in laws:", "    factor = by[at]",
                       f"    {', '.join(LOCAL[: 3 if is_even else 4])} = steps[{busiest}]",
                       f"    us = factor*({us})", "    if us < best: best = us; index = i"]  # fmt: skip
        return text, part.values

    def _made(self, text: Joined, parameters: Sequence[str]) -> Counted:
        tile = f"({', '.join(parameters)},)" if parameters else "_"
        return text.function(("best", "index", "by", "rows"), self._inputs, f"for {tile}, laws in rows:",
                             "return best, index")  # fmt: skip

    def short(self, listed: tuple[int, ...], by: Iterable[float]) -> Short:
        """A short list of these configurations, each with a factor on its µs."""
        if listed not in self._listed:
            self._listed[listed] = self._rows(listed)
        return self._listed[listed], tuple(by)

    def _rows(self, listed: tuple[int, ...]) -> tuple[tuple[Counted, Any], ...]:
        tiles: dict[Counted, dict[tuple[Any, ...], list[tuple[int, Any]]]] = {}
        for at, index in enumerate(listed):
            of = tiles.setdefault(self._function[index], {})
            of.setdefault(self._tile[index], []).append((at, self._law(self._of[index])))
        return tuple((made, tuple((tile, tuple(laws)) for tile, laws in of.items())) for made, of in tiles.items())

    def _law(self, one: Candidate) -> tuple[Any, ...]:
        if one.index not in self._laws:
            steps = Steps(one.law, self._sms, one.resident, is_even=one.is_even)
            each = {BLOCKS: 1 / self._sms, LEAST: 2.5e-7, MOVED: 1e-7, UNEVEN: 1.0}
            terms = (float(one.law[term] * each[term]) for term in sorted(self._asked))
            self._laws[one.index] = (steps, *terms, one.resident, one.index)
        return self._laws[one.index]


def least(short: Short, key: Sequence[Any]) -> int | None:
    """The fastest of a short list for a launch's numbers; None for a launch that takes turns which were not read."""
    best, index = inf, None
    functions, by = short
    for made, rows in functions:
        best, index = made(best, index, by, rows, *key)
    return index


def alone(index: int) -> Short:
    """A short list of one: nothing is counted."""
    return ((_alone, index),), ()


def _alone(best: float, index: int | None, by: Any, rows: int, *inputs: Any) -> tuple[float, int]:
    return 0.0, rows


def _parameters(values: Sequence[Sequence[Any]]) -> tuple[list[str], list[int]]:
    """Names of known numbers by their place, empty where all configurations [n] share them; one name for places that
    always hold the same; and the place that each name is taken from."""
    columns = list(zip(*values, strict=True))
    first: dict[Any, int] = {}
    names = ["" if len(set(column)) == 1 else f"c{first.setdefault(column, place)}"
             for place, column in enumerate(columns)]  # fmt: skip
    return names, list(first.values())


def _written(names: Sequence[str]) -> Known:
    return lambda place, number: names[place] or literal(number)


def _plain(number: Any) -> Any:
    return float(number) if isinstance(number, Fraction) else number

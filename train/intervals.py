"""How wide 90 % intervals are per basis and protocol, from held-out rows: a multiple of a power of a net's error scale.

The power that gives the best interval score (Gneiting & Raftery 2007, eq. 43) is chosen from a few; the multiple covers
the level in the conformal way, every GPU counting alike. Rows are those that other splits hold out, never one's own.

On GPUs never seen, rows are no independent sample: cards are, on architectures never seen architectures, and there are
few. The multiple is then the one expected to hold the next of them (`train.two_levels`), the score that of those left
out one at a time, and a protocol shares the rows of all protocols where that scores better.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipewave.nets.weights_metadata import BASES, Interval, half_width, intervals_of
from train.rows import Ints, Rows
from train.splits import TWINS, by_name
from train.two_levels import for_next_unit, weighted_quantile

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
LEVEL = 0.9
POWERS = (1.0, 0.75, 0.5, 0.25, 0.0)
NEW = BASES.index("new_architecture")
TOLERANCE = 1.03  # a score this close to the best is as good: the higher power is kept
MAX_ROWS = 40_000  # under one protocol, of every split alike and evenly spread: enough for a tail of a tenth
ENOUGH_ROWS = 300  # of a protocol for an interval of its own
CERTAIN = 0.99  # of rows: what the others are given is no measure of what nobody measured


@dataclass(frozen=True, slots=True)
class Held:
    """Held-out rows: which, absolute log error, error scale, GPU code, unit, protocol, basis (an index into BASES).

    A unit is what such rows are new by: the architecture under `new_architecture`, else the card, twins being one.
    """

    index: Ints
    error: Floats
    scale: Floats
    gpu: Ints
    unit: Ints
    protocol: NDArray[np.str_]
    basis: Ints

    def take(self, keep: Flags | Ints) -> Held:
        """These rows only."""
        return Held(*(getattr(self, name)[keep] for name in Held.__slots__))


def held(name: str, mean: Floats, scale: Floats, rows: Rows) -> Held:
    """The scored rows of a split."""
    split = by_name(name, rows)
    error = np.abs(rows.residual[split.score] - mean)
    gpu, protocol = rows.columns["gpu"].codes[split.score], rows.columns["protocol"].text()[split.score]
    basis = basis_of(rows, split.score, split.train)
    family = len(rows.columns["gpu"].values) + rows.columns["family"].codes[split.score]
    gpus = rows.columns["gpu"].values
    first = {second: gpus.index(first) for first, second in TWINS if first in gpus}  # twins are one unit
    unit = np.where(basis == NEW, family, np.array([first.get(name, code) for code, name in enumerate(gpus)])[gpu])
    return Held(split.score, error, scale, gpu, unit, protocol, basis)


def basis_of(rows: Rows, index: Ints, train: Ints) -> Ints:
    """Index into BASES of each row, by what the training rows hold, as the contract defines it."""
    measured, same = (_known(rows, index, train, column) for column in ("gpu", "capability"))
    return np.where(measured, 0, np.where(same, 1, 2))


def _known(rows: Rows, index: Ints, train: Ints, column: str) -> Flags:
    keys = np.zeros(len(rows), np.int64)
    for name in (column, "dtype", "protocol"):
        keys = keys * 4096 + rows.columns[name].codes
    return np.isin(keys[index], np.unique(keys[train]))


def calibrated(
    parts: Sequence[Held], level: float = LEVEL, familiar: Mapping[str, Interval] | None = None
) -> dict[str, Interval]:
    """An interval for every basis, none without held-out rows, and for every `basis|protocol` with enough of them.

    A basis without any borrows from a more familiar one. `familiar`: intervals that other rows have settled.
    """
    found: dict[str, Interval] = dict(familiar or {})
    thin = joined([part.take(_spread(part.protocol, MAX_ROWS // len(parts))) for part in parts])
    for code, basis in enumerate(BASES):
        mine = thin.take(thin.basis == code)
        if len(mine.error):
            named = {name: _interval(mine, name, code, found, level) for name in _protocols_and_all(mine.protocol)}
            found |= {f"{basis}|{name}" if name else basis: one for name, one in named.items()}
        elif code:
            lent = BASES[code - 1]
            found |= {name.replace(lent, basis): one for name, one in found.items() if name.startswith(lent)}
    first = next(iter(found.values()), None)
    return dict.fromkeys(BASES, first) | found if first else {}


def _spread(protocol: NDArray[np.str_], most: int) -> Ints:
    """At most so many rows of each protocol."""
    rows = [np.flatnonzero(protocol == name) for name in np.unique(protocol)]
    return np.concatenate([np.zeros(0, np.int64), *(at[:: -(-len(at) // most)] for at in rows)])


def joined(parts: Sequence[Held]) -> Held:
    """All rows of these parts."""
    kinds = ("i8", "f8", "f8", "i8", "i8", "U1", "i8")
    none = [Held(*(np.zeros(0, kind) for kind in kinds))]
    return Held(*(np.concatenate([getattr(p, name) for p in parts or none]) for name in Held.__slots__))


def _protocols_and_all(protocol: NDArray[np.str_]) -> list[str]:
    """Nothing, which stands for all protocols, and each that has enough rows."""
    names, counts = np.unique(protocol, return_counts=True)
    return ["", *(str(name) for name, count in zip(names, counts, strict=True) if count >= ENOUGH_ROWS)]


def _interval(mine: Held, protocol: str, code: int, known: Mapping[str, Interval], level: float) -> Interval:
    """The interval of the best score under a protocol; on unseen GPUs it may rest on rows of the others, too."""
    own = mine.protocol == protocol if protocol else np.ones(len(mine.protocol), bool)
    familiar = intervals_of(known, BASES[code - 1], protocol) if code and BASES[code - 1] in known else ()
    pools = [(mine.take(own), own[own])]
    if code and protocol:
        alone = len(np.unique(mine.unit[own])) == 1 < len(np.unique(mine.unit))
        pools = [(mine, own)] if alone else [*pools, (mine, own)]
    tried = [_tried(Pool.of(pool, familiar, power, at), level, bool(code)) for pool, at in pools for power in POWERS]
    enough = TOLERANCE * min(score for score, _ in tried)
    return next(interval for score, interval in tried if score <= enough)


@dataclass(frozen=True, slots=True)
class Pool:
    """Rows that settle a multiple; `own` are those it is judged by."""

    power: float
    own: Flags
    unit: Ints
    weight: Floats
    error: Floats
    scaled: Floats
    least: Floats  # half-width that more familiar intervals give

    @classmethod
    def of(cls, rows: Held, familiar: Sequence[Interval], power: float, own: Flags) -> Pool:
        """Gather what the widths of some rows need."""
        scaled = rows.scale**power
        least = half_width(familiar, rows.scale) if familiar else np.zeros(len(scaled))
        return cls(power, own, rows.unit, balance(rows.gpu), rows.error, scaled, least)

    def multiple(self, used: Flags, level: float, *, ahead: bool) -> float:
        """The multiple that holds a share of the used rows; `ahead`, that is expected to hold it of the next unit's."""
        needed, weight = (self.error / self.scaled)[used], self.weight[used]
        if ahead:
            return for_next_unit(needed, self.unit[used], weight, level)
        return weighted_quantile(np.where(self.error <= self.least, 0.0, self.error / self.scaled)[used], weight, level)

    def interval(self, multiple: float) -> Interval:
        """That multiple of the scaled width, no wider than 99 % of these rows are given."""
        return Interval(round(multiple, 4), self.power, round(multiple * float(np.quantile(self.scaled, CERTAIN)), 4))

    def score(self, rows: Flags, multiple: float, level: float) -> float:
        """Mean interval score over rows, their weights counting."""
        width = np.maximum(self.least[rows], multiple * self.scaled[rows])
        each = width + np.maximum(self.error[rows] - width, 0.0) / (1.0 - level)
        return float(np.average(each, weights=self.weight[rows]))


def _tried(pool: Pool, level: float, by_unit: bool) -> tuple[float, Interval]:
    """Score and interval of one pool and power; units are judged by what the others call for."""
    every = np.ones(len(pool.error), bool)
    multiple = pool.multiple(every, level, ahead=by_unit)
    units = [pool.unit == unit for unit in np.unique(pool.unit[pool.own])]
    if not by_unit or len(np.unique(pool.unit)) == 1:
        return pool.score(pool.own, multiple, level), pool.interval(multiple)
    scores = [pool.score(at & pool.own, pool.multiple(~at, level, ahead=True), level) for at in units]
    return float(np.mean(scores)), pool.interval(multiple)


def balance(gpu: Ints) -> Floats:
    """Weights under which every GPU counts alike."""
    return np.asarray(1.0 / np.bincount(gpu)[gpu])


def other_splits(name: str, parts: Mapping[str, Held]) -> list[Held]:
    """What other splits hold out without this split's rows; repeated draws of few rows by themselves."""
    if name.startswith("few:"):
        owner = name.rpartition(":")[0]
        return [part for other, part in parts.items() if other.startswith("few:") and not other.startswith(f"{owner}:")]
    mine = parts[name].index
    others = {other: part for other, part in parts.items() if other != name and not other.startswith("few:")}
    disjoint = {other: part.take(np.isin(part.index, mine, invert=True)) for other, part in others.items()}
    return informative(disjoint)


def informative(parts: Mapping[str, Held]) -> list[Held]:
    """Parts with rows; a fold that held out all there was of a type on a GPU says nothing about unseen GPUs."""
    kept = [part.take(part.basis == 0) if name.startswith("fold:") else part for name, part in parts.items()]
    return [part for part in kept if len(part.index)]


def widths(name: str, parts: Mapping[str, Held]) -> Floats:
    """Half-widths in log time for the rows of a split, from its other_splits; NaN where it has none."""
    return given(parts[name], calibrated(other_splits(name, parts)))


def given(part: Held, intervals: Mapping[str, Interval]) -> Floats:
    """Half-widths in log time that these intervals give the rows of a split; NaN without any."""
    out = np.full(len(part.index), np.nan)
    for code, basis in enumerate(BASES if intervals else ()):
        for protocol in np.unique(part.protocol):
            rows = (part.basis == code) & (part.protocol == protocol)
            out[rows] = half_width(intervals_of(intervals, basis, str(protocol)), part.scale[rows])
    return out

"""How wide 90 % intervals are per basis, from held-out rows: a multiple of a power of a net's own error scale.

The power that gives the best interval score (Gneiting & Raftery 2007, eq. 43) is chosen from a few; the multiple covers
the level in the conformal way, every GPU counting alike. Rows are those that other splits hold out, never one's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipewave.estimator import BASES, Interval, half_width, intervals_of
from train.rows import Ints, Rows
from train.splits import by_name

Floats = NDArray[np.float64]
LEVEL = 0.9
POWERS = (1.0, 0.75, 0.5, 0.25, 0.0)
TOLERANCE = 1.03  # a score this close to the best is as good: the higher power is kept
MAX_ROWS = 4_000  # of a split, evenly spread: enough for a tail of a tenth


@dataclass(frozen=True, slots=True)
class Held:
    """Held-out rows: which, absolute log error, error scale, GPU code, index into BASES."""

    index: Ints
    error: Floats
    scale: Floats
    gpu: Ints
    basis: Ints

    def take(self, keep: NDArray[np.bool_] | Ints) -> Held:
        """These rows only."""
        return Held(self.index[keep], self.error[keep], self.scale[keep], self.gpu[keep], self.basis[keep])


def held(name: str, mean: Floats, scale: Floats, rows: Rows) -> Held:
    """The scored rows of a split."""
    split = by_name(name, rows)
    error = np.abs(rows.residual[split.score] - mean)
    basis = basis_of(rows, split.score, split.train)
    return Held(split.score, error, scale, rows.columns["gpu"].codes[split.score], basis)


def basis_of(rows: Rows, index: Ints, train: Ints) -> Ints:
    """Index into BASES of each row, by what the training rows hold, as the contract defines it."""
    measured, same = (_known(rows, index, train, column) for column in ("gpu", "capability"))
    return np.where(measured, 0, np.where(same, 1, 2))


def _known(rows: Rows, index: Ints, train: Ints, column: str) -> NDArray[np.bool_]:
    keys = np.zeros(len(rows), np.int64)
    for name in (column, "dtype", "protocol"):
        keys = keys * 4096 + rows.columns[name].codes
    return np.isin(keys[index], np.unique(keys[train]))


def calibrated(parts: Sequence[Held], level: float = LEVEL) -> dict[str, Interval]:
    """An interval for every basis, none without held-out rows; a basis without any borrows from a more familiar one."""
    found: dict[str, Interval] = {}
    thin = [part.take(np.arange(0, len(part.index), -(-len(part.index) // MAX_ROWS) or 1)) for part in parts]
    for code, basis in enumerate(BASES):
        mine = _joined([part.take(part.basis == code) for part in thin])
        if len(mine.error):
            tried = [_fitted(mine, found, power, level) for power in POWERS]
            enough = TOLERANCE * min(score for score, _ in tried)
            found[basis] = next(interval for score, interval in tried if score <= enough)
        elif found:
            found[basis] = next(reversed(found.values()))
    first = next(iter(found.values()), None)
    return {basis: found.get(basis, first) for basis in BASES} if first else {}


def _joined(parts: Sequence[Held]) -> Held:
    return Held(*(np.concatenate([getattr(p, name) for p in parts] or [np.zeros(0)]) for name in Held.__slots__))


def _fitted(mine: Held, familiar: Mapping[str, Interval], power: float, level: float) -> tuple[float, Interval]:
    """Interval score and interval of one power; rows that more familiar intervals cover already need no multiple."""
    least = np.maximum.reduce([np.zeros(len(mine.error)), *(known(mine.scale) for known in familiar.values())])
    weight = balance(mine.gpu)
    ratio = np.where(mine.error <= least, 0.0, mine.error / mine.scale**power)
    multiple = weighted_quantile(ratio, weight, level)
    width = np.maximum(least, multiple * mine.scale**power)
    score = width + np.maximum(mine.error - width, 0.0) / (1.0 - level)
    return float(np.average(score, weights=weight)), Interval(round(multiple, 4), power)


def balance(gpu: Ints) -> Floats:
    """Weights under which every GPU counts alike."""
    return np.asarray(1.0 / np.bincount(gpu)[gpu])


def weighted_quantile(values: Floats, weight: Floats, level: float) -> float:
    """The least value below or at which `level` of the weight lies."""
    order = np.argsort(values)
    reached = np.cumsum(weight[order]) / weight.sum()
    return float(values[order][min(int(np.searchsorted(reached, level)), len(values) - 1)])


def sisters(name: str, parts: Mapping[str, Held]) -> list[Held]:
    """What other splits hold out without this split's rows; repeated draws of few rows by themselves."""
    if name.startswith("few:"):
        owner = name.rpartition(":")[0]
        return [part for other, part in parts.items() if other.startswith("few:") and not other.startswith(f"{owner}:")]
    mine = parts[name].index
    others = [part for other, part in parts.items() if other != name and not other.startswith("few:")]
    apart = [part.take(np.isin(part.index, mine, invert=True, assume_unique=False)) for part in others]
    return [part for part in apart if len(part.index)]


def widths(name: str, parts: Mapping[str, Held]) -> Floats:
    """Half-widths in log time for the rows of a split, from its sisters; NaN where it has none."""
    part, intervals = parts[name], calibrated(sisters(name, parts))
    out = np.full(len(part.index), np.nan)
    for code, basis in enumerate(BASES if intervals else ()):
        rows = part.basis == code
        out[rows] = half_width(intervals_of(intervals, basis), part.scale[rows])
    return out

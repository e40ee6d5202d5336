"""An unseen family with 100 rows of the GPU: the left-out member corrected afterwards, as `pipewave calibrate` does.

`corrected` draws the rows from those that are scored, type by type. `averaged` takes the draws of the `few:` splits,
and the mean of what members trained with those rows say and what the corrected left-out member says. With `members`,
the last hidden layers of the left-out member are coordinates too, as they are for a user.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from pipewave.calibrate.fit import Sample, fit
from pipewave.nets.calibration.correction import CODES, Correction
from train.intervals import Flags, Held, held, widths
from train.rows import Floats, Ints, Rows
from train.run import Predictions, Run, Scored
from train.splits import DRAWS, FEW, by_name

MAX_SCORED = 2_000  # rows of a draw, evenly spread
FEWEST = 3 * FEW  # rows of a GPU and type that make a test


def corrected(
    rows: Rows, predictions: Predictions, keep: Flags | None = None, members: Run | None = None
) -> list[Scored]:
    """Scored rows by draw, named `few:GPU:draw`."""
    kept = np.ones(len(rows), bool) if keep is None else keep
    return [part for left_out in _families(rows, predictions, members) for part in _drawn(rows, left_out, kept)]


def averaged(
    rows: Rows, predictions: Predictions, keep: Flags | None = None, members: Run | None = None
) -> list[Scored]:
    """The same where `few:` members were trained."""
    kept, found = np.ones(len(rows), bool) if keep is None else keep, []
    for left_out in _families(rows, predictions, members):
        for name in (name for name in predictions if name.startswith("few:") and name.split(":")[1] in left_out.gpus):
            split, mixed = by_name(name, rows), predictions[name][0]
            at = np.flatnonzero(kept[split.score])
            if len(at):
                drawn = left_out.index[np.isin(left_out.index, split.train, kind="table")]
                part = left_out.correct(rows, drawn, split.score[at], name)
                found.append(Scored(name, part.index, (part.mean + mixed[at]) / 2, part.half))
    return found


class LeftOut:
    """What the member without a family says of its rows: log residual and half-width by row number, NaN elsewhere."""

    def __init__(self, name: str, rows: Rows, index: Ints, mean: Floats, half: Floats, members: Run | None) -> None:
        self.name, self.index, self.members = name, index, members
        self.gpus = set(map(str, np.unique(rows.columns["gpu"].text()[index])))
        self.mean, self.half = np.full(len(rows), np.nan), np.full(len(rows), np.nan)
        self.mean[index], self.half[index] = mean, half

    def correct(self, rows: Rows, drawn: Ints, score: Ints, name: str) -> Scored:
        """Scored rows after a correction from the drawn ones."""
        found = fit(self._sample(rows, drawn))
        width = found.correction.width if found.correction else 1.0
        moved = log_factors(found.correction, self._sample(rows, score))
        return Scored(name, score, self.mean[score] + moved, self.half[score] * width)

    def _sample(self, rows: Rows, index: Ints) -> Sample:
        names, coordinates = coordinates_of(rows, index, self.members, self.name)
        ratio = rows.residual[index] - self.mean[index]
        return Sample(names, coordinates, ratio, self.half[index], rows.group[index], frozenset())


def log_factors(found: Correction | None, sample: Sample) -> Floats:
    """What a correction does to rows of another sample with the same coordinates; nothing where there is none."""
    if found is None or not len(sample):
        return np.zeros(len(sample))
    columns = [sample.names.index(name) for name in found.frame.names]
    return found.at(found.frame.scaled(sample.coordinates[:, columns]))


def coordinates_of(rows: Rows, index: Ints, members: Run | None, split: str) -> tuple[tuple[str, ...], Floats]:
    """Features, hidden units and software as `pipewave.calibrate.fit` lays them out: [row, name]."""
    columns = {name: rows.columns[name] for name in CODES if name in rows.columns}
    indicators = [column.codes[index] == code for column in columns.values() for code in range(len(column.values))]
    codes = [f"{name}={value}" for name, column in columns.items() for value in column.values]
    units = members.of(split).units(rows, index) if members else np.zeros((len(index), 0))
    names = (*rows.names, *(f"unit{number}" for number in range(units.shape[1])), *codes)
    return names, np.column_stack([rows.features[index].astype(float), units, *indicators])


def _families(rows: Rows, predictions: Predictions, members: Run | None) -> Iterator[LeftOut]:
    parts: Mapping[str, Held] = {
        name: held(name, mean, scale, rows)
        for name, (mean, scale) in predictions.items()
        if name != "ship" and not name.startswith("few:")
    }
    for name in (name for name in parts if name.startswith("lofo:")):
        yield LeftOut(name, rows, parts[name].index, predictions[name][0], widths(name, parts), members)


def _drawn(rows: Rows, left_out: LeftOut, kept: Flags) -> Iterator[Scored]:
    mine = left_out.index[kept[left_out.index]]
    gpu, dtype = (rows.columns[name].text()[mine] for name in ("gpu", "dtype"))
    for card, kind in sorted(set(zip(gpu.tolist(), dtype.tolist(), strict=True))):
        candidates = mine[(gpu == card) & (dtype == kind)]
        if len(candidates) >= FEWEST:
            yield from (_one(rows, left_out, candidates, card, draw) for draw in range(DRAWS))


def _one(rows: Rows, left_out: LeftOut, candidates: Ints, card: str, draw: int) -> Scored:
    """100 rows correct, rows of other groups are scored."""
    rng = np.random.default_rng(draw)
    groups = np.unique(rows.group[candidates])
    few = len(groups) < FEW  # then rows come from half of the groups, or hardly a group would be left to score
    pool = rng.choice(groups, max(1, len(groups) // 2), replace=False) if few else groups
    drawn = rng.choice(candidates[np.isin(rows.group[candidates], pool)], FEW, replace=False)
    score = candidates[~np.isin(rows.group[candidates], rows.group[drawn])]
    return left_out.correct(rows, drawn, score[:: -(-len(score) // MAX_SCORED) or 1], f"few:{card}:{draw}")

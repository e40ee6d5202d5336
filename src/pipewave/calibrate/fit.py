"""From rows with their predictions to a correction, judged on groups of rows it did not see."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pipewave.nets.calibration.correction import FARTHEST, Correction, Frame, SoftwareRan
from pipewave.nets.calibration.process import left_out, likeliest
from pipewave.physics.demand import Array

MAX_ROWS = 1000
FEWEST_ROWS = 3
LEVEL = 0.9
ROWS_FOR_WIDTH = 30  # fewer say too little about a tenth of the errors
WIDTHS = (0.25, 4.0)
ROWS_FOR_SOFTWARE = 30  # fewer do not tell one library from another
USUAL_ROWS = 5  # of one software that say what is usual for it
OUTLIER = 2.5  # robust standard deviations beyond which a row counts as just so far off


@dataclass(frozen=True, slots=True)
class Sample:
    """Rows of one net and protocol: raw coordinates [row, name], measured over predicted, the interval's half-width.

    `log_ratio` and `half_width` are in log time; `group` tells near-duplicate rows.
    """

    names: tuple[str, ...]
    coordinates: Array
    log_ratio: Array
    half_width: Array
    group: NDArray[np.intp]
    settings: frozenset[SoftwareRan]

    def __len__(self) -> int:
        return len(self.log_ratio)

    def take(self, index: NDArray[np.intp]) -> Sample:
        """These rows only."""
        return replace(
            self,
            coordinates=self.coordinates[index],
            log_ratio=self.log_ratio[index],
            half_width=self.half_width[index],
            group=self.group[index],
        )


@dataclass(frozen=True, slots=True)
class Fit:
    """A correction and the mean relative errors in % before and after, the latter with each row's group left out."""

    correction: Correction | None  # None where it would not have helped
    rows: int
    groups: int
    before: float
    after: float


def fit(sample: Sample) -> Fit:
    """Fit a correction; ValueError with fewer than FEWEST_ROWS rows."""
    if len(sample) < FEWEST_ROWS:
        raise ValueError(f"{len(sample)} rows: at least {FEWEST_ROWS} are needed")
    sample = thinned(sample)
    frame, points = standardised(sample)
    values = tamed(sample)
    codes = sum(map(is_code, frame.names)) if len(sample) >= ROWS_FOR_SOFTWARE else 0
    scales = likeliest(points, values, codes)
    inverse = scales.inverse(points)
    remaining = left_out(inverse, values, _groups_or_rows(sample.group)) - sample.log_ratio
    before, after = mape(-sample.log_ratio), mape(remaining)
    weights = inverse @ values
    found = Correction(frame, scales, points, weights, sample.settings, _width(remaining, sample.half_width))
    groups = len(np.unique(sample.group))
    return Fit(found if after < before else None, len(sample), groups, before, min(after, before))


def log_factors(found: Correction | None, sample: Sample) -> Array:
    """What a correction does to rows of another sample with the same coordinates; nothing where there is none."""
    if found is None or not len(sample):
        return np.zeros(len(sample))
    columns = [sample.names.index(name) for name in found.frame.names]
    return found.at(found.frame.scaled(sample.coordinates[:, columns]))


def mape(log_error: Array) -> float:
    """Mean relative error in % of log predicted - log measured."""
    return 100.0 * float(np.abs(np.expm1(log_error)).mean())


def standardised(sample: Sample) -> tuple[Frame, Array]:
    """The coordinates that vary over the sample, in standard deviations from their mean."""
    middle, spread = sample.coordinates.mean(0), sample.coordinates.std(0)
    varies = spread > 1e-3 * (1.0 + np.abs(middle))
    names = tuple(name for name, kept in zip(sample.names, varies, strict=True) if kept)
    frame = Frame(names, middle[varies], spread[varies])
    points = (sample.coordinates[:, varies] - frame.middle) / frame.spread
    return frame, np.clip(points, -FARTHEST, FARTHEST)


def thinned(sample: Sample, most: int = MAX_ROWS) -> Sample:
    """At most so many rows, drawn evenly."""
    if len(sample) <= most:
        return sample
    return sample.take(np.sort(np.random.default_rng(0).choice(len(sample), most, replace=False)))


def is_code(name: str) -> bool:
    """Whether a coordinate tells software."""
    return "=" in name


def tamed(sample: Sample) -> Array:
    """Log ratios with outliers pulled in, among rows of the same software: a library may be far off as a whole.

    Software with hardly a row is judged among all.
    """
    out = _tamed(sample.log_ratio)
    codes = sample.coordinates[:, np.array([is_code(name) for name in sample.names], bool)]
    if not codes.size or len(sample) < ROWS_FOR_SOFTWARE:
        return out
    kind = np.unique(codes, axis=0, return_inverse=True)[1].reshape(-1)
    for rows in (kind == one for one in np.unique(kind)):
        if rows.sum() >= USUAL_ROWS:
            out[rows] = _tamed(sample.log_ratio[rows])
    return out


def _tamed(values: Array) -> Array:
    """Values with outliers pulled in: one spoiled row must not move the rest."""
    middle = np.median(values)
    spread = 1.4826 * float(np.median(np.abs(values - middle))) + 0.01
    return np.clip(values, middle - OUTLIER * spread, middle + OUTLIER * spread)


def _groups_or_rows(group: NDArray[np.intp]) -> NDArray[np.intp]:
    """The groups, or every row by itself where there is one group only."""
    return group if len(np.unique(group)) > 1 else np.arange(len(group))


def _width(remaining: Array, half_width: Array) -> float:
    """Factor on the interval's half-width that covers LEVEL of the left-out rows (split-conformal rank)."""
    rows = len(remaining)
    if rows < ROWS_FOR_WIDTH:
        return 1.0
    rank = min(int(np.ceil(LEVEL * (rows + 1))), rows) - 1
    return float(np.clip(np.sort(np.abs(remaining) / half_width)[rank], *WIDTHS))

"""From measured rows with their predictions to a correction, judged on groups of rows that it did not see."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipewave.calls.families import CLASSES, from_dict
from pipewave.calls.fields import rules
from pipewave.errors import PipewaveError
from pipewave.gpus import GPU
from pipewave.kernels import Analysis, family_of, group_of
from pipewave.nets.calibration.correction import (
    CODES,
    FARTHEST,
    UNIT,
    Correction,
    Frame,
    SoftwareRan,
    left_out,
    likeliest,
)
from pipewave.nets.calibration.corrections import suspended
from pipewave.nets.nets import trained
from pipewave.physics.demand import Array
from pipewave.prediction.columns import columns, group_key
from pipewave.prediction.kernel_latency import US, answer
from pipewave.prediction.resolve import codes_of

MAX_ROWS = 1000
FEWEST_ROWS = 3
LEVEL = 0.9
ROWS_FOR_WIDTH = 30  # fewer say too little about a tenth of the errors
WIDTHS = (0.25, 4.0)
ROWS_FOR_SOFTWARE = 30  # fewer do not tell one library from another
USUAL_ROWS = 5  # of one software that say what is usual for it
OUTLIER = 2.5  # robust standard deviations beyond which a row counts as just so far off
Row = Mapping[str, Any]
Key = tuple[str, str]  # net and protocol


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
        by_row = ("coordinates", "log_ratio", "half_width", "group")
        return replace(self, **{name: getattr(self, name)[index] for name in by_row})


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
    codes = sum("=" in name for name in frame.names) if len(sample) >= ROWS_FOR_SOFTWARE else 0
    scales = likeliest(points, values, codes)
    inverse = scales.inverse(points)
    groups = len(np.unique(sample.group))
    remaining = left_out(inverse, values, sample.group if groups > 1 else np.arange(len(sample))) - sample.log_ratio
    before, after = mape(-sample.log_ratio), mape(remaining)
    weights = inverse @ values
    found = Correction(frame, scales, points, weights, sample.settings, _width(remaining, sample.half_width))
    return Fit(found if after < before else None, len(sample), groups, before, min(after, before))


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


def tamed(sample: Sample) -> Array:
    """Log ratios with outliers pulled in, among rows of the same software; where these are few, among all."""
    out = _tamed(sample.log_ratio)
    codes = sample.coordinates[:, np.array(["=" in name for name in sample.names], bool)]  # what tells software
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


def _width(remaining: Array, half_width: Array) -> float:
    """Factor on the interval's half-width that covers LEVEL of the left-out rows (split-conformal rank)."""
    rows = len(remaining)
    if rows < ROWS_FOR_WIDTH:
        return 1.0
    rank = min(int(np.ceil(LEVEL * (rows + 1))), rows) - 1
    return float(np.clip(np.sort(np.abs(remaining) / half_width)[rank], *WIDTHS))


@dataclass(frozen=True, slots=True)
class _Part:
    """Rows of one context."""

    features: Mapping[str, Array]
    codes: Mapping[str, str]
    log_ratio: Array
    half_width: Array
    groups: list[str]


def samples(rows: Iterable[Row], gpu: GPU) -> tuple[dict[Key, Sample], int]:
    """Samples by net and protocol, and how many rows no prediction exists for (an unknown kernel, a bad field)."""
    contexts: dict[Any, list[tuple[dict[str, Any], float]]] = defaultdict(list)
    unusable = 0
    for row in rows:
        try:
            case = _case(row)
        except PipewaveError:
            unusable += 1
            continue
        key = (case["kernel"], row["protocol"], group_key(family_of(case["kernel"]), case))
        contexts[key].append((case, float(row["latency_us"])))
    parts: dict[Key, list[_Part]] = defaultdict(list)
    with suspended():
        for (kernel, protocol, key), members in contexts.items():
            net, part = _part(kernel, key, members, gpu, protocol)
            parts[net, protocol].append(part)
    return {key: _joined(found) for key, found in parts.items()}, unusable


def _case(row: Row) -> dict[str, Any]:
    """The call of a row with the software that ran it, every field filled in."""
    call = from_dict(dict(row["case"]) | {"stack": row["stack"], "impl": row["impl"]})
    return {name: getattr(call, name) for name in rules(CLASSES[call.kernel])} | {"kernel": call.kernel}


def _part(
    kernel: str, key: Sequence[Any], members: Sequence[tuple[dict[str, Any], float]], gpu: GPU, protocol: str
) -> tuple[str, _Part]:
    family, cases = family_of(kernel), [case for case, _ in members]
    found = answer(family, columns(family, cases), key, gpu, protocol)
    latency, _, high, *_ = found.seconds
    measured = np.array([latency_us for _, latency_us in members]) / US
    codes = codes_of(found.ctx, found.analysis.net)
    groups = [f"{kernel}:{group_of(case)}" for case in cases]
    ratio, half = np.log(measured / latency), np.maximum(np.log(high / latency), 1e-3)
    return found.analysis.net, _Part(_coordinates(found.analysis, codes), codes, ratio, half, groups)


def _coordinates(analysis: Analysis, codes: Mapping[str, str]) -> dict[str, Array]:
    """What a correction looks at besides software: the features, and what the net makes of them."""
    found, learned = dict(analysis.features), trained(analysis.net)
    if learned:
        units = learned.net.with_units(learned.net.inputs(analysis.features), codes)[1].swapaxes(1, 2)
        found |= {f"{UNIT}{i}": one.astype(np.float64) for i, one in enumerate(units.reshape(-1, units.shape[2]))}
    return found


def _joined(parts: Sequence[_Part]) -> Sample:
    codes = sorted({f"{name}={part.codes[name]}" for part in parts for name in CODES})
    shared = [name for name in parts[0].features if all(name in part.features for part in parts)]
    blocks = []
    for part in parts:
        features = [np.broadcast_to(part.features[name], len(part.groups)) for name in shared]
        indicators = [
            np.full(len(part.groups), float(part.codes[c.partition("=")[0]] == c.partition("=")[2])) for c in codes
        ]
        blocks.append(np.array([*features, *indicators], np.float64).T)
    _, group = np.unique(np.concatenate([part.groups for part in parts]), return_inverse=True)
    return Sample(
        names=(*shared, *codes),
        coordinates=np.concatenate(blocks),
        log_ratio=np.concatenate([part.log_ratio for part in parts]),
        half_width=np.concatenate([part.half_width for part in parts]),
        group=group.reshape(-1),
        settings=frozenset((part.codes["stack"], part.codes["impl"]) for part in parts),
    )

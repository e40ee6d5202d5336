"""One correction: a card's own rows of one net under one protocol, and what they say about any call of that kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from pipewave.nets.calibration.process import Scales, WeightedCovariance
from pipewave.physics.arith import ARRAY, Arith
from pipewave.physics.demand import Array

FARTHEST = 3.0  # standard deviations of the rows beyond which a coordinate counts as the edge
CHUNK_CALLS = 512  # whose covariances with the rows stay in a cache
UNIT = "unit"  # with a number: a hidden unit of the net
CODES = ("stack", "impl", "dtype")

Rows = Sequence[Any] | Array  # of one call, or [row, call]
SoftwareRan = tuple[str, str]  # stack and implementation, as the rows carry them


@dataclass(frozen=True, slots=True)
class Frame:
    """How coordinates are read: names (features, and `dtype=fp8` for software), their middle and their spread."""

    names: tuple[str, ...]
    middle: Array
    spread: Array

    def scaled(self, raw: Array) -> Array:
        """Coordinates [row, name] in standard deviations from their middle."""
        return np.minimum(np.maximum((raw - self.middle) / self.spread, -FARTHEST), FARTHEST)


def _ran(name: str, codes: Mapping[str, str]) -> float:
    """Whether `dtype=fp8` is what ran."""
    code, _, value = name.partition("=")
    return float(codes.get(code) == value)


@dataclass(frozen=True, slots=True, eq=False)  # distinguished by identity: what is worked out of one is cached by it
class Correction:
    """Log factor on a predicted latency: a weighted sum of the covariances with `points` of the calibration's rows."""

    frame: Frame
    scales: Scales
    points: Array
    weights: Array
    settings: frozenset[SoftwareRan]
    width: float  # factor on the half-width of the interval, in log time
    origin: str = ""  # whose rows they are, where not the user's own

    @property
    def rows(self) -> int:
        """Rows it was fitted to."""
        return len(self.weights)

    @property
    def note(self) -> str:
        """What an answer that it moved says."""
        return f"calibrated with {self.rows} rows{' of ' if self.origin else ''}{self.origin}"

    def at(self, points: Array) -> Array:
        """Log of corrected over predicted latency at scaled coordinates [call, name], one a call."""
        parts = [points[at : at + CHUNK_CALLS] for at in range(0, len(points), CHUNK_CALLS)]
        return np.concatenate([self.scales.kernel(part, self.points) @ self.weights for part in parts])

    def of_software(self, codes: Mapping[str, str]) -> SoftwareCorrection:
        """The correction for calls of constant categories."""
        return _of_software(self, tuple((name, codes[name]) for name in CODES if name in codes))

    def apply(self, seconds: Array, log_factor: Array) -> Array:
        """[latency, low, high, floor, ceiling] corrected: the first three move, none falls below the floor."""
        return np.array(moved(seconds, log_factor, self.width, ARRAY))


def moved(seconds: Rows, log_factor: Any, width: float, xp: Arith) -> tuple[Any, ...]:
    """Latency, low, high, floor and ceiling of calls whose latency a calibration moves."""
    latency, low, high, floor, ceiling = seconds
    now = latency * xp.exp(log_factor)
    ends = (now, now * (low / latency) ** width, now * (high / latency) ** width, floor, ceiling)
    return tuple(xp.maximum(each, floor) for each in ends)


@dataclass(frozen=True, slots=True, eq=False)
class SoftwareCorrection:
    """A correction of calls that share their software."""

    names: tuple[str, ...]  # of the coordinates that differ: features, and hidden units of the net
    middle: Array
    scale: Array
    covariance: WeightedCovariance

    def of_features(self, features: Mapping[str, Array]) -> Array:
        """The same from coordinates by name, [call] each."""
        return self.log_factor(np.array([features[name] for name in self.names]).T)

    def log_factor(self, raw: Array) -> Array:
        """Log of corrected over predicted latency, from coordinates [call, name], which are overwritten."""
        raw -= self.middle
        raw *= self.scale
        np.minimum(raw, FARTHEST, out=raw)
        np.maximum(raw, -FARTHEST, out=raw)
        if len(raw) <= CHUNK_CALLS:
            return self.covariance(raw)
        return np.concatenate([self.covariance(raw[at : at + CHUNK_CALLS]) for at in range(0, len(raw), CHUNK_CALLS)])


@lru_cache(maxsize=256)
def _of_software(correction: Correction, codes: tuple[tuple[str, str], ...]) -> SoftwareCorrection:
    names, ran = correction.frame.names, {f"{name}={value}" for name, value in codes}
    own = sum("=" not in name for name in names)  # software comes last
    raw = np.array([[float(name in ran) for name in names]])
    shared = correction.frame.scaled(raw)[0, own:]
    covariance = WeightedCovariance.of(correction.scales, correction.points, correction.weights, shared)
    return SoftwareCorrection(
        names[:own], correction.frame.middle[:own], 1.0 / correction.frame.spread[:own], covariance
    )

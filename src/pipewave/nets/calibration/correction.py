"""One correction: a card's own rows of one net under one protocol, and what they say about any call of that kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pipewave.nets.calibration.process import Scales
from pipewave.physics.demand import Array

FARTHEST = 3.0  # standard deviations of the rows beyond which a coordinate counts as the edge
CHUNK_CALLS = 512  # whose covariances with the rows stay in a cache
CODES = ("stack", "impl", "dtype")

SoftwareRan = tuple[str, str]  # stack and implementation, as the rows carry them


@dataclass(frozen=True, slots=True)
class Frame:
    """How coordinates are read: names (features, and `dtype=fp8` for software), their middle and their spread."""

    names: tuple[str, ...]
    middle: Array
    spread: Array

    def points(self, features: Mapping[str, Array], codes: Mapping[str, str], calls: int) -> Array:
        """Standardised coordinates [call, name], no farther out than the rows of a calibration usually are."""
        raw = np.empty((calls, len(self.names)))
        for i, name in enumerate(self.names):
            code, is_code, value = name.partition("=")
            raw[:, i] = float(codes.get(code) == value) if is_code else features[name]
        return self.scaled(raw)

    def scaled(self, raw: Array) -> Array:
        """Coordinates [row, name] in standard deviations from their middle."""
        return np.clip((raw - self.middle) / self.spread, -FARTHEST, FARTHEST)


@dataclass(frozen=True, slots=True)
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

    def log_factor(self, features: Mapping[str, Array], codes: Mapping[str, str], calls: int) -> Array:
        """Log of corrected over predicted latency, one a call."""
        return self.at(self.frame.points(features, codes, calls))

    def at(self, points: Array) -> Array:
        """The same at scaled coordinates [call, name]."""
        parts = [points[at : at + CHUNK_CALLS] for at in range(0, len(points), CHUNK_CALLS)]
        return np.concatenate([self.scales.kernel(part, self.points) @ self.weights for part in parts])

    def apply(self, seconds: Array, features: Mapping[str, Array], codes: Mapping[str, str]) -> Array:
        """[latency, low, high, floor, ceiling] corrected: the first three move, none falls below the floor."""
        latency, low, high, floor, ceiling = seconds
        moved = latency * np.exp(self.log_factor(features, codes, len(latency)))
        narrow, wide = (low / latency) ** self.width, (high / latency) ** self.width
        corrected = np.array((moved, moved * narrow, moved * wide, floor, ceiling))
        return np.asarray(np.maximum(corrected, floor))

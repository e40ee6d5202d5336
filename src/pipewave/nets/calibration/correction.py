"""One correction: a card's own rows of one net under one protocol, and what they say about any call of that kind.

A Gaussian process over a few hundred rows says what is left between measured and predicted log time. Prior: a constant
(the whole GPU is off), an offset of every stack, implementation and type, a linear trend in every coordinate, and a
smooth remainder, each with its own scale; noise. The scales are those under which the rows are most likely, zero among
them, so that few or noisy rows are answered by little more than a shrunken offset. Formulas: Rasmussen & Williams,
Gaussian Processes for Machine Learning (2006), 2.25 (mean), 2.30 (evidence), 4.17 (Matérn covariance, 3/2), 5.12
(leave-one-out), the last for blocks of rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipewave.nets.layers import Floats
from pipewave.physics.arith import Arith
from pipewave.physics.demand import Array

CONSTANT = 0.3  # a GPU may be 30 % off altogether
SOFTWARE = (0.0, 0.15, 0.5)  # and the kernels of one library together
LINEAR = (0.0, 0.05, 0.15)
SMOOTH = (0.0, 0.06, 0.12, 0.25, 0.5)
REACH = (0.4, 0.7, 1.2)  # in standard deviations of a coordinate
NOISE = (0.02, 0.04, 0.08, 0.15)
SEARCHED_ROWS = 200  # scales are settled on these many rows
FARTHEST = 3.0  # standard deviations of the rows beyond which a coordinate counts as the edge
LEAST, ONE, MOST = (np.full((), value, np.float32) for value in (-FARTHEST, 1.0, FARTHEST))
SINGLE = 50.0  # sum of weights that single precision adds up to within 1e-6
CHUNK_CALLS = 512  # whose covariances with the rows stay in a cache
UNIT = "unit"  # with a number: a hidden unit of the net
CODES = ("stack", "impl", "dtype")
Rows = Sequence[Any] | Array  # of one call, or [row, call]
SoftwareRan = tuple[str, str]  # stack and implementation, as the rows carry them


@dataclass(frozen=True, slots=True)
class Scales:
    """Prior standard deviations in log time."""

    linear: float
    smooth: float
    reach: float  # length over which the smooth part varies
    noise: float
    software: float = 0.0
    codes: int = 0  # coordinates, the last ones, that tell software: above their middle where it is what ran

    def kernel(self, a: Array, b: Array) -> Array:
        """Prior covariance [a, b] of two sets of points [row, coordinate]."""
        return self.covariance(Between.of(a, b, self.codes))

    def covariance(self, between: Between) -> Array:
        """The same of points whose relations are known."""
        covariance = CONSTANT**2 + self.linear**2 * between.inner
        if self.software:
            covariance = covariance + self.software**2 * between.alike
        if self.smooth:
            far = between.distance / self.reach
            covariance = covariance + self.smooth**2 * (1.0 + far) * np.exp(-far)
        return np.asarray(covariance)

    def inverse(self, points: Array) -> Array:
        """Inverse of the covariance of noisy rows at these points."""
        return np.asarray(np.linalg.inv(self.kernel(points, points) + self.noise**2 * np.eye(len(points))))

    def evidence(self, between: Between, values: Array) -> float:
        """Log likelihood of the rows, up to a constant."""
        factor = np.linalg.cholesky(self.covariance(between) + self.noise**2 * np.eye(len(values)))
        white = np.linalg.solve(factor, values)
        return float(-0.5 * white @ white - np.log(np.diag(factor)).sum())


@dataclass(frozen=True, slots=True)
class Between:
    """What covariances of two sets of points [a, b] rest on, whatever the scales."""

    inner: Array  # product for a coordinate each
    distance: Array  # for a coordinate each, times the root of three
    alike: Array  # share of codes in common

    @classmethod
    def of(cls, a: Array, b: Array, codes: int) -> Between:
        """`a` and `b` [row, coordinate], of which the last `codes` tell software."""
        width = max(a.shape[1], 1)
        inner = a @ b.T
        distance = (a**2).sum(1)[:, None] + (b**2).sum(1) - 2.0 * inner
        first = a.shape[1] - codes
        ran, other = (points[:, first:] > 0.0 for points in (a, b))
        alike = ran.astype(float) @ other.T.astype(float) / len(CODES)
        return cls(inner / width, np.sqrt(np.maximum(distance, 0.0) * (3.0 / width)), alike)


def likeliest(points: Array, values: Array, codes: int = 0) -> Scales:
    """The scales of highest evidence on a grid; the last `codes` coordinates tell software."""
    step = -(-len(values) // SEARCHED_ROWS)
    points, values = points[::step], values[::step]
    between = Between.of(points, points, codes)
    given = product(LINEAR, SMOOTH, REACH, NOISE, SOFTWARE if codes else SOFTWARE[:1])
    grid = [Scales(*one, codes) for one in given if one[1] or one[2] == REACH[0]]
    return max(grid, key=lambda scales: scales.evidence(between, values))


def left_out(inverse: Array, values: Array, groups: NDArray[np.intp]) -> Array:
    """Answer for each row from the rows of all other groups, without fitting again."""
    weights = inverse @ values
    out = np.empty_like(values)
    for group in np.unique(groups):
        at = np.flatnonzero(groups == group)
        out[at] = values[at] - np.linalg.solve(inverse[np.ix_(at, at)], weights[at])
    return out


@dataclass(frozen=True, slots=True)
class Frame:
    """How coordinates are read."""

    names: tuple[str, ...]  # features, and `dtype=fp8` for software
    middle: Array
    spread: Array

    def scaled(self, raw: Array) -> Array:
        """Coordinates [row, name] in standard deviations from their middle."""
        return np.minimum(np.maximum((raw - self.middle) / self.spread, -FARTHEST), FARTHEST)


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


def moved(seconds: Rows, log_factor: Any, width: float, xp: Arith) -> tuple[Any, ...]:
    """Latency, low, high, floor and ceiling of calls whose latency a calibration moves."""
    latency, low, high, floor, ceiling = seconds
    now = latency * xp.exp(log_factor)
    ends = (now, now * (low / latency) ** width, now * (high / latency) ** width, floor, ceiling)
    return tuple(xp.maximum(each, floor) for each in ends)


@dataclass(frozen=True, slots=True, eq=False)
class SoftwareCorrection:
    """A correction of calls that share their software: of the coordinates that differ, features come before units.

    What does not depend on the call is worked out once. Behind its coordinates x stand a one and |x|², so that with d
    the distance from each row over `reach` it takes

        trend · x + Σ weights (1 + d) exp(-d),  d² = products · x
    """

    features: tuple[str, ...]
    units: NDArray[np.intp]  # hidden units of the net, counted through its members
    middle: Array  # [coordinate + 2]
    scale: Array
    trend: Array
    products: Array  # [coordinate + 2, row]
    weights: Array  # [row], of the smooth part; empty without one
    width: float  # factor on the half-width of the interval, in log time

    def log_factor(self, calls: int, features: Any, units: Floats | None = None) -> Array:
        """Log of corrected over predicted latency, [call]; features [call, feature], units [member, call, unit]."""
        own, each = len(self.features), 0 if units is None else units.shape[2]
        found = np.empty(calls)
        for at in range(0, calls, CHUNK_CALLS):
            part = slice(at, min(at + CHUNK_CALLS, calls))
            raw = np.ones((len(self.middle), part.stop - at), self.middle.dtype).T  # calls lie side by side
            raw[:, :own] = features[part]
            if units is not None:
                raw[:, own:-2] = units[self.units // each, part, self.units % each].T
            found[part] = self(raw)
        return found

    def __call__(self, raw: Array) -> Array:
        """Of coordinates and two ones behind them, [coordinate + 2] of one call, [call, coordinate + 2] of several."""
        at = raw - self.middle
        at *= self.scale
        at.clip(LEAST, MOST, at)
        total = at.dot(self.trend)
        if not len(self.weights):
            return np.asarray(total)
        at[..., -1] = np.einsum("ij,ij->i", at, at) if at.ndim > 1 else at.dot(at)
        far = np.abs(at.dot(self.products))  # rounding may leave a little less than nothing between equal points
        near = np.exp(np.sqrt(far, out=far))
        far += ONE
        far /= near
        return np.asarray(total + far.dot(self.weights))


@lru_cache(maxsize=256)
def _of_software(correction: Correction, codes: tuple[tuple[str, str], ...]) -> SoftwareCorrection:
    frame, ran = correction.frame, {f"{name}={value}" for name, value in codes}
    own = sum("=" not in name for name in frame.names)  # software comes last
    features = tuple(name for name in frame.names[:own] if not name.startswith(UNIT))  # before the units
    units = [int(name.removeprefix(UNIT)) for name in frame.names[len(features) : own]]
    shared = frame.scaled(np.array([[float(name in ran) for name in frame.names]]))[0, own:]
    scales, points, weights = correction.scales, correction.points, correction.weights
    width, coded = max(points.shape[1], 1), points.shape[1] - scales.codes
    slope = scales.linear**2 / width * (weights @ points)
    alike = (points[:, coded:] > 0.0) @ (shared[len(shared) - scales.codes :] > 0.0).astype(float) / len(CODES)
    level = weights @ (CONSTANT**2 + scales.software**2 * alike) + slope[own:] @ shared
    nearer = 3.0 / width / scales.reach**2
    rows = points[:, :own].astype(np.float64)
    squares = (rows**2).sum(1) + ((points[:, own:] - shared) ** 2).sum(1)
    products = np.vstack([-2.0 * rows.T, squares - 1.0, np.ones(len(rows))])  # |x|² counts the one, too
    precision = np.float32 if scales.smooth**2 * np.abs(weights).sum() < SINGLE else np.float64
    return SoftwareCorrection(
        features=features,
        units=np.array(units, np.intp),
        middle=np.append(frame.middle[:own], (0.0, 1.0)).astype(precision),
        scale=np.append(1.0 / frame.spread[:own], (1.0, 1.0)).astype(precision),
        trend=np.append(slope[:own], (level, 0.0)).astype(precision),
        products=(nearer * products).astype(precision),
        weights=(scales.smooth**2 * weights if scales.smooth else weights[:0]).astype(precision),
        width=correction.width,
    )

"""What the laws leave, smoothed over sizes: Gaussian processes on log residuals of launches and configurations.

The laws see counts; the residual holds what counts cannot (how well the L2 serves a given aspect, how clocks answer to
power). It varies slowly with the logarithm of the shape, and it is alike for configurations that are alike, so that
each of them lends its launches to its neighbours. Their covariance is (shape kernel) ⊗ (configuration kernel) + noise,
solved exactly through the two factors' eigenvectors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product, starmap
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipewave.tune.law.anchors import Floats

ALIKE = ((1.5, 0.5, 0.2), (1.5, 0.5, 0.02), (0.8, 0.5, 0.1), (1.5, 0.2, 0.2), (3.0, 1.0, 0.1))  # of `alike`
SOFT = 0.015  # log µs: configurations predicted this near the best share the choice when fits are compared
DECIDES = 1.5  # times the fastest: the error of a configuration that is slower moves no choice


class Setting(NamedTuple):
    """How residuals are smoothed: a row of `ALIKE`, then as `smoother` has it."""

    alike: int
    length: float
    noise: float


SETTINGS_USUAL = (Setting(0, 1.5, 1.0),)
SETTINGS = tuple(starmap(Setting, product(range(len(ALIKE)), (1.0, 1.5, 2.0, 3.0), (0.3, 1.0, 3.0))))


@dataclass(frozen=True, slots=True)
class Smoother:
    """`at` [n, d] scaled coordinates of the anchors, `weights` [n, c]; correction = exp(kernel(x, at) @ weights)."""

    mean: Floats
    spread: Floats
    length: float
    at: Floats
    weights: Floats

    def log_factor(self, logs: Floats) -> Floats:
        """Return the log correction [s, c] at log coordinates [s, d]."""
        near = kernel((logs - self.mean) / self.spread, self.at, self.length)
        return np.asarray(near @ self.weights)


def kernel(a: Floats, b: Floats, length: float) -> Floats:
    """Covariance [n, m] of points [n, d] and [m, d]: a Gaussian of their distance."""
    square = np.sum(a**2, axis=1)[:, None] + np.sum(b**2, axis=1) - 2 * a @ b.T
    return np.asarray(np.exp(-0.5 * np.maximum(square, 0.0) / length**2))


@dataclass(frozen=True, slots=True)
class Alike:
    """Covariance of configurations [c, c] with its eigenvalues and eigenvectors."""

    matrix: Floats
    values: Floats
    vectors: Floats


def alike(config: Mapping[str, NDArray[np.int64]], reach: float, near: float, own: float) -> Alike:
    """Return the covariance of configurations: shared by all (1), by those within `reach` octaves, and their own."""
    at = np.stack([np.log2(np.maximum(values, 0.5)) for values in config.values()], axis=1)
    matrix = 1.0 + near * kernel(at, at, reach) + own * np.eye(len(at))
    values, vectors = np.linalg.eigh(matrix)
    return Alike(matrix, np.maximum(values, 0.0), vectors)


def smoother(at: Floats, residual: Floats, length: float, noise: float, of: Alike,
             stretch: Floats | float = 1.0) -> tuple[Smoother, Floats]:  # fmt: skip
    """Fit to log residuals [n, c] at log coordinates [n, d]; `stretch` [d]: how much shorter the length is in each.
    Also returns the residuals [n, c] that are left at each shape when all its launches are left out.
    """
    mean, spread = at.mean(axis=0), (at.std(axis=0) + 1e-9) / stretch
    scaled = (at - mean) / spread
    values, vectors = np.linalg.eigh(kernel(scaled, scaled, length))
    shrunk = 1.0 / (np.maximum(values, 0.0)[:, None] * of.values + noise)
    solved = vectors @ (vectors.T @ residual @ of.vectors * shrunk)
    left = (solved / (vectors**2 @ shrunk)) @ of.vectors.T
    return Smoother(mean, spread, length, scaled, solved @ of.vectors.T @ of.matrix), left


def soft_regret(us: Floats, log_off: Floats) -> float:
    """Mean regret of choosing at random among those predicted near the best; predictions are µs · exp(−log_off)."""
    predicted = np.log(us) - log_off
    weight = np.exp(-(predicted - predicted.min(axis=1, keepdims=True)) / SOFT)
    lost = us / us.min(axis=1, keepdims=True) - 1
    return float(np.mean(np.sum(weight * lost, axis=1) / weight.sum(axis=1)))


def smoothed(
    at: Floats, us: Floats, config: Mapping[str, NDArray[np.int64]], residual: Floats, settings: Sequence[Setting],
    stretches: Sequence[Floats | float] = (1.0,),
) -> tuple[Smoother, Floats, Setting]:  # fmt: skip
    """Smooth log residuals [s, c] as left-out regret says is best: the smoother, what is left, and how."""
    likeness = {number: alike(config, *ALIKE[number]) for number in {each.alike for each in settings}}
    tried = ((*smoother(at, residual, each.length, each.noise, likeness[each.alike], stretch), each)
             for each, stretch in product(settings, stretches))  # fmt: skip
    return min(tried, key=lambda one: soft_regret(us, one[1]))


def spread(us: Floats, left: Floats) -> Floats:
    """Spread of the residuals of near-best configurations, less what all share at a shape (it moves no choice)."""
    near = us < DECIDES * us.min(axis=1, keepdims=True)
    shared = np.nanmedian(np.where(near, left, np.nan), axis=1, keepdims=True)
    off = np.where(near, left - shared, np.nan)
    every = float(np.sqrt(np.nanmean(off**2)))
    number = np.isfinite(off).sum(axis=0)
    # A configuration that was seldom near the best borrows the spread of all.
    return np.asarray(np.sqrt((np.nansum(off**2, axis=0) + 10 * every**2) / (number + 10)))

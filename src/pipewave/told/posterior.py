"""What told figures say of others: a normal law over causes and what they leave open, conditioned in closed form.

A run may be spoiled (throttled, shared, another program at the same time): a few in a hundred of those published are.
Each told run is either sound or spoiled, and an answer is the mean over all ways to take them, by their weight; of more
than six runs, over the likeliest way.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from pipewave.physics.demand import Array
from pipewave.told.prior import MIDDLE, SPREAD, Prior

ENUMERATED = 6  # runs
JITTER = 1e-4  # variance that every figure has


@dataclass(frozen=True, slots=True, eq=False)
class Points:
    """Figures of runs: arrays by figure."""

    slopes: Array  # [figure, cause]
    parts: Array  # [figure, latent]
    place: Array  # [figure, place]
    run: Array  # [figure] which run it is of
    software: Array  # [figure] a number for each
    model: Array

    @classmethod
    def of(cls, rows: Sequence[tuple[Array, Array, Array, int, Hashable, Hashable]]) -> Points:
        """From (slopes, parts, place, run, software, model) of each figure."""
        slopes, parts, place, run, software, model = zip(*rows, strict=True)
        return cls(np.array(slopes), np.array(parts), np.array(place), np.array(run), _labels(software), _labels(model))

    def __len__(self) -> int:
        return len(self.run)

    def take(self, index: Array) -> Points:
        """Some of the figures."""
        return Points(*(getattr(self, name)[index] for name in self.__slots__))


def _labels(names: Sequence[Hashable]) -> Array:
    known = {name: i for i, name in enumerate(dict.fromkeys(names))}
    return np.array([known[name] for name in names])


def covariance(prior: Prior, these: Points, those: Points) -> Array:
    """[these, those] of what figures are off by, noise apart."""

    def latent(deviation: Array) -> Array:
        both: Array = (these.parts * deviation**2) @ those.parts.T
        return both

    version = these.software[:, None] == those.software[None]
    model = these.model[:, None] == those.model[None]
    (causes, unexplained), (other_causes, other_unexplained) = prior.other_software, prior.other_model
    of_causes = np.where(version, 1.0, causes) * np.where(model, 1.0, other_causes)
    kept = np.where(version, 1.0, unexplained) * np.where(model, 1.0, other_unexplained)
    apart = (these.place[:, None] - those.place[None]) / prior.lengths
    alike = np.exp(-0.5 * (apart**2).sum(axis=-1)) * kept
    sums = these.parts.sum(axis=1)[:, None] * those.parts.sum(axis=1)[None]
    found = (these.slopes * prior.causes**2) @ those.slopes.T * of_causes
    found += latent(prior.level) + latent(prior.own_level) * (version & model)
    found += (latent(prior.local) + prior.shared**2 * sums) * alike
    here, there = ((points.place - MIDDLE) / SPREAD for points in (these, those))
    for column, deviation in enumerate(prior.trend.T):
        found += latent(deviation) * kept * here[:, column, None] * there[None, :, column]
    return found


def run_noise(prior: Prior, points: Points) -> Array:
    """[figure, figure] of what differs from run to run."""
    sums, same = points.parts.sum(axis=1), points.run[:, None] == points.run[None]
    found: Array = prior.run**2 * np.outer(sums, sums) * same
    return found + np.diag(points.parts**2 @ prior.noise**2 + JITTER)


@dataclass(frozen=True, slots=True, eq=False)
class Way:
    """One way to take told runs as sound or spoiled."""

    weight: float
    spoiled: tuple[bool, ...]  # [run]
    precision: Array  # [told, told]
    pull: Array  # [told] precision times what they are off by


class Posterior:
    """Told figures and what they are off by: log measured over predicted."""

    def __init__(self, prior: Prior, told: Points, off: Array) -> None:
        self.prior, self.told, self.off = prior, told, off
        self._sound = covariance(prior, told, told) + run_noise(prior, told)
        runs = int(told.run.max()) + 1
        every = list(product((False, True), repeat=runs)) if runs <= ENUMERATED else [self._likeliest(runs)]
        found = [self._way(one) for one in every]
        weights = np.exp([weight - max(w for w, *_ in found) for weight, *_ in found])
        self.ways = [Way(float(share), *rest) for share, (_, *rest) in zip(weights / weights.sum(), found, strict=True)]

    def _way(self, spoiled: tuple[bool, ...]) -> tuple[float, tuple[bool, ...], Array, Array]:
        """Log weight of a way, itself, its precision and its pull."""
        more = (self.told.parts**2 @ self.prior.spoiled**2) * np.array(spoiled)[self.told.run]
        whole = self._sound + np.diag(more)
        precision = np.linalg.inv(whole)
        pull = precision @ self.off
        share = float(self.prior.spoiled_share[0])
        likely = -0.5 * self.off @ pull - 0.5 * np.linalg.slogdet(whole)[1]
        return float(likely + sum(spoiled) * np.log(share / (1.0 - share))), spoiled, precision, pull

    def _likeliest(self, runs: int) -> tuple[bool, ...]:
        """Runs taken as spoiled one after another, while that makes all of it likelier."""
        best = self._way((False,) * runs)
        while True:
            flips = [tuple(was or i == k for i, was in enumerate(best[1])) for k in range(runs) if not best[1][k]]
            better = max((self._way(one) for one in flips), key=lambda way: way[0], default=best)
            if better[0] <= best[0]:
                return best[1]
            best = better

    def at(self, points: Points) -> tuple[Array, Array]:
        """Mean and standard deviation of what other runs' figures are off by, their own noise included."""
        between = covariance(self.prior, points, self.told)
        before = np.diag(covariance(self.prior, points, points)) + np.diag(run_noise(self.prior, points))
        shares = np.array([way.weight for way in self.ways])
        means = np.array([between @ way.pull for way in self.ways])
        variances = np.array([before - np.einsum("ij,jk,ik->i", between, w.precision, between) for w in self.ways])
        mean = shares @ means
        variance = shares @ (variances + means**2) - mean**2
        return mean, np.sqrt(np.maximum(variance, JITTER))

    def causes(self) -> tuple[Array, Array]:
        """Mean and standard deviation of each cause."""
        sizes = self.prior.causes**2
        shares = np.array([way.weight for way in self.ways])
        means = np.array([sizes * (self.told.slopes.T @ way.pull) for way in self.ways])
        known = [np.einsum("ji,jk,ki->i", self.told.slopes, w.precision, self.told.slopes) for w in self.ways]
        variances = sizes - sizes**2 * np.array(known)
        mean = shares @ means
        return mean, np.sqrt(np.maximum(shares @ (variances + means**2) - mean**2, 0.0))

    def spoiled(self) -> Array:
        """[run] how likely each told run is spoiled."""
        found: Array = sum(way.weight * np.array(way.spoiled, float) for way in self.ways)  # type: ignore[assignment]
        return found

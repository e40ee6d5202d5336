"""Gaussian posterior, in closed form, of what predictions are off by, given measured figures of some runs.

A run may be spoiled (throttled, shared, another program at the same time): a few in a hundred of those published are.
And a whole deployment may be unlike those published: all its times are off alike. Each told run is either sound or
spoiled, the deployment like others or not, and an answer is the mean over all ways to take them, by their weight; of
more than six runs, over those with two spoiled ones at most, of more than 24 with one.

What is unknown before anything is told (`Prior`): a figure of a run is off by the causes that it hinges on, and by what
no cause explains: a level of the machine, one of its software, a trend with the load, and a part that like loads share.
All are normal with mean zero; their standard deviations were read off published servers (`python -m train.told_fit`).

`xp` is numpy, or torch where the prior is fitted through this very code (`train.told_fit`).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from pipewave.files import packaged
from pipewave.physics.demand import Array

FILE = Path(__file__).with_name("prior.json")
CAUSES = ("decode", "prompt", "host", "frontend")  # fields of `pipewave.simulate.setup.Pace`
# Figures that are off each for itself; those of closed loops follow from the first two (`answers._part`).
LATENTS = ("ttft_ms", "tpot_ms", "rate", "energy")
PLACES = ("in_flight", "isl", "osl", "gpus", "ep", "dp")  # of a load: log2 of each
GPUS = PLACES.index("gpus")
MIDDLE = np.array([5.0, 10.0, 9.0, 1.0, 0.0, 0.0])  # of the places of published runs
SPREAD = np.array([2.0, 1.5, 1.5, 1.5, 2.0, 2.0])  # the unit of a trend along each
NORMAL = 1.6449  # half the 90 % interval of a normal law
ENUMERATED = 6  # runs of which all ways are taken; pairs of spoiled ones of four times as many
JITTER = 1e-4  # variance that every figure has


@dataclass(frozen=True, slots=True, eq=False)
class Prior:
    """Standard deviations in log time, each an array; in order of `CAUSES`, `LATENTS` and `PLACES`."""

    causes: Array  # [cause]
    level: Array  # [latent] of the machine
    own_level: Array  # [latent] of one software and model on it
    local: Array  # [latent] of like loads
    lengths: Array  # [place] within which loads are alike, in powers of two
    trend: Array  # [latent, place] by `SPREAD` of a place
    noise: Array  # [latent] from run to run
    shared: Array  # [1] of like loads, all figures alike
    run: Array  # [1] of one run, all figures alike
    other_software: Array  # [2] share of variance that another version keeps: of causes, of what is unexplained
    other_model: Array  # [2] the same of another model
    other_gpus: Array  # [2] the same of another number of GPUs
    spoiled: Array  # [latent] of a run that something else disturbed
    spoiled_share: Array  # [1] of runs
    unlike: Array  # [1] of a deployment unlike those published, all figures alike
    unlike_share: Array  # [1] of deployments
    width: Array  # [1] of the interval over the normal one

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> Prior:
        """From a table of lists by name."""
        return cls(**{one.name: np.array(table[one.name], float) for one in fields(cls)})

    def to_dict(self) -> dict[str, Any]:
        """The table."""
        return {one.name: np.round(getattr(self, one.name), 4).tolist() for one in fields(self)}


@cache
def shipped() -> Prior:
    """The prior that comes with the package."""
    return Prior.of(packaged.document(FILE))


@dataclass(frozen=True, slots=True, eq=False)
class Points:
    """Figures of runs: arrays by figure. There may be other axes before."""

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

    @classmethod
    def joined(cls, runs: Sequence[Points]) -> Points:
        """All of them, as runs of their own."""
        starts = np.cumsum([0, *(int(one.run.max()) + 1 for one in runs)])
        own = [replace(one, run=one.run + start) for one, start in zip(runs, starts, strict=False)]
        return cls(*(np.concatenate([getattr(one, name) for one in own]) for name in cls.__slots__))

    def __len__(self) -> int:
        return int(self.run.shape[-1])

    def take(self, index: Any) -> Points:
        """Some of the figures."""
        return Points(*(getattr(self, name)[index] for name in self.__slots__))


def _labels(names: Sequence[Hashable]) -> Array:
    """A number for each name, the same for the same name everywhere in this process."""
    return np.array([hash(name) for name in names])


def covariance(prior: Prior, these: Points, those: Points, xp: Any = np) -> Any:
    """[..., these, those] of what figures are off by, noise apart."""

    def latent(deviation: Array) -> Any:
        return (these.parts * deviation**2) @ those.parts.swapaxes(-1, -2)

    apart = these.place[..., :, None, :] - those.place[..., None, :, :]
    labels = {name: (getattr(these, name), getattr(those, name)) for name in ("software", "model")}
    same = {name: 1.0 * (here[..., :, None] == there[..., None, :]) for name, (here, there) in labels.items()}
    same["gpus"] = 1.0 * (apart[..., GPUS] == 0.0)

    def kept(share: int, *among: str) -> Any:
        shares = {name: getattr(prior, f"other_{name}")[share] for name in among}
        return math.prod(one + (1.0 - one) * same[name] for name, one in shares.items())

    of_causes, unexplained = kept(0, *same), kept(1, *same)
    alike = xp.exp(-0.5 * ((apart / prior.lengths) ** 2).sum(-1)) * unexplained
    sums = these.parts.sum(-1)[..., :, None] * those.parts.sum(-1)[..., None, :]
    found = (these.slopes * prior.causes**2) @ those.slopes.swapaxes(-1, -2) * of_causes
    own = same["software"] * same["model"] * kept(1, "gpus")
    found = found + latent(prior.level) * kept(1, "model") + latent(prior.own_level) * own
    found = found + (latent(prior.local) + prior.shared**2 * sums) * alike
    for column in range(len(PLACES)):
        here, there = (_from_middle(points, column) for points in (these, those))
        found = found + latent(prior.trend[:, column]) * unexplained * here[..., :, None] * there[..., None, :]
    return found


def _from_middle(points: Points, column: int) -> Any:
    return (points.place[..., column] - MIDDLE[column]) / SPREAD[column]


def variance(prior: Prior, points: Points) -> Any:
    """[..., figure] of what figures of one run are off by before anything is told, noise included."""
    squared, sums = points.parts**2, points.parts.sum(-1)
    found = points.slopes**2 @ prior.causes**2 + JITTER
    found = found + squared @ (prior.level**2 + prior.own_level**2 + prior.local**2 + prior.noise**2)
    found = found + (prior.shared**2 + prior.run**2) * sums**2
    for column in range(len(PLACES)):
        found = found + (squared @ prior.trend[:, column] ** 2) * _from_middle(points, column) ** 2
    return found


def _noise(prior: Prior, points: Points, xp: Any) -> Any:
    """[..., figure, figure] of what differs from run to run."""
    sums, same = points.parts.sum(-1), 1.0 * (points.run[..., :, None] == points.run[..., None, :])
    own = points.parts**2 @ prior.noise**2 + JITTER
    eye = xp.asarray(np.eye(len(points)))
    return prior.run**2 * sums[..., :, None] * sums[..., None, :] * same + own[..., None] * eye


def left_open(prior: Prior, told: Points, asked: Points) -> Array:
    """[figure] variance of what figures are off by once sound runs are told, whatever these find."""
    between = covariance(prior, asked, told)
    precision = np.linalg.inv(covariance(prior, told, told) + _noise(prior, told, np))
    return np.asarray(variance(prior, asked) - ((between @ precision) * between).sum(-1))


class Posterior:
    """What told figures are off by, log measured over predicted, and what that says of others.

    Axes before those of figures are apart from each other: many of it at once.
    """

    def __init__(self, prior: Prior, told: Points, off: Any, xp: Any = np) -> None:
        self.prior, self.told, self.xp = prior, told, xp
        runs = int(told.run.max()) + 1
        ways = _ways(runs)
        self.ways = xp.asarray(np.concatenate([ways, ways]))  # [way, run] whether it is spoiled
        self.unlike = xp.asarray(np.repeat([0.0, 1.0], len(ways)))  # [way] whether the deployment is unlike others
        of_run = told.run[..., None, :] == xp.arange(runs)[:, None]
        spoiled = (self.ways @ (1.0 * of_run)) * (told.parts**2 @ prior.spoiled**2)[..., None, :]
        whole = self._between(told) + _noise(prior, told, xp)[..., None, :, :]
        whole = whole + spoiled[..., None] * xp.asarray(np.eye(len(told)))
        self.precision = xp.linalg.inv(whole)  # [..., way, told, told]
        self.pull = (self.precision @ off[..., None, :, None])[..., 0]  # [..., way, told]
        odds = [xp.log(share[0] / (1.0 - share[0])) for share in (prior.spoiled_share, prior.unlike_share)]
        likely = -0.5 * (self.pull * off[..., None, :]).sum(-1) - 0.5 * xp.linalg.slogdet(whole)[1]
        likely = likely + self.ways.sum(-1) * odds[0] + self.unlike * odds[1]
        weights = xp.exp(likely - xp.amax(likely, -1)[..., None])
        self.weights = weights / weights.sum(-1)[..., None]  # [..., way]

    def _between(self, points: Points) -> Any:
        """[..., way, told, figure] of what told figures and others are off by together."""
        same = 1.0 * (self.told.model[..., :, None] == points.model[..., None, :])
        sums = self.told.parts.sum(-1)[..., :, None] * points.parts.sum(-1)[..., None, :]
        of_all = self.prior.unlike**2 * sums * (same + (1.0 - same) * self.prior.other_model[1])
        like = covariance(self.prior, self.told, points, self.xp)
        return like[..., None, :, :] + self.unlike[:, None, None] * of_all[..., None, :, :]

    def at(self, points: Points) -> tuple[Any, Any]:
        """Mean and variance of what other runs' figures are off by, their own noise included."""
        between = self._between(points)
        means = (self.pull[..., None, :] @ between)[..., 0, :]
        known = ((self.precision @ between) * between).sum(-2)
        own = self.unlike[:, None] * (self.prior.unlike * points.parts.sum(-1))[..., None, :] ** 2
        variances = variance(self.prior, points)[..., None, :] + own - known
        weights = self.weights[..., None]
        mean = (weights * means).sum(-2)
        return mean, (weights * (variances + means**2)).sum(-2) - mean**2

    def causes(self) -> tuple[Array, Array]:
        """Mean and standard deviation of each cause."""
        sizes, slopes = self.prior.causes**2, self.told.slopes
        means = sizes * (self.pull @ slopes)
        variances = sizes - sizes**2 * np.einsum("ji,wjk,ki->wi", slopes, self.precision, slopes)
        mean = self.weights @ means
        return mean, np.sqrt(np.maximum(self.weights @ (variances + means**2) - mean**2, 0.0))


def _ways(runs: int) -> Array:
    """All ways to take some runs as spoiled; of many runs, at most two of them or one."""
    if runs <= ENUMERATED:
        return np.array(list(product((0.0, 1.0), repeat=runs)))
    ones = np.eye(runs)
    two = [ones[i] + ones[k] for i in range(runs) for k in range(i)] if runs <= 4 * ENUMERATED else []
    return np.array([np.zeros(runs), *ones, *two])

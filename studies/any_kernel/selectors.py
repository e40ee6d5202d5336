"""Selectors over recorded spaces of any kernel: anchors in, a choice for each launch never measured out.

To enter a selector, subclass `SpaceSelector` and add it to `SELECTORS`: it sees a space's anchors, then chooses at
test launches by their sizes and counts alone. `score` gives everyone the same figures.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod

import numpy as np

from lab.any_kernel.spaces import Space
from pipewave.tune.law.anchors import Anchors, Floats, Ints, Peaks, peaks_of
from pipewave.tune.law.model import Model, fit
from studies.tune_evaluate import regrets, summary

SLOWER = 0.02


class SpaceSelector(ABC):
    """One way to choose. `fit` once a space, then `choose` for each test launch."""

    name: str = ""

    @abstractmethod
    def fit(self, anchors: Anchors, of: Space) -> None:
        """Learn from the anchors; of the space only what is no time may be used: configurations, GPU."""

    @abstractmethod
    def choose(self, at: Floats, counts: Floats, default: int) -> int:
        """Number of a configuration, from sizes [d], counts [c, 6] and the author's own choice."""


class Pipewave(SpaceSelector):
    """Ours: the laws of `own.model`, the author's own choice left only for a gain that exceeds the error."""

    name = "pipewave"

    def __init__(self, there: Model | None = None) -> None:
        self.there = there
        self.model: Model | None = None
        self.held: dict[tuple[float, ...], Ints] = {}  # resident blocks [c] of a launch's binaries, by its sizes

    def fit(self, anchors: Anchors, of: Space) -> None:
        """Fit the laws; launches to rest on are the anchors' own, and so is what the author would choose there."""
        self.usable = np.isfinite(anchors.us).any(axis=0)
        self.model = fit(anchors, peaks_of_space(of), None, self.there, _default_at(of, anchors))
        self.held = {tuple(at): held for at, held in zip(of.at().tolist(), of.held(), strict=True)}

    def choose(self, at: Floats, counts: Floats, default: int) -> int:
        """The least predicted."""
        assert self.model is not None
        held = self.held.get(tuple(at.tolist()), self.model.resident)[None]
        ranked = self.model.ranked(counts[None], np.log(np.maximum(at[None], 1.0)), default, held)[0]
        return int(np.where(self.usable, ranked, np.inf).argmin())


class Default(SpaceSelector):
    """The author's own choice."""

    name = "default"

    def fit(self, anchors: Anchors, of: Space) -> None:
        """Nothing to learn."""

    def choose(self, at: Floats, counts: Floats, default: int) -> int:
        """As the author does."""
        return default


class Nearest(SpaceSelector):
    """The best configuration of the nearest launch measured: what a cache by key does for keys it lacks."""

    name = "nearest_key"

    def fit(self, anchors: Anchors, of: Space) -> None:
        """Keep the best of each."""
        self._logs, self._best = anchors.logs, np.nanargmin(anchors.us, axis=1)

    def choose(self, at: Floats, counts: Floats, default: int) -> int:
        """The nearest by logarithms."""
        away = np.abs(self._logs - np.log(np.maximum(at, 1.0))).sum(axis=1)
        return int(self._best[away.argmin()])


class OneForAll(SpaceSelector):
    """The one configuration that does best over the anchors."""

    name = "one_for_all"

    def fit(self, anchors: Anchors, of: Space) -> None:
        """Find it."""
        us = np.where(np.isfinite(anchors.us), anchors.us, 10 * np.nanmax(anchors.us))
        self._best = int(np.log(us / us.min(axis=1, keepdims=True)).mean(axis=0).argmin())

    def choose(self, at: Floats, counts: Floats, default: int) -> int:
        """Always the same."""
        return self._best


class XGBoost(SpaceSelector):
    """Trees over sizes and parameters, as published work has them. Needs the extra `baselines`."""

    name = "xgboost"

    def fit(self, anchors: Anchors, of: Space) -> None:
        """Fit log µs. ImportError without xgboost."""
        import xgboost

        self._config = np.stack(list(anchors.config.values()), axis=1)
        timed = np.isfinite(anchors.us)
        rows = np.concatenate([self._rows(logs)[keep] for logs, keep in zip(anchors.logs, timed, strict=True)])
        made = xgboost.XGBRegressor(n_estimators=600, max_depth=10, learning_rate=0.05, subsample=0.8, n_jobs=1)
        self._model = made.fit(rows, np.log(anchors.us[timed]))

    def _rows(self, logs: Floats) -> Floats:
        return np.concatenate([np.tile(logs, (len(self._config), 1)), self._config], axis=1)

    def choose(self, at: Floats, counts: Floats, default: int) -> int:
        """The least predicted."""
        return int(self._model.predict(self._rows(np.log(np.maximum(at, 1.0)))).argmin())


SELECTORS: dict[str, type[SpaceSelector]] = {
    each.name: each for each in (Pipewave, Nearest, OneForAll, XGBoost, Default)
}


def _default_at(of: Space, anchors: Anchors) -> Ints:
    """The author's own choice [s] at launches of a space."""
    known = {tuple(row): int(one) for row, one in zip(of.at().tolist(), of.default, strict=True)}
    return np.array([known[tuple(row)] for row in anchors.at.tolist()], np.int64)


def peaks_of_space(of: Space) -> Peaks:
    """The GPU that a space was recorded on."""
    return peaks_of(str(of.meta["env"].get("gpu", "")), of.meta["env"].get("sm_count"))


def score(of: Space, selector: SpaceSelector, most: int | None = None) -> dict[str, float]:
    """Figures of a selector at the test launches of a space; `most`: of the anchors, the first so many."""
    test, anchors = np.flatnonzero(of.is_test), np.flatnonzero(~np.array(of.is_test))
    selector.fit(of.anchors(anchors[:most]), of)
    at, us, halves = of.at(), of.us(), of.halves()
    start = time.perf_counter()
    chosen = np.array([selector.choose(at[i], of.counts[i], int(of.default[i])) for i in test])
    decision_us = (time.perf_counter() - start) * 1e6 / len(test)
    return figures(halves[test], us[test], chosen, of.default[test]) | {"decision_us": decision_us}


def figures(halves: Floats, us: Floats, chosen: Ints, default: Ints) -> dict[str, float]:
    """Regret, share of launches slower than the author's own choice by over 2 %, speed-up over it (geometric mean)."""
    at = np.arange(len(us))
    gain = us[at, default] / us[at, chosen]
    return {**summary(regrets(halves, chosen)), "slower_share": float(np.mean(gain < 1 / (1 + SLOWER))),
            "speed_up": float(np.exp(np.log(gain).mean())), "speed_up_max": float(gain.max())}  # fmt: skip

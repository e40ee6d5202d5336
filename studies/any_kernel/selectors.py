"""Selectors over recorded spaces of any kernel: anchors in, a choice for each launch never measured out.

To enter a selector, add a function to `SELECTORS`: it sees a space's anchors, and gives what chooses at test launches
by their sizes and counts alone. `score` gives everyone the same figures.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from lab.any_kernel.spaces import Space
from pipewave.tune.law.anchors import Anchors, Floats, Ints, Peaks, peaks_of
from pipewave.tune.law.model import Model, fit
from studies.tune_evaluate import regrets, summary

SLOWER = 0.02


Chosen = Callable[[Floats, Floats, int], int]  # sizes [d], counts [c, 6], the author's own choice → a configuration
Selector = Callable[[Anchors, Space], Chosen]  # of the space only what is no time may be used: configurations, GPU


def pipewave(anchors: Anchors, of: Space, there: Model | None = None) -> Chosen:
    """Ours: the laws of `law.model`, fitted to the anchors with what the author would choose there."""
    model = fit(anchors, peaks_of_space(of), None, there, _default_at(of, anchors))
    return by_model(model, of, np.asarray(np.isfinite(anchors.us).any(axis=0)))


def by_model(model: Model, of: Space, usable: NDArray[np.bool_]) -> Chosen:
    """The least predicted of the configurations that ran, the author's own left only for a gain."""
    held = {tuple(at): held for at, held in zip(of.at().tolist(), of.held(), strict=True)}

    def choose(at: Floats, counts: Floats, default: int) -> int:
        logs = np.log(np.maximum(at[None], 1.0))
        ranked = model.ranked(counts[None], logs, default, held[tuple(at.tolist())][None])[0]
        return int(np.where(usable, ranked, np.inf).argmin())

    return choose


def author(_anchors: Anchors, _of: Space) -> Chosen:
    """The author's own choice."""
    return lambda _at, _counts, default: default


def nearest_key(anchors: Anchors, _of: Space) -> Chosen:
    """The best configuration of the nearest launch measured: what a cache by key does for keys it lacks."""
    best = np.nanargmin(anchors.us, axis=1)
    return lambda at, _counts, _default: int(
        best[np.abs(anchors.logs - np.log(np.maximum(at, 1.0))).sum(axis=1).argmin()]
    )


def one_for_all(anchors: Anchors, _of: Space) -> Chosen:
    """The one configuration that does best over the anchors."""
    us = np.where(np.isfinite(anchors.us), anchors.us, 10 * np.nanmax(anchors.us))
    best = int(np.log(us / us.min(axis=1, keepdims=True)).mean(axis=0).argmin())
    return lambda _at, _counts, _default: best


def trees(anchors: Anchors, _of: Space) -> Chosen:
    """XGBoost over sizes and parameters, as published work has it. ImportError without the extra `baselines`."""
    import xgboost

    config = np.stack(list(anchors.config.values()), axis=1)

    def rows(logs: Floats) -> Floats:
        return np.concatenate([np.tile(logs, (len(config), 1)), config], axis=1)

    timed = np.isfinite(anchors.us)
    x = np.concatenate([rows(logs)[keep] for logs, keep in zip(anchors.logs, timed, strict=True)])
    made = xgboost.XGBRegressor(n_estimators=600, max_depth=10, learning_rate=0.05, subsample=0.8, n_jobs=1)
    model = made.fit(x, np.log(anchors.us[timed]))
    return lambda at, _counts, _default: int(model.predict(rows(np.log(np.maximum(at, 1.0)))).argmin())


SELECTORS: dict[str, Selector] = {
    "pipewave": pipewave, "nearest_key": nearest_key, "one_for_all": one_for_all, "xgboost": trees, "default": author,
}  # fmt: skip


def _default_at(of: Space, anchors: Anchors) -> Ints:
    """The author's own choice [s] at launches of a space."""
    known = {tuple(row): int(one) for row, one in zip(of.at().tolist(), of.default, strict=True)}
    return np.array([known[tuple(row)] for row in anchors.at.tolist()], np.int64)


def peaks_of_space(of: Space) -> Peaks:
    """The GPU that a space was recorded on."""
    return peaks_of(str(of.meta["env"].get("gpu", "")), of.meta["env"].get("sm_count"))


def score(of: Space, selector: Selector, most: int | None = None) -> dict[str, float]:
    """Figures of a selector at the test launches of a space; `most`: of the anchors, the first so many."""
    test, anchors = np.flatnonzero(of.is_test), np.flatnonzero(~np.array(of.is_test))
    choose = selector(of.anchors(anchors[:most]), of)
    at, us, halves = of.at(), of.us(), of.halves()
    start = time.perf_counter()
    chosen = np.array([choose(at[i], of.counts[i], int(of.default[i])) for i in test])
    decision_us = (time.perf_counter() - start) * 1e6 / len(test)
    return figures(halves[test], us[test], chosen, of.default[test]) | {"decision_us": decision_us}


def figures(halves: Floats, us: Floats, chosen: Ints, default: Ints) -> dict[str, float]:
    """Regret, share of launches slower than the author's own choice by over 2 %, speed-up over it (geometric mean)."""
    at = np.arange(len(us))
    gain = us[at, default] / us[at, chosen]
    return {**summary(regrets(halves, chosen)), "slower_share": float(np.mean(gain < 1 / (1 + SLOWER))),
            "speed_up": float(np.exp(np.log(gain).mean())), "speed_up_max": float(gain.max())}  # fmt: skip

"""Laws and smoothed residuals of all configurations of a kernel, fitted to a recording's anchors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import groupby, product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipewave.tune import wave
from pipewave.tune.loads import Loads, held, knows_load
from pipewave.tune.mapping import Values, Work, mapper
from pipewave.tune.margin import FEWER, MARGINS, defaults, folds, is_slower, margin, with_margin
from pipewave.tune.measured import Measured, measured
from pipewave.tune.recording import ANCHOR, WAVE, Recording
from pipewave.tune.smooth import Smoother, alike, logs, smoother
from pipewave.tune.space import kernels

Floats = NDArray[np.float64]
LENGTHS, NOISES = (1.0, 1.5, 2.0, 3.0), (0.3, 1.0, 3.0)  # tried; leave-one-out regret over anchors chooses
ALIKE = ((1.5, 0.5, 0.2), (1.5, 0.5, 0.02), (0.8, 0.5, 0.1), (1.5, 0.2, 0.2), (3.0, 1.0, 0.1))  # likewise
SOFT = 0.015  # configurations predicted this near the best share the choice when fits are compared: less luck decides
WAVE_WEIGHT = 0.45  # of an anchor on a wave (fewer repeats, a proxy of the real shapes) against a drawn one
NEAR = 1.5  # what lies within this factor of the best decides the choice; the rest does not matter
CHUNK = 400
LOADS = ("rows", "active", "longest")  # columns of a load among those of a shape


@dataclass(frozen=True, slots=True)
class Fitted:
    """`law` [c, terms]; `sigma` [c]: leave-one-out relative error of a configuration against the other configurations;
    `loads`: those to expect where none is known; `margins`: log µs a choice has to gain over the default, load known or
    not.
    """

    kernel: str
    sms: int
    config: dict[str, NDArray[np.int64]]
    resident: NDArray[np.int64]
    law: Floats
    smooth: Smoother | None
    sigma: Floats
    loads: Loads | None
    margins: tuple[float, float]
    notes: dict[str, float]

    def law_us(self, shape: Values) -> Floats:
        """Predict by the laws alone: [s, c] µs for columns [s, 1] of shape fields, expected where no load is known."""
        return np.asarray(np.mean([self.work_us(work) for work in self.works(shape)], axis=0))

    def works(self, shape: Values) -> list[Work]:
        """Return the launch for each load to expect; one, where the load is known or there is none."""
        known = self.loads is None or knows_load(shape)
        states = [{}] if self.loads is None or known else self.loads.states(self.kernel, shape, self.config)
        return [mapper(self.kernel)({**shape, **load}, self.config) for load in states]

    def work_us(self, work: Work) -> Floats:
        """Predict launches by the laws alone: [s, c] µs."""
        return np.asarray(np.einsum("scp,cp->sc", wave.design(work, self.sms, self.resident), self.law))

    def margin(self, *, known_load: bool) -> float:
        """Return the log µs that a choice has to gain over the default."""
        return self.margins[0 if known_load else 1]

    def log_factor(self, shape: Values) -> Floats:
        """Return the log of the smoothed correction: [s, c], zero without a smoother."""
        at = logs(self.kernel, shape)
        return self.smooth.log_factor(at) if self.smooth else np.zeros((len(at), len(self.law)))

    def us(self, shape: Mapping[str, NDArray[Any]]) -> Floats:
        """Predict µs [s, c], in chunks that keep memory small."""
        count = len(next(iter(shape.values())))
        parts = []
        for start in range(0, count, CHUNK):
            some = {name: values[start : start + CHUNK] for name, values in shape.items()}
            parts.append(self.law_us(some) * np.exp(self.log_factor(some)))
        return np.concatenate(parts)

    def upper_us(self, shape: Mapping[str, NDArray[Any]]) -> Floats:
        """Predict µs one sigma up: [s, c]. Choosing by it loses less at anchors left out than by the mean does."""
        return np.asarray(self.us(shape) * np.exp(self.sigma))

    def with_margin_us(self, shape: Mapping[str, NDArray[Any]]) -> Floats:
        """Predict as `upper_us` does, the default's µs [s, c] lowered by the margin: a choice is the least of these."""
        fields = {name: values for name, values in shape.items() if name not in LOADS}
        by = self.margin(known_load=knows_load(shape))
        return np.exp(with_margin(np.log(self.upper_us(shape)), defaults(self.kernel, self.config, fields), by))


@dataclass(frozen=True, slots=True)
class Options:
    """What to leave out, for ablation: terms beside `keep`, loss on relative error, the occupancy of a wave, the
    smoothed residual, the load of a launch (routing histogram, longest sequence).
    """  # fmt: skip

    keep: tuple[int, ...] | None = None
    relative: bool = True
    occupancy: bool = True
    smoothing: bool = True
    load: bool = True


def fit(recording: Recording, options: Options = Options()) -> Fitted:
    """Fit everything to the anchors of a recording; test shapes are not looked at."""
    anchors, waves = measured(recording, ANCHOR), measured(recording, WAVE)
    return fit_to(anchors, waves, int(recording.meta["env"]["sm_count"]), options)


def fit_to(anchors: Measured, waves: Measured, sms: int, options: Options = Options()) -> Fitted:
    """Fit everything to drawn anchors and to anchors placed on waves (may be none)."""
    made = _without_margins(anchors, waves, sms, options, {})
    return replace(made, margins=_margins(made, anchors, waves, options))


def _without_margins(
    anchors: Measured, waves: Measured, sms: int, options: Options, known: Mapping[str, float]
) -> Fitted:
    """Fit laws and residuals; `known` notes of another fit spare the search for how the residuals are smoothed."""
    resident = anchors.resident if options.occupancy else np.ones_like(anchors.resident)
    parts = [_part(some, sms, resident, options.load) for some in (anchors, waves) if len(some.us)]
    weighed = [
        (x, us, weight if options.relative else weight * us / np.nanmean(us))
        for (x, us), weight in zip(parts, (1.0, WAVE_WEIGHT), strict=False)
    ]
    law = wave.fit(weighed, options.keep or wave.terms_of(anchors.kernel))
    residual = np.log(anchors.us / np.maximum(np.einsum("scp,cp->sc", parts[0][0], law), 1e-3))
    at = logs(anchors.kernel, anchors.columns())
    smooth, left, found = (
        smoothed(at, anchors.us, anchors.config, residual, known) if options.smoothing else (None, residual, {})
    )
    law = law * np.exp(found.pop("shared", 0.0))
    notes = found | {"left_out_regret": float(regret(anchors.us, anchors.us * np.exp(-left)).mean()),
                     "anchors": float(len(anchors.us)), "waves": float(len(waves.us))}  # fmt: skip
    loads = held(anchors) if options.load else None
    sigma = spread(anchors.us, left)
    return Fitted(anchors.kernel, sms, anchors.config, resident, law, smooth, sigma, loads, (0.0, 0.0), notes)


def _margins(made: Fitted, anchors: Measured, waves: Measured, options: Options) -> tuple[float, float]:
    """Margins with the load known and not, by predicting each fifth of the anchors from a fit to the others.

    Products of the fused layer have no default that others run, only a rule of ours: it is not worth protecting.
    """
    if made.kernel not in kernels():
        return MARGINS[0], MARGINS[0]
    predicted = np.empty((2, *anchors.us.shape))
    for out, rest in folds(len(anchors.us)):
        fitted, test = _without_margins(anchors.take(rest), waves, made.sms, options, made.notes), anchors.take(out)
        for i, load in enumerate((options.load, False)):
            predicted[i, out] = np.log(fitted.upper_us(test.columns(load=load)))
    default = defaults(made.kernel, made.config, anchors.shape)
    slower = is_slower(anchors.us, default)
    if made.loads is None:
        return (margin(slower, predicted[0], default),) * 2
    # With the load known, wider margins cost more regret than the bars of the products of experts leave: docs/tune.md.
    return MARGINS[0], margin(slower, predicted[1], default, FEWER)


def _part(some: Measured, sms: int, resident: NDArray[np.int64], load: bool) -> tuple[Floats, Floats]:
    work = mapper(some.kernel)(some.columns(load=load), some.config)
    return wave.design(work, sms, resident), some.us


def regret(us: Floats, predicted: Floats) -> Floats:
    """Regret [s] of choosing by a prediction, against the fastest of the same measurement."""
    chosen = us[np.arange(len(us)), predicted.argmin(axis=1)]
    return np.asarray(chosen / us.min(axis=1) - 1)


def soft_regret(us: Floats, log_off: Floats) -> float:
    """Mean regret of choosing at random among those predicted near the best; predictions are µs · exp(−log_off)."""
    predicted = np.log(us) - log_off
    weight = np.exp(-(predicted - predicted.min(axis=1, keepdims=True)) / SOFT)
    lost = us / us.min(axis=1, keepdims=True) - 1
    return float(np.mean(np.sum(weight * lost, axis=1) / weight.sum(axis=1)))


def smoothed(
    at: Floats, us: Floats, config: Mapping[str, NDArray[np.int64]], residual: Floats, known: Mapping[str, float]
) -> tuple[Smoother, Floats, dict[str, float]]:
    """Smooth log residuals [s, c] at log coordinates [s, d], as left-out regret says it is done best.

    Returns the smoother, what is left of anchors left out, and how it was done.
    """
    shared = float(residual.mean())
    tried: Iterable[tuple[float, float, float]] = product(range(len(ALIKE)), LENGTHS, NOISES)
    if "alike" in known:
        tried = [(known["alike"], known["length"], known["noise"])]
    best: tuple[float, Smoother, Floats, dict[str, float]] | None = None
    for number, every in groupby(tried, key=lambda one: one[0]):
        of = alike(config, *ALIKE[int(number)])
        for _, length, noise in every:
            made, left = smoother(at, residual - shared, length, noise, of)
            score = soft_regret(us, left)
            if best is None or score < best[0]:
                best = score, made, left, {"length": length, "noise": noise, "alike": float(number), "shared": shared}
    assert best is not None
    return best[1:]


def spread(us: Floats, left: Floats) -> Floats:
    """Spread of the residuals of near-best configurations, less what all share at a shape (it moves no choice)."""
    near = us < NEAR * us.min(axis=1, keepdims=True)
    shared = np.nanmedian(np.where(near, left, np.nan), axis=1, keepdims=True)
    off = np.where(near, left - shared, np.nan)
    every = float(np.sqrt(np.nanmean(off**2)))
    number = np.isfinite(off).sum(axis=0)
    # A configuration that was seldom near the best borrows the spread of all.
    return np.asarray(np.sqrt((np.nansum(off**2, axis=0) + 10 * every**2) / (number + 10)))

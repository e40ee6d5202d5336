"""Laws and smoothed residuals of all configurations of a kernel, fitted to a recording's anchors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipewave.tune import wave
from pipewave.tune.mapping import Values, mapper
from pipewave.tune.measured import Measured, measured
from pipewave.tune.recording import ANCHOR, WAVE, Recording
from pipewave.tune.smooth import Smoother, logs, smoother

Floats = NDArray[np.float64]
LENGTHS, NOISES = (0.7, 1.0, 1.5, 2.0, 3.0), (0.1, 0.3, 1.0)  # tried; leave-one-out regret over anchors chooses
FOCUSES = (0.0, 3.0)  # likewise: how much less a slow configuration's error counts
WAVE_WEIGHT = 0.45  # of an anchor on a wave (fewer repeats, a proxy of the real shapes) against a drawn one
NEAR = 1.5  # what lies within this factor of the best decides the choice; the rest does not matter
CHUNK = 400


@dataclass(frozen=True, slots=True)
class Fitted:
    """`law` [c, terms]; `sigma` [c]: leave-one-out relative error of a configuration against its rivals."""

    kernel: str
    sms: int
    config: dict[str, NDArray[np.int64]]
    resident: NDArray[np.int64]
    law: Floats
    smooth: Smoother | None
    sigma: Floats
    notes: dict[str, float]

    def law_us(self, shape: Values) -> Floats:
        """Predict by the laws alone: [s, c] µs for columns [s, 1] of shape fields."""
        work = mapper(self.kernel)(shape, self.config)
        x = wave.design(work, self.sms, self.resident)
        return np.asarray(np.einsum("scp,cp->sc", x, self.law))

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


def fit(recording: Recording, *, keep: tuple[int, ...] = tuple(range(len(wave.TERMS))), occupancy: bool = True,
        smoothing: bool = True, histogram: bool = True) -> Fitted:  # fmt: skip
    """Fit everything to the anchors of a recording; test shapes are not looked at.

    Options leave parts out, for ablation: terms beside `keep`, the occupancy of a wave, the smoothed residual, the
    routing histogram of a MoE.
    """
    anchors, waves = measured(recording, ANCHOR), measured(recording, WAVE)
    sms = int(recording.meta["env"]["sm_count"])
    resident = anchors.resident if occupancy else np.ones_like(anchors.resident)
    parts = [_part(some, sms, resident, histogram) for some in (anchors, waves) if len(some.us)]
    best: tuple[float, Floats, Smoother | None, Floats, dict[str, float]] | None = None
    for focus in FOCUSES:
        law = wave.fit(
            [(x, us, _weight(us, focus) if i == 0 else WAVE_WEIGHT) for i, (x, us) in enumerate(parts)], keep
        )
        residual = np.log(anchors.us / np.einsum("scp,cp->sc", parts[0][0], law))
        smooth, left, found = _smooth(anchors, residual) if smoothing else (None, residual, {})
        score = float(regret(anchors.us, anchors.us * np.exp(-left)).mean())
        if best is None or score < best[0]:
            best = score, law, smooth, left, found | {"focus": focus, "left_out_regret": score}
    assert best is not None
    _, law, smooth, left, found = best
    notes = found | {"anchors": float(len(anchors.us)), "waves": float(len(waves.us))}
    return Fitted(anchors.kernel, sms, anchors.config, resident, law, smooth, _sigma(anchors, left), notes)


def _weight(us: Floats, focus: float) -> Floats:
    """Weigh a configuration less the slower it is at a shape: only those near the best are ever chosen."""
    return np.asarray(1 / (1 + focus * (us / us.min(axis=1, keepdims=True) - 1)))


def _part(some: Measured, sms: int, resident: NDArray[np.int64], histogram: bool) -> tuple[Floats, Floats]:
    work = mapper(some.kernel)(some.columns(histogram=histogram), some.config)
    return wave.design(work, sms, resident), some.us


def regret(us: Floats, predicted: Floats) -> Floats:
    """Regret [s] of choosing by a prediction, against the fastest of the same measurement."""
    chosen = us[np.arange(len(us)), predicted.argmin(axis=1)]
    return np.asarray(chosen / us.min(axis=1) - 1)


def _smooth(anchors: Measured, residual: Floats) -> tuple[Smoother, Floats, dict[str, float]]:
    at = logs(anchors.kernel, anchors.columns())
    best: tuple[float, Smoother, Floats, dict[str, float]] | None = None
    for length in LENGTHS:
        for noise in NOISES:
            made, left = smoother(at, residual, length, noise)
            lost = regret(anchors.us, anchors.us * np.exp(-left))
            score = float(lost.mean())
            if best is None or score < best[0]:
                best = score, made, left, {"length": length, "noise": noise}
    assert best is not None
    return best[1:]


def _sigma(anchors: Measured, left: Floats) -> Floats:
    """Spread of the residuals of near-best configurations, less what all share at a shape (it moves no choice)."""
    near = anchors.us < NEAR * anchors.us.min(axis=1, keepdims=True)
    shared = np.nanmedian(np.where(near, left, np.nan), axis=1, keepdims=True)
    off = np.where(near, left - shared, np.nan)
    every = float(np.sqrt(np.nanmean(off**2)))
    number = np.isfinite(off).sum(axis=0)
    # A configuration that was seldom near the best borrows the spread of all.
    return np.asarray(np.sqrt((np.nansum(off**2, axis=0) + 10 * every**2) / (number + 10)))

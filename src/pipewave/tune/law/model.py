"""Predicted latency of every configuration of a kernel, fitted to few launches or many.

Each configuration has the law of `wave`. Few launches do not determine it, so that it leans on a `Prior`: times at
launches nobody measured, which count as much as `PRIOR_LAUNCHES` measured ones together. A prior is one law for all
configurations (`Pooled`: what a trip, a byte and a wave cost, whatever the tile), fitted to the same launches; the
physics of the GPU alone, where nothing was measured; or the table of another GPU, carried over.

Laws of single configurations err where a few launches bent them; the pooled law errs where configurations differ.
Predictions are a mean of both (of logarithms), weighed by their errors, each with what it leaves smoothed over sizes.
The more launches were measured, the more a third one counts where times are near the best: `gp_correction`. From `MANY`
launches on, laws and their smoothing alone predict best.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from pipewave.tune.law import wave
from pipewave.tune.law.anchors import Anchors, Floats, Ints, Peaks
from pipewave.tune.law.gp_correction import LEADING, NEAR, GpCorrection, learned, marks
from pipewave.tune.law.margin import Base, bases, decided, folds, with_margin
from pipewave.tune.law.smooth import SETTINGS, SETTINGS_USUAL, Smoother, smoothed, spread

PRIOR_LAUNCHES = 6.0  # measured launches that a prior counts for
PHYSICS = 0.2  # of a measured launch: what the physics of the GPU counts for, at each
THERE_LAUNCHES = 20.0  # measured launches that another GPU's whole model counts for
SHRINK = 1.0  # launches that "like all others" counts for, in how much slower a configuration is than the pooled law
SMOOTHED = 6  # launches from which on residuals are smoothed over sizes
ALIKE_FROM, ALIKE_ALONE = 10, 50  # launches up to which gp_correction says nothing, from which on it alone decides
JUDGED, SEARCHED = 8, 20  # launches from which on the margin, and how to smooth, are found by leaving some out
MANY = 150  # launches from which on laws and smoothing alone predict best: on our own kernels, docs/studies
STRETCHES = (2.0, 4.0, 8.0)  # how much shorter the length of the smoothing may be in one size
UNTIMED = 1e2  # log µs of what was not timed: only a base that has to be chosen is
UNJUDGED = 0.05  # margin where too few launches were measured to find one
SIGMA = 0.1  # relative error to expect of a law that nothing was measured for
# µs of each pooled term where nothing was measured: a launch, a trip's latency, and peaks as they are usually reached.
USUAL = np.array([2.5, 0.25, 0.1, 1.2, 0.3, 0.2, 0.1, 1.15])


@dataclass(frozen=True, slots=True)
class Pooled:
    """One law over what hardware does, [8]; of configurations [c], how much slower (log), trips loaded ahead."""

    peaks: Peaks
    law: Floats
    offset: Floats
    ahead: Floats | float = 1.0

    def us(self, counts: Floats, resident: Ints) -> Floats:
        """Predict launches [s, c, 6]: [s, c] µs."""
        return np.asarray(pooled_terms(counts, resident, self.peaks, self.ahead) @ self.law * np.exp(self.offset))


@dataclass(frozen=True, slots=True)
class PooledPrediction:
    """The pooled law as a prediction of its own: `smooth` corrects it over sizes; `share` of the mean, as its error at
    anchors left out deserves against that of the laws.
    """

    pooled: Pooled
    smooth: Smoother
    share: float

    def log_us(self, counts: Floats, resident: Ints, logs: Floats) -> Floats:
        """Predict launches: [s, c] log µs."""
        return np.asarray(np.log(np.maximum(self.pooled.us(counts, resident), 1e-3)) + self.smooth.log_factor(logs))


@dataclass(frozen=True, slots=True)
class Model:
    """`law` [c, terms]; `smooth`: corrections, in turn (of the prior's GPU, then of this one); `sigma` [c] relative
    error; `margin`: log µs that a choice has to gain over `base`, the default where that is None; `beside`: the other
    prediction, with which the mean is taken, None where few launches were measured; `gp_correction`: the third one, in
    place of the last correction, None likewise; `there`: the model of another GPU as it is expected here, which counts
    as `THERE_LAUNCHES` launches of this one, None where there is none.
    """

    peaks: Peaks
    resident: Ints
    law: Floats
    smooth: tuple[Smoother, ...]
    sigma: Floats
    margin: float
    launches: int
    beside: PooledPrediction | None = None
    gp_correction: GpCorrection | None = None
    there: Model | None = None
    base: Base | None = None

    def law_us(self, counts: Floats, resident: Ints | None = None) -> Floats:
        """Predict launches [s, c, 6] by the laws alone, `resident` [s, c] if it is known of each: [s, c] µs."""
        held = self.resident if resident is None else resident
        return np.asarray(np.einsum("scp,cp->sc", wave.design(counts, self.peaks.sms, held), self.law))

    def us(self, counts: Floats, logs: Floats, resident: Ints | None = None) -> Floats:
        """Predict launches: [s, c] µs."""
        held = self.resident if resident is None else resident
        law = np.log(np.maximum(self.law_us(counts, held), 1e-3))
        own = law + sum((each.log_factor(logs) for each in self.smooth), np.zeros(law.shape))
        if self.beside is not None:
            own += self.beside.share * (self.beside.log_us(counts, held, logs) - own)
        if self.gp_correction is not None:
            self._correct(self.gp_correction, own, law, logs, marks(counts, held, self.peaks))
        if self.there is not None:
            share = THERE_LAUNCHES / (THERE_LAUNCHES + self.launches)
            own += share * (np.log(self.there.us(counts, logs, resident)) - own)
        return np.asarray(np.exp(own))

    def _correct(self, correction: GpCorrection, own: Floats, law: Floats, logs: Floats, of: Floats) -> None:
        """Correct log µs [s, c] near the best by launches that are alike; law: log µs of the laws alone, of: marks."""
        last = min(LEADING, own.shape[1]) - 1
        leading = np.partition(own, last, axis=1)[:, [last]]
        launch, config = np.nonzero(own <= np.minimum(own.min(axis=1, keepdims=True) + np.log(NEAR), leading))
        for each in self.smooth[:-1]:
            law = law + each.log_factor(logs)
        alike = law[launch, config] + correction.log_factor(logs[launch], of[launch, config], config)
        share = min(1.0, (self.launches - ALIKE_FROM) / (ALIKE_ALONE - ALIKE_FROM))
        own[launch, config] += share * (alike - own[launch, config])

    def ranked(self, counts: Floats, logs: Floats, default: Ints | int = 0, resident: Ints | None = None) -> Floats:
        """Log µs [s, c] that choices go by: one sigma up, the base or else the default lowered by the margin."""
        log_us = np.log(self.us(counts, logs, resident)) + self.sigma
        start = np.broadcast_to(default, len(log_us)) if self.base is None else self.base.of(logs)
        return with_margin(log_us, start, self.margin)


def pooled_terms(counts: Floats, resident: Ints, peaks: Peaks, ahead: Floats | float = 1.0) -> Floats:
    """Terms of the pooled law [s, c, 8], in µs at the GPU's peaks: launch, a block's chain of trips (memory answers for
    all that are loaded ahead at once), compute and bytes of the busiest SM and of all SMs together, memory. Ceilings
    alone would be the physics of the GPU.
    """
    blocks, trips, longest, least_bytes, moved_bytes, flops = (counts[..., i] for i in range(6))
    blocks = np.maximum(blocks, 1.0)
    busiest = np.ceil(blocks / peaks.sms)
    waves = np.ceil(busiest / resident)
    each_flops, each_bytes = flops / blocks / peaks.sm_flops_us, moved_bytes / blocks / peaks.sm_bytes_us
    one = np.ones(np.broadcast_shapes(blocks.shape, resident.shape))
    return np.stack([one * x for x in (1.0, longest / ahead, waves * trips, busiest * each_flops, busiest * each_bytes,
                                       flops / peaks.sm_flops_us / peaks.sms,
                                       moved_bytes / peaks.sm_bytes_us / peaks.sms,
                                       least_bytes / peaks.bytes_us)], axis=-1)  # fmt: skip


def physics_us(counts: Floats, resident: Ints, peaks: Peaks) -> Floats:
    """µs [s, c] of launches [s, c, 6] on a GPU that nothing was measured on."""
    return np.asarray(pooled_terms(counts, resident, peaks) @ USUAL)


def pooled(anchors: Anchors, peaks: Peaks) -> Pooled:
    """Fit the pooled law, leaning on the physics of the GPU, and the offset of each configuration."""
    ahead = np.maximum(anchors.config.get("num_stages", np.full(anchors.us.shape[1], 2)) - 1.0, 1.0)
    terms = pooled_terms(anchors.counts, anchors.resident, peaks, ahead)
    timed = np.isfinite(anchors.us)
    x, us = terms[timed][:, None, :], anchors.us[timed][:, None]
    law = wave.fit([(x, us, 1.0), (x, (terms[timed] @ USUAL)[:, None], np.sqrt(PHYSICS))])[0]
    off = np.where(timed, np.log(np.where(timed, anchors.us, 1.0) / np.maximum(terms @ law, 1e-3)), 0.0)
    return Pooled(peaks, law, off.sum(axis=0) / (timed.sum(axis=0) + SHRINK), ahead)


def fit(
    anchors: Anchors, peaks: Peaks, elsewhere: Floats | None = None, there: Model | None = None,
    default: Ints | None = None,
) -> Model:  # fmt: skip
    """Fit everything to measured launches, of which there may be none with the model of another GPU.

    `elsewhere`: counts [v, c, 6] of launches like those to choose for (None: the anchors'). `there`: that model as it
    is expected here: its laws are the prior (None: the anchors' pooled law), its corrections over sizes are kept.
    `default`: the choice [s] to beat at each launch (None: the first configuration).
    """
    made = _without_margin(anchors, peaks, elsewhere, there)
    if len(anchors.us) < JUDGED:
        return made
    default = np.zeros(len(anchors.us), np.int64) if default is None else default
    predicted, others = np.empty_like(anchors.us), np.zeros((2, len(anchors.us)), np.int64)
    for out, rest in folds(len(anchors.us)):
        known, test = anchors.take(rest), anchors.take(out)
        fitted = _without_margin(known, peaks, elsewhere, there)
        predicted[out] = np.log(fitted.us(test.counts, test.logs, test.resident)) + fitted.sigma
        others[:, out] = [base.of(test.logs) for base in bases(known.logs, known.us)]
    predicted = np.where(np.isfinite(anchors.us), predicted, UNTIMED)
    number, by = decided(anchors.us, predicted, [default, *others])
    return replace(made, margin=by, base=(None, *bases(anchors.logs, anchors.us))[number])


def _without_margin(anchors: Anchors, peaks: Peaks, elsewhere: Floats | None, there: Model | None) -> Model:
    prior, smooth = (pooled(anchors, peaks).us, ()) if there is None else (there.law_us, there.smooth)
    like, held = anchors.counts, anchors.resident
    if elsewhere is not None and len(elsewhere):
        like, held = elsewhere, anchors.usual
    shift = 0.0  # by which all launches measured are off the prior: clocks, mostly
    if len(anchors.us):
        prior_us = np.maximum(prior(anchors.counts, anchors.resident), 1e-3)
        shift = float(np.nanmedian(np.log(anchors.us / prior_us)))
    expected = prior(like, held) * np.exp(shift)
    parts = [(wave.design(like, peaks.sms, held), expected, np.sqrt(PRIOR_LAUNCHES / len(like)))]
    us = anchors.us / np.exp(sum(each.log_factor(anchors.logs) for each in smooth))
    if len(anchors.us):
        parts.append((wave.design(anchors.counts, peaks.sms, anchors.resident), us, 1.0))
    law = wave.fit(parts)
    made = Model(peaks, anchors.usual, law, smooth, np.full(len(law), SIGMA), UNJUDGED, len(anchors.us), there=there)
    return _corrected(made, anchors, us) if len(anchors.us) >= SMOOTHED else made


def _corrected(made: Model, anchors: Anchors, us: Floats) -> Model:
    """Smooth what the laws leave over sizes, and what the pooled law leaves; predictions are the mean of both."""
    smooth, shared, sigma = _smoothed(anchors, us, made.law_us(anchors.counts, anchors.resident))
    made = replace(made, law=made.law * np.exp(shared), smooth=(*made.smooth, smooth), sigma=sigma)
    if len(us) >= MANY:
        return made
    of = pooled(anchors, made.peaks)
    other, level, error = _smoothed(anchors, anchors.us, of.us(anchors.counts, anchors.resident))
    share = float(np.mean(sigma**2) / (np.mean(sigma**2) + np.mean(error**2) + 1e-12))
    beside = PooledPrediction(replace(of, law=of.law * np.exp(level)), other, share)
    made = replace(made, sigma=sigma + share * (error - sigma), beside=beside)
    if len(us) <= ALIKE_FROM:
        return made
    alike = learned(replace(anchors, us=us), made.peaks, made.law_us(anchors.counts, anchors.resident), smooth)
    return replace(made, gp_correction=alike)


def _smoothed(anchors: Anchors, us: Floats, predicted: Floats) -> tuple[Smoother, float, Floats]:
    """What predictions leave, smoothed over sizes; the log factor that all share; the error that is left [c]. A launch
    that was not timed is as all others of its size, and slow.
    """
    timed = np.isfinite(us)
    residual = np.log(np.where(timed, us, 1.0) / np.maximum(predicted, 1e-3))
    usual = np.nanmedian(np.where(timed, residual, np.nan), axis=1, keepdims=True)
    residual = np.where(timed, residual, np.nan_to_num(usual))
    filled = np.where(timed, us, 3.0 * np.nanmin(np.where(timed, us, np.inf), axis=1, keepdims=True))
    shared = float(residual.mean())
    residual -= shared
    settings = SETTINGS if len(us) >= SEARCHED else SETTINGS_USUAL
    smooth, left, found = smoothed(anchors.logs, filled, anchors.config, residual, settings)
    if SEARCHED <= len(us) < MANY:  # shorter in one size where it helps: a row's width acts by its own divisors
        sizes = np.arange(anchors.logs.shape[1])
        shorter = [np.where(sizes == size, by, 1.0) for size, by in product(sizes, STRETCHES)]
        smooth, left, _ = smoothed(anchors.logs, filled, anchors.config, residual, (found,), (1.0, *shorter))
    return smooth, shared, spread(filled, left)


def ratios(source: Peaks, target: Peaks) -> Floats:
    """What terms [terms] are multiplied by from one GPU to another: bytes by bandwidths, others by an SM's peak."""
    by = {"memory": source.bytes_us / target.bytes_us, "launch": 1.0,
          "l2": (source.sm_bytes_us * source.sms) / (target.sm_bytes_us * target.sms)}  # fmt: skip
    return np.array([by.get(term, source.sm_flops_us / target.sm_flops_us) for term in wave.TERMS])


def moved(model: Model, target: Peaks) -> Model:
    """The model as it is expected on another GPU, nothing measured there: a warm start, half as sure of itself."""
    other = model.beside and replace(model.beside, pooled=replace(model.beside.pooled, peaks=target))
    return replace(model, peaks=target, law=model.law * ratios(model.peaks, target), sigma=model.sigma * 2,
                   margin=model.margin * 2, beside=other)  # fmt: skip

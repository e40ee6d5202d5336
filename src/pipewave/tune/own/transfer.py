"""A model of one GPU as the prior of another: each term scaled by the physics that it stands for.

Terms of bytes from memory follow the bandwidths, terms of the L2 its bandwidth, everything in trips and blocks what one
SM can do; a launch stays a launch. The corrections over sizes come along. A few launches on the new GPU then set the
level and bend what differs.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pipewave.tune import wave
from pipewave.tune.own.anchors import Floats, Ints, work
from pipewave.tune.own.model import Model, Times
from pipewave.tune.own.peaks import Peaks
from pipewave.tune.smooth import Smoother

MEMORY, L2, LAUNCH = (13,), (14,), (0,)  # of `wave.TERMS`


def ratios(source: Peaks, target: Peaks) -> Floats:
    """What each term of a law is multiplied by [terms], from one GPU to another."""
    out = np.full(len(wave.TERMS), source.sm_flops_us / target.sm_flops_us)
    out[list(MEMORY)] = source.bytes_us / target.bytes_us
    out[list(L2)] = (source.sm_bytes_us * source.sms) / (target.sm_bytes_us * target.sms)
    out[list(LAUNCH)] = 1.0
    return out


def carried(model: Model, target: Peaks) -> tuple[Times, tuple[Smoother, ...]]:
    """Times to expect on another GPU, and the corrections that come along: the prior for `model.fit`."""
    law = model.law * ratios(model.peaks, target)

    def us(counts: Floats, resident: Ints) -> Floats:
        terms = wave.design(work(counts), target.sms, resident)
        return np.asarray(np.einsum("scp,cp->sc", terms, law))

    return us, model.smooth


def moved(model: Model, target: Peaks) -> Model:
    """The model as it is expected on another GPU, nothing measured there: a warm start, half as sure of itself."""
    other = model.beside and replace(model.beside, pooled=replace(model.beside.pooled, peaks=target))
    return Model(target, model.resident, model.law * ratios(model.peaks, target), model.smooth, model.sigma * 2,
                 model.margin * 2, 0, other)  # fmt: skip

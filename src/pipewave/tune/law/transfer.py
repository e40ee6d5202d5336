"""A model of one GPU as the prior of another: each term scaled by the physics that it stands for.

Terms of bytes from memory follow the bandwidths, terms of the L2 its bandwidth, everything in trips and blocks what one
SM can do; a launch stays a launch. The corrections come along. A few launches on the new GPU then set the level and
bend what differs; predictions are a mean (of logarithms) of what these few say and of what the other GPU's model does.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pipewave.tune.law import wave
from pipewave.tune.law.anchors import Floats
from pipewave.tune.law.model import Model, Prior
from pipewave.tune.law.peaks import Peaks

MEMORY, L2, LAUNCH = (10,), (11,), (0,)  # of `wave.TERMS`


def ratios(source: Peaks, target: Peaks) -> Floats:
    """What each term of a law is multiplied by [terms], from one GPU to another."""
    out = np.full(len(wave.TERMS), source.sm_flops_us / target.sm_flops_us)
    out[list(MEMORY)] = source.bytes_us / target.bytes_us
    out[list(L2)] = (source.sm_bytes_us * source.sms) / (target.sm_bytes_us * target.sms)
    out[list(LAUNCH)] = 1.0
    return out


def carried(model: Model, target: Peaks) -> Prior:
    """What a model of one GPU says of another: the prior for `model.fit`."""
    there = moved(model, target)
    return Prior(there.law_us, model.smooth, there)


def moved(model: Model, target: Peaks) -> Model:
    """The model as it is expected on another GPU, nothing measured there: a warm start, half as sure of itself."""
    other = model.beside and replace(model.beside, pooled=replace(model.beside.pooled, peaks=target))
    return replace(model, peaks=target, law=model.law * ratios(model.peaks, target), sigma=model.sigma * 2,
                   margin=model.margin * 2, beside=other)  # fmt: skip

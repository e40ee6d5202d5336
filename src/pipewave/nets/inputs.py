"""The features of many calls as a net takes them: one matrix, apart from those that are one number for all calls.

What is one number for all (a framework, a term that a protocol lacks) goes into the biases of the first layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipewave.errors import BadFile
from pipewave.kernels.base import Features
from pipewave.nets.layers import ONE, Floats

Named = Mapping[str, NDArray[np.float64]]


@dataclass(frozen=True, slots=True)
class Inputs:
    """`varying` is [call, feature + 1], the last a one; `places` are its features among those of a net.

    `constant`: place and value of each feature that is one number for all calls.
    """

    varying: Floats
    places: tuple[int, ...]
    constant: tuple[tuple[int, float], ...]


def inputs_of(features: Named, names: tuple[str, ...]) -> Inputs:
    """The features of these names. BadFile for one that is not there: the weights want it."""
    try:
        rows = list(features.rows(names)) if isinstance(features, Features) else [features[name] for name in names]
    except KeyError as missing:
        raise lacking(missing) from missing
    same = {place: float(row[0]) for place, row in enumerate(rows) if row.strides == (0,)}
    places = tuple(place for place in range(len(rows)) if place not in same)
    varying = np.empty((len(places) + 1, len(rows[0])), np.float32)
    for room, values in zip(varying, (*(rows[place] for place in places), ONE), strict=True):
        room[:] = values
    return Inputs(varying.T, places, tuple(same.items()))


def lacking(missing: KeyError) -> BadFile:
    """The error of weights that want a feature nobody computes."""
    message = f"the weights want a feature {missing} that this version does not compute; reinstall pipewave"
    return BadFile(message, field="weights")

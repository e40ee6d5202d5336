"""The layers of an ensemble of MLPs over many calls, and the features of the calls as these take them.

Features that are one number for all calls (a framework, a term that a protocol lacks) go into the biases of the first
layer. A bias is one more row of its weights, and every layer's input ends in a one that brings it in: no pass over the
units to add it. Calls are answered in parts whose hidden units stay in a core's own cache.

A few calls cost less by plain products of one matrix after the other, constant categories folded into the biases,
these into the matrices, and the members' first layers side by side (`ScalarNet`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipewave.errors import BadFile
from pipewave.kernels.base import Features

Floats = NDArray[np.float32]
Named = Mapping[str, NDArray[np.float64]]

CALLS_AT_ONCE = 512
ZERO = np.zeros((), np.float32)  # a plain 0.0 costs numpy a conversion every time
ONE = np.ones((), np.float32)
DEEPEST = np.full((), -80.0, np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class Layers:
    """Weights of each layer."""

    weights: tuple[Floats, ...]  # [member, input + 1, output]: the last row is the bias
    activation: str

    def outputs(self, inputs: Floats) -> Floats:
        """[member, call, output] of inputs [call, input + 1] whose last is one."""
        last = self.weights[-1]
        out = np.empty((len(last), len(inputs), last.shape[2]), np.float32)
        for part, units in self._hidden(inputs):
            np.matmul(units, last, out=out[:, part])
        return out

    def units(self, inputs: Floats) -> Floats:
        """The last hidden layer of the same, [member, call, unit]."""
        width = self.weights[-1].shape[1] - 1
        out = np.empty((len(self.weights[0]), len(inputs), width), np.float32)
        for part, units in self._hidden(inputs):
            out[:, part] = units[..., :-1]
        return out

    def _hidden(self, inputs: Floats) -> Iterator[tuple[slice, Floats]]:
        """Parts of the calls and their last hidden units with a one, which the next part overwrites."""
        calls, hidden = len(inputs), self.weights[:-1]
        kept = [_with_one((len(w), min(calls, CALLS_AT_ONCE), w.shape[2] + 1)) for w in hidden]
        for at in range(0, calls, CALLS_AT_ONCE):
            part = slice(at, at + CALLS_AT_ONCE)
            units = inputs[part]
            size = len(units)
            for weight, room in zip(hidden, kept, strict=True):
                units = self._layer(units, weight, room[:, :size])
            yield part, units

    def _layer(self, units: Floats, weight: Floats, room: Floats) -> Floats:
        np.matmul(units, weight, out=room[..., :-1])
        if self.activation == "relu":  # which leaves a one alone
            return np.maximum(room, _zeros(room.shape[1:]), out=room)
        ACTIVATIONS[self.activation](room)
        room[..., -1] = ONE
        return room


def _with_one(shape: tuple[int, ...]) -> Floats:
    room = np.empty(shape, np.float32)
    room[..., -1] = ONE
    return room


@lru_cache(maxsize=256)
def _zeros(shape: tuple[int, ...]) -> Floats:
    """For the units of one member: numpy compares two arrays in half the time of an array and a number."""
    return np.zeros(shape, np.float32)


def relu(x: Floats) -> Floats:
    """In place: a layer has no other use."""
    return np.maximum(x, ZERO, out=x)


def silu(x: Floats) -> Floats:
    """In place; nothing is left of a unit below `DEEPEST`, and the exponential of what is deeper would overflow."""
    falling = np.exp(-np.maximum(x, DEEPEST, out=x))
    falling += ONE
    return np.divide(x, falling, out=x)


ACTIVATIONS: Mapping[str, Callable[[Floats], Floats]] = {"relu": relu, "silu": silu}


@dataclass(frozen=True, slots=True)
class Inputs:
    """Features of many calls as layers take them."""

    varying: Floats  # [call, feature + 1], the last a one
    places: tuple[int, ...]  # its features among those of a net
    constant: tuple[tuple[int, float], ...]  # place and value of each feature that is one number for all calls


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


@dataclass(frozen=True, slots=True, eq=False)
class ScalarNet:
    """Layers for a few calls. The last unit of every layer is the same for all calls: its weights are the biases."""

    features: tuple[str, ...]
    pick: Callable[[Mapping[str, Any]], tuple[Any, ...]]
    members: int
    first: Floats  # [feature + 1, member · unit]
    later: tuple[Floats, ...]  # lead with the member axis unless there is one
    product: Callable[[Floats, Floats], Floats]
    activate: Callable[[Floats], Floats]  # in place

    def inputs(self, features: Mapping[str, Any]) -> tuple[Any, ...]:
        """The features of these names in the net's order, and a one."""
        try:
            return (*self.pick(features), 1.0)
        except KeyError as missing:
            raise lacking(missing) from missing

    def __call__(self, inputs: Floats) -> tuple[list[list[float]], Floats]:
        """Of inputs [call, feature + 1]: of each call every member's mean and log scale in turn; and the last layer's
        units [member, call, unit + 1], of one member [call, unit + 1].
        """
        product, active, calls, members = self.product, self.activate, len(inputs), self.members
        hidden = inputs.dot(self.first)
        if members > 1:
            hidden = hidden.reshape(calls, members, -1).swapaxes(0, 1)
        units = hidden
        for weight in self.later:
            units = active(hidden)
            hidden = product(units, weight)
        answers = hidden.swapaxes(0, 1) if members > 1 else hidden
        return answers.reshape(calls, -1).tolist(), units

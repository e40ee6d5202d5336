"""The layers of an ensemble of MLPs over many calls, and the features of the calls as these take them.

Features that are one number for all calls (a framework, a term that a protocol lacks) go into the biases of the first
layer. A bias is one more row of its weights, and every layer's input ends in a one that brings it in: no pass over the
units to add it. Calls are answered in parts whose hidden units stay in a core's own cache.

A few calls cost less by plain products into rooms that are kept, constant categories folded into the biases, and the
members of a layer side by side in one matrix where that costs less than a product each (`ScalarNet`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from threading import get_ident
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipewave.errors import BadFile
from pipewave.kernels.base import Features

Floats = NDArray[np.float32]
Named = Mapping[str, NDArray[np.float64]]

CALLS_AT_ONCE = 512
ONE = np.ones((), np.float32)  # a plain 1.0 costs numpy a conversion every time
DEEPEST = np.full((), -80.0, np.float32)
Product = tuple[Floats, slice, slice]  # weights [input, sum]; which inputs and sums, of those of all members, they are


@dataclass(frozen=True, slots=True, eq=False)
class Layers:
    """Weights of each layer."""

    weights: tuple[Floats, ...]  # [member, input + 1, output]: the last row is the bias
    activation: str

    def outputs(self, inputs: Floats, units: Floats | None = None) -> Floats:
        """[member, call, output] of inputs [call, input + 1] whose last is one; last hidden ones go into `units`."""
        calls, last, hidden = len(inputs), self.weights[-1], self.weights[:-1]
        out = np.empty((len(last), calls, last.shape[2]), np.float32)
        rooms = _rooms(tuple(weight.shape for weight in hidden), min(calls, CALLS_AT_ONCE), get_ident())
        for at in range(0, calls, CALLS_AT_ONCE):
            part = slice(at, at + CALLS_AT_ONCE)
            found = inputs[part]
            size = len(found)
            for weight, (room, zeros) in zip(hidden, rooms, strict=True):
                found = self._layer(found, weight, room[:, :size], zeros[:size])
            np.matmul(found, last, out=out[:, part])
            if units is not None:
                units[:, part] = found[..., :-1]
        return out

    def _layer(self, units: Floats, weight: Floats, room: Floats, zeros: Floats) -> Floats:
        np.matmul(units, weight, out=room[..., :-1])
        if self.activation == "relu":  # which leaves a one alone; comparing with one zero takes twice as long
            return np.maximum(room, zeros, out=room)
        ACTIVATIONS[self.activation](room, out=room)
        room[..., -1] = ONE
        return room


@lru_cache(maxsize=16)  # two MB for a net's 512 calls
def _rooms(shapes: tuple[tuple[int, ...], ...], calls: int, _thread: int) -> list[tuple[Floats, Floats]]:
    """A thread's room for hidden units of weights of these shapes, a one behind them; and zeros of one member."""
    rooms = [np.ones((members, calls, units + 1), np.float32) for members, _, units in shapes]
    return [(room, np.zeros(room.shape[1:], np.float32)) for room in rooms]


def silu(x: Floats, out: Floats | None = None) -> Floats:
    """Of sums, which `out` may be; nothing is left of one below `DEEPEST`, and what is deeper would overflow."""
    sums = np.maximum(x, DEEPEST, out=out)
    falling = np.exp(-sums)
    falling += ONE
    return np.divide(sums, falling, out=sums)


ACTIVATIONS: Mapping[str, Callable[..., Floats]] = {"relu": partial(np.maximum, 0.0), "silu": silu}


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
    """Layers of all members of some nets, for a few calls; the last input of every product is a one, of its biases."""

    features: tuple[str, ...]
    pick: Callable[[Mapping[str, Any]], tuple[Any, ...]]
    layers: Sequence[Sequence[Product]]
    activation: str
    write: Callable[..., None]  # the inputs of one call into an array, in a third of the time that numpy takes

    def inputs(self, features: Mapping[str, Any]) -> tuple[Any, ...]:
        """The features of these names in the net's order, and a one."""
        try:
            return (*self.pick(features), 1.0)
        except KeyError as missing:
            raise lacking(missing) from missing

    def __call__(self, inputs: Sequence[Any], wanted: Any = None) -> tuple[list[list[float]], Any]:
        """Of the inputs of each call every member's mean and log scale in turn; and which of its inputs and last hidden
        units are `wanted`, counted through: [place] of one call, [call, place] of several.
        """
        values, given, steps, answers = _room(self, len(inputs), get_ident())
        if len(inputs) == 1:
            self.write(given, 0, *inputs[0])
        else:
            given[:] = inputs
        for step in steps:
            step()
        found = answers.tolist()
        return found if len(inputs) > 1 else [found], None if wanted is None else values.take(wanted, -1)


@lru_cache(maxsize=1024)
def _room(net: ScalarNet, calls: int, _thread: int) -> tuple[Floats, Floats, Sequence[Callable[[], Any]], Floats]:
    """Where a thread answers so many calls: inputs and last hidden units, the inputs alone, what is done, answers."""
    sizes, steps = [layer[-1][1].stop for layer in net.layers], list[Callable[[], Any]]()

    def ones(size: int) -> Floats:
        return np.ones((calls, size) if calls > 1 else size, np.float32)

    values, answers = ones(sizes[0] + sizes[-1]), ones(net.layers[-1][-1][2].stop)
    inputs = taken = values[..., : sizes[0]]
    straight = net.activation == "relu"  # sums become units, and ones among them stay
    for layer, units in zip(net.layers, (*map(ones, sizes[1:-1]), values[..., sizes[0] :], answers), strict=True):
        sums = units if straight or units is answers else ones(units.shape[-1])
        for weight, given, found in layer:
            one, out = taken[..., given], sums[..., found]
            steps.append(partial(np.matmul, one, weight, out=out) if calls > 1 else partial(one.dot, weight, out))
        if units is not answers:
            active = partial(np.maximum, sums, np.zeros_like(sums)) if straight else partial(silu, sums)
            steps.append(partial(active, out=units))
        taken = units
    return values, inputs, steps, answers

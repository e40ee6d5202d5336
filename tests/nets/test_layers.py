"""Layers over many calls against the same sums in double precision, a call at a time."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray

from pipewave.nets.layers import ACTIVATIONS, CALLS_AT_ONCE, Layers

SIZES = (7, 12, 5, 2)  # inputs, two hidden layers, outputs
MEMBERS = 3


def made(activation: str) -> Layers:
    rng = np.random.default_rng(4)
    return Layers(
        tuple(rng.normal(size=(MEMBERS, before + 1, after)).astype(np.float32) for before, after in pairwise(SIZES)),
        activation,
    )


def with_one(calls: int) -> NDArray[np.float32]:
    values = np.random.default_rng(calls).normal(size=(calls, SIZES[0] + 1)).astype(np.float32)
    values[:, -1] = 1.0
    return values


def active(x: NDArray[np.float64], activation: str) -> NDArray[np.float64]:
    return np.maximum(x, 0.0) if activation == "relu" else x / (1.0 + np.exp(-x))


def by_hand(layers: Layers, member: int, call: NDArray[np.float32]) -> list[NDArray[np.float64]]:
    """The last hidden units of one member for one call, and its outputs."""
    units = call[:-1].astype(float)
    for weight in layers.weights[:-1]:
        units = active(units @ weight[member, :-1].astype(float) + weight[member, -1], layers.activation)
    last = layers.weights[-1][member].astype(float)
    return [units, units @ last[:-1] + last[-1]]


@pytest.mark.parametrize("activation", ["relu", "silu"])
@pytest.mark.parametrize("calls", [1, CALLS_AT_ONCE, CALLS_AT_ONCE + 3])
def test_every_part_answers_as_its_calls_alone(activation: str, calls: int) -> None:
    layers, inputs = made(activation), with_one(calls)
    units = np.empty((MEMBERS, calls, SIZES[-2]), np.float32)
    outputs = layers.outputs(inputs, units)
    assert outputs.shape == (MEMBERS, calls, SIZES[-1])
    assert np.array_equal(outputs, layers.outputs(inputs))
    for member in range(MEMBERS):
        for call in {0, calls // 2, calls - 1}:
            hidden, answer = by_hand(layers, member, inputs[call])
            assert np.allclose(units[member, call], hidden, rtol=1e-4, atol=1e-5)
            assert np.allclose(outputs[member, call], answer, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("activation", ["relu", "silu"])
def test_sums_stay_unless_units_take_their_place(activation: str) -> None:
    sums = np.array([-200.0, -3.0, 0.0, 0.5, 40.0], np.float32)
    before, room = sums.copy(), np.empty_like(sums)
    expected = [float(active(np.float64(each), activation)) for each in sums]
    assert ACTIVATIONS[activation](sums) == pytest.approx(expected, rel=1e-6, abs=1e-30)
    ACTIVATIONS[activation](sums, out=room)
    assert np.array_equal(sums, before) and room == pytest.approx(expected, rel=1e-6, abs=1e-30)
    ACTIVATIONS[activation](sums, out=sums)
    assert np.array_equal(sums, room)

"""Waves against a simulation that deals equal blocks in order, each to the place that frees first."""

from __future__ import annotations

import heapq

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pipewave.physics.arith import SCALAR
from pipewave.physics.overlap import wave_efficiency, waves


def dealt(tasks: int, places: int) -> tuple[float, float]:
    """Time until the last of equal tasks is done, in tasks, and the share of places in use until then."""
    free = [0.0] * places
    for _ in range(tasks):
        heapq.heapreplace(free, free[0] + 1.0)
    return max(free), tasks / (max(free) * places)


@given(st.integers(1, 500), st.integers(1, 20))
def test_equal_tasks_run_in_waves(tasks: int, places: int) -> None:
    rounds, used = dealt(tasks, places)
    assert waves(tasks / places, SCALAR) == rounds
    assert np.isclose(wave_efficiency(tasks / places, SCALAR), used)


def test_arrays_are_as_single_values() -> None:
    per_place = np.array([0.2, 1.0, 1.01, 7.5])
    assert waves(per_place).tolist() == [1.0, 1.0, 2.0, 8.0]
    assert np.allclose(wave_efficiency(per_place), [0.2, 1.0, 0.505, 0.9375])

"""Reading between the points of a grid: all ways of reading say the same, and what numpy says within the grid."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipewave.simulate.step_grids import (
    ROW_SPANS,
    at_every_count,
    at_every_number,
    reader,
    shares,
    spaced,
)

GRID = [16.0, 32.0, 64.0, 256.0]
values = st.lists(st.floats(0, 1e6), min_size=len(GRID), max_size=len(GRID))


@given(values, st.floats(0, 1024))
def test_all_ways_of_reading_say_the_same(first: list[float], at: float) -> None:
    once = sum(share * first[index] for index, share in shares(GRID, at))  # as steps with prompts are read
    often = reader(GRID, first)
    assert often.at(at) == often.each(np.array([at]))[0] == pytest.approx(once, rel=1e-9, abs=1e-6)
    if at <= GRID[-1]:
        assert once == pytest.approx(np.interp(at, GRID, first), rel=1e-9, abs=1e-6)


def test_beyond_the_grid_the_last_segment_goes_on_and_one_point_holds_everywhere() -> None:
    assert reader(GRID, [0.0, 0.0, 64.0, 256.0]).at(512.0) == pytest.approx(512.0)
    assert reader([7.0], [3.0]).at(99.0) == 3.0
    assert shares([1, 4, 9], 4) == ((1, 1.0),)
    assert shares([1, 4, 9], 14) == ((1, -1.0), (2, 2.0))
    assert shares([5], 99) == shares([5, 6], 3) == ((0, 1.0),)


def test_every_number_and_every_count_keep_the_points() -> None:
    numbers = at_every_number([1, 3], np.array([10.0, 30.0]))
    assert [numbers[n] for n in range(4)] == [10.0, 10.0, 20.0, 30.0]
    assert [*numbers] == [0, 1, 2, 3], "what was asked for is kept"
    table = at_every_count([1, 3], GRID[:2], np.array([1.0, 2.0, 3.0, 6.0]))
    assert [table[n] for n in range(4)] == [[1.0, 2.0], [1.0, 2.0], [2.0, 4.0], [3.0, 6.0]]


@pytest.mark.parametrize("most", [1, 7, 8, 300, 5000])
def test_a_grid_of_rows_rises_to_its_last(most: int) -> None:
    grid = spaced(ROW_SPANS, most)
    assert grid[-1] == most
    assert all(low < high for low, high in pairwise(grid))

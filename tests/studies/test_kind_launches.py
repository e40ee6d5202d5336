"""What a launch may cost, by prompts that wait for launches."""

from __future__ import annotations

import numpy as np
import pytest

from pipewave.step import find_engine
from studies.e2e_steps import measure_loads
from studies.kind_launches import COSTS, errors, possible
from studies.kinds import points, runner_of
from train.step_fit import RANGES


def test_the_cost_that_every_model_shows_is_found() -> None:
    """Models whose prompts are off by as much as the cost is: nothing but the true one, to the grid, is possible."""
    off = np.abs(COSTS / 40.0 - 1.0) + np.linspace(0.0, 0.05, 7)[:, None]
    least, most, best = possible(off)
    assert least == best == most == pytest.approx(40.0, rel=0.05)


def test_models_that_disagree_leave_a_range() -> None:
    off = np.abs(COSTS / np.linspace(30.0, 60.0, 7)[:, None] - 1.0)
    least, most, best = possible(off)
    assert 30.0 < least < best < most < 60.0


def test_fits_keep_to_the_range_that_the_rows_allow() -> None:
    least, most, _ = possible(errors(measure_loads(points(), runner_of)))
    assert RANGES["launch_us"] == pytest.approx((least, most), abs=0.5)
    assert least < find_engine("vllm").host.launch_us < most

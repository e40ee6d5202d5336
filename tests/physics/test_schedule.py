"""Closed forms against exact simulations."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pipewave.physics import waves as schedule

COSTS = st.lists(st.floats(0.01, 100.0), min_size=1, max_size=60)
SLOTS = st.integers(1, 20)


@given(COSTS, SLOTS)
def test_every_schedule_lies_between_the_bounds(costs: list[float], slots: int) -> None:
    low = float(schedule.makespan_floor(sum(costs), max(costs), slots))
    high = float(schedule.makespan_bound(sum(costs), max(costs), slots))
    for run in (schedule.round_robin, schedule.longest_first):
        assert low * (1 - 1e-9) <= run(costs, slots) <= high * (1 + 1e-9)
    assert schedule.persistent(costs, slots) >= low * (1 - 1e-9)


@given(st.integers(1, 500), SLOTS)
def test_equal_tasks_run_in_waves(tasks: int, slots: int) -> None:
    wanted = float(schedule.waves(tasks, slots))
    for run in (schedule.round_robin, schedule.longest_first, schedule.persistent):
        assert np.isclose(run([1.0] * tasks, slots), wanted)
    assert np.isclose(schedule.wave_efficiency(tasks, slots) * wanted * slots, tasks)

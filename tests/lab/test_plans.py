"""The plans that the package holds are those that `lab.plans` draws."""

from __future__ import annotations

import pytest

from lab.plans.built_in import SIZES, SOURCES, drawn
from pipewave.measure import plan
from tests.sampled import sampled


@pytest.mark.parametrize("name", sampled(SIZES, 1))
def test_packaged_plans_are_the_drawn_ones(name: str) -> None:
    assert [job.key for job in plan.built_in(name)] == [job.key for job in drawn(name)]


def test_streams_of_families_are_their_own() -> None:
    streams = {one.family: one.stream for one in SOURCES}
    assert len(set(streams.values())) == len(streams)

"""What a front end adds in closed form, against exact mean value analysis and its limits; prompts that steps meet."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipewave.planning.arrivals import CASES, Entrance, Groups, come, rest_s, share_met
from pipewave.software.front import INSIDE, Front

SHARED = st.floats(1e-4, 0.2)


def exact(work: float, elsewhere: float, held: int) -> float:
    """Mean time at one exponential server of a closed loop, by the recursion over the number of clients."""
    there, took = 0.0, work
    for clients in range(1, held + 1):
        took = work * (1.0 + there)
        there = clients * took / (took + elsewhere)
    return took


@given(SHARED, st.floats(1e-3, 10.0), st.integers(1, 300))
def test_the_queue_is_that_of_exact_mean_value_analysis(work: float, elsewhere: float, held: int) -> None:
    entrance = Entrance(Front(request_us=1e6 * work), 1)
    found = float(entrance.seconds(np.array([elsewhere]), np.array([float(held)]))[0])
    # Schweitzer's step from N − 1 to N clients is known to be worst where queue and delay balance.
    assert found == pytest.approx(exact(work, elsewhere, held), rel=0.25)
    assert work <= found * (1 + 1e-9) <= held * work * (1 + 1e-9) + 1e-9


def test_limits_of_the_queue() -> None:
    entrance = Entrance(Front(request_us=2000.0, token_us=1.0, transit_us=10_000.0), 1000)
    one, many = (float(entrance.seconds(np.array([1.0]), np.array([n]))[0]) for n in (1.0, 1e5))
    assert one == pytest.approx(0.013, rel=1e-2)  # alone: its own work and its way
    assert many == pytest.approx(1e5 * 0.003 - 1.0, rel=1e-2)  # saturated: as many as it can serve
    assert Entrance(INSIDE, 1000).seconds(np.array([1.0]), np.array([64.0]))[0] == 0.0


@given(st.floats(0.01, 3.0), SHARED, st.floats(1.0, 20.0), st.floats(0.0, 1.0), st.booleans())
def test_prompts_met_are_those_that_come(rate: float, decode: float, ratio: float, late: float, mixes: bool) -> None:
    share = float(share_met(np.array([rate]), np.array([decode]), np.array([ratio * decode]), late, mixes=mixes)[0])
    assert 0.0 < share <= (min(rate, 1.0) if mixes else rate) + 1e-9


def test_successors_that_come_at_once_are_as_many_in_every_step() -> None:
    rate, decode, prompts = np.array([0.25]), np.array([0.02]), np.array([0.2])
    at_once, at_random = (float(share_met(rate, decode, prompts, late, mixes=True)[0]) for late in (0.0, 1e3))
    assert at_once == pytest.approx(1 - np.exp(-0.25), rel=1e-6)
    assert at_random < at_once  # more of them come during a long step, and then share the next


@pytest.mark.parametrize("late", [1e-3, 0.02, 0.5, 50.0])
def test_the_rest_of_a_step_is_that_of_drawn_successors(late: float) -> None:
    """Steps of 10 or 100 ms, at random; successors set out at a step's begin and come an exponential time later."""
    rng = np.random.default_rng(0)
    steps = rng.choice([0.01, 0.1], 400_000)
    ends = np.cumsum(steps)
    begun = np.concatenate(([0.0], ends[:-1]))[:20_000]
    came = begun + rng.exponential(late, len(begun))
    inside = came < ends[-1]
    drawn = (ends[np.searchsorted(ends, came[inside])] - came[inside]).mean()
    both = np.array([0.01, 0.1])
    assert rest_s(both, late).sum() / come(both, late).sum() == pytest.approx(drawn, rel=0.03)


def drawn_share(rate: float, decode: float, prompts: float, late: float, *, mixes: bool) -> float:
    """Steps that meet prompts a decode step (of all steps where prompts ride along), drawn one by one."""
    rng, now, under_way, met, without = np.random.default_rng(0), 0.0, np.empty(0), 0, 0
    came = 0
    for _ in range(40_000):
        meets = came > 0
        met, without = met + meets, without + (not meets)
        now += prompts if meets else decode
        came = int((under_way <= now).sum())
        under_way = under_way[under_way > now]
        if mixes or not meets:
            under_way = np.append(under_way, now + rng.exponential(late, rng.poisson(rate)))
    return met / (met + without) if mixes else met / without


@pytest.mark.parametrize("mixes", [False, True])
@pytest.mark.parametrize(("rate", "ratio", "late"), [(0.25, 12.0, 0.036), (0.25, 3.0, 0.015), (0.8, 5.0, 0.036)])
def test_steps_that_meet_prompts_are_as_many_as_drawn(rate: float, ratio: float, late: float, mixes: bool) -> None:
    parts = (np.array([rate]), np.array([0.007]), np.array([0.007 * ratio]), late)
    drawn = drawn_share(rate, 0.007, 0.007 * ratio, late, mixes=mixes)
    assert float(share_met(*parts, mixes=mixes)[0]) == pytest.approx(drawn, rel=0.05)


@pytest.mark.parametrize("rates", [[0.01], [0.3, 40.0], [2.0, 5_000.0]])
def test_prompts_that_come_together_are_quantiles_of_poisson_counts(rates: list[float]) -> None:
    found = Groups.at(np.array(rates))
    for i, rate in enumerate(rates):
        none, total, count, counts = math.exp(-rate), 0.0, -1, []
        for case in range(CASES):
            wanted = 1.0 - (1.0 - none) * (1.0 - (case + 0.5) / CASES)
            while total < wanted:
                count += 1
                total += math.exp(count * math.log(rate) - rate - math.lgamma(count + 1))
            counts.append(max(count, 1))
        mean = rate / -math.expm1(-rate)
        np.testing.assert_allclose(found.prompts[:, i], np.array(counts) * mean / np.mean(counts), rtol=1e-9)

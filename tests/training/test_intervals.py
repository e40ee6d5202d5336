"""Intervals and ceilings: they cover what they promise on rows of known noise, and are chosen for being narrow."""

from __future__ import annotations

import numpy as np
import pytest
from synthetic import synthetic

from pipewave.estimator import BASES, Interval, half_width, intervals_of
from train import ceilings
from train.intervals import Held, calibrated
from train.splits import by_name, expand

DATA = synthetic()


def held(error: np.ndarray, scale: np.ndarray, basis: int) -> Held:
    codes = np.zeros(len(error), np.int64)
    return Held(np.arange(len(error)), np.abs(error), scale, codes, codes + basis)


@pytest.mark.parametrize("true_power", [0.0, 0.5, 1.0])
def test_the_power_found_is_the_one_errors_follow(true_power: float) -> None:
    rng = np.random.default_rng(0)
    scale = np.exp(rng.normal(-3, 1.2, 4000))
    error = 0.2 * scale**true_power * rng.standard_normal(4000)
    found = calibrated([held(error, scale, 0)])["measured_gpu"]
    assert abs(found.power - true_power) <= 0.25
    assert np.mean(np.abs(error) <= found(scale)) == pytest.approx(0.9, abs=0.01)


def test_intervals_never_shrink_on_less_familiar_ground() -> None:
    rng = np.random.default_rng(1)
    scale = np.exp(rng.normal(-3, 1, 3000))
    parts = [held(factor * scale * rng.standard_normal(3000), scale, basis) for basis, factor in enumerate((1, 0.2, 3))]
    found = calibrated(parts)
    widths = np.array([half_width(intervals_of(found, basis), scale) for basis in BASES])
    assert (np.diff(widths, axis=0) >= 0).all()
    assert np.mean(parts[2].error <= widths[2]) == pytest.approx(0.9, abs=0.01)


def test_a_basis_without_rows_borrows_and_nothing_comes_of_nothing() -> None:
    scale = np.full(100, 0.1)
    found = calibrated([held(scale, scale, 0)])
    assert found["new_architecture"] == found["measured_gpu"]
    assert calibrated([]) == {}


def test_half_width_is_a_multiple_of_a_power() -> None:
    assert Interval(2.0, 0.5)(np.array([0.04, 0.25])) == pytest.approx([0.4, 1.0])


def test_a_protocol_may_have_an_interval_of_its_own() -> None:
    known = {"measured_gpu": Interval(1.0), "measured_gpu|cold": Interval(2.0), "same_architecture": Interval(1.5)}
    scale = np.array([0.1])
    assert half_width(intervals_of(known, "measured_gpu", "cold"), scale) == pytest.approx([0.2])
    assert half_width(intervals_of(known, "measured_gpu", "graph"), scale) == pytest.approx([0.1])
    assert half_width(intervals_of(known, "same_architecture", "cold"), scale) == pytest.approx([0.2])


def test_shifted_ceilings_leave_four_rows_in_five_slower() -> None:
    rng = np.random.default_rng(2)
    predictions = {}
    for name in expand(["fold:*"], DATA):
        index = by_name(name, DATA).score
        off = 0.3 * rng.standard_normal(len(index)) + 0.5  # a net that misses its quantile by far
        predictions[name] = (DATA.residual[index] + off, np.ones(len(index)))
    shares = [share for _, share in ceilings.slower(DATA, predictions).values()]
    assert np.mean(shares) == pytest.approx(80, abs=2)


def test_a_card_s_shifts_do_not_see_the_fold_it_is_scored_on() -> None:
    predictions = {}
    for name in expand(["fold:*"], DATA):
        index = by_name(name, DATA).score
        predictions[name] = (DATA.residual[index] + (9.0 if name == ceilings.UNSEEN else 0.0), np.ones(len(index)))
    assert ceilings.shipped_shifts(DATA, predictions)["graph"] == pytest.approx(0.0, abs=1e-6)

"""Launches that look alike to the hardware: what sizes do not tell is learned from how a grid fills the card."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pipewave.tune.law.anchors import Anchors, Floats, peaks_of
from pipewave.tune.law.gp_correction import MOST_ROWS, NEAR, learned, marks, rows_of
from pipewave.tune.law.model import fit
from pipewave.tune.law.smooth import Smoother

H200 = peaks_of("NVIDIA H200")
CONFIG = {"BLOCK": np.array([64, 128])}
RESIDENT = np.array([4, 2])
SCALE = Smoother(np.zeros(2), np.ones(2), 1.5, np.zeros((0, 2)), np.zeros((0, 2)))


def launches(count: int, seed: int) -> Anchors:
    """Products of drawn sizes on which one SM with its slots full in the last wave is slow by a fifth."""
    rng = np.random.default_rng(seed)
    at = np.rint(np.exp(rng.uniform(np.log(256), np.log(16_384), (count, 2))))
    blocks = np.stack([np.ceil(at[:, 0] / tile) * np.ceil(at[:, 1] / 128) for tile in (64, 128)], axis=1)
    one, moved = np.ones_like(blocks), blocks * 65_536
    counts = np.stack([blocks, 16 * one, 16 * one, 0.5 * moved, moved, 0 * one], axis=-1)
    busiest = np.ceil(blocks / 132)
    full = blocks / (132 * RESIDENT * np.ceil(busiest / RESIDENT))
    us = (
        (5 + busiest * np.array([2.0, 3.9])) * np.where(full > 0.9, 1.2, 1.0) * np.exp(rng.normal(0, 0.005, (count, 2)))
    )
    return Anchors(at, counts, us, CONFIG, RESIDENT)


def error(some: Floats, other: Floats) -> float:
    return float(np.abs(np.log(some / other)).mean())


def test_how_a_wave_fills_is_learned() -> None:
    anchors, test = launches(60, 1), launches(60, 2)
    made = fit(anchors, H200)
    assert made.gp_correction is not None
    with_it, without = (
        error(one.us(test.counts, test.logs), test.us) for one in (made, replace(made, gp_correction=None))
    )
    assert with_it < 0.8 * without


def test_few_launches_leave_it_out_and_more_let_it_in() -> None:
    assert fit(launches(10, 1), H200).gp_correction is None
    some = fit(launches(12, 1), H200)
    test = launches(20, 2)
    moved = np.abs(
        np.log(some.us(test.counts, test.logs) / replace(some, gp_correction=None).us(test.counts, test.logs))
    )
    assert 0 < moved.max() < 0.1


def test_what_is_far_from_the_best_is_not_corrected() -> None:
    anchors, test = launches(60, 1), launches(20, 2)
    slow = replace(anchors, us=anchors.us * np.array([1.0, 5 * NEAR]))
    made = fit(slow, H200)
    with_it, without = (np.log(one.us(test.counts, test.logs)) for one in (made, replace(made, gp_correction=None)))
    np.testing.assert_array_equal(with_it[:, 1], without[:, 1])
    assert np.abs(with_it[:, 0] - without[:, 0]).max() > 0


def test_marks_tell_one_block_more_than_the_card_has_slots() -> None:
    one = np.array([[132.0, 4, 4, 1e6, 2e6, 0], [133.0, 4, 4, 1e6, 2e6, 0]])[:, None]
    full, more = marks(one, np.array([1]), H200)[:, 0]
    assert more[0] - full[0] == 1
    assert full[2] == 2 * more[2] * 132 / 133
    assert more[3] - full[3] == 1


def test_rows_are_as_many_as_a_fit_can_bear_and_unmeasured_ones_none() -> None:
    many = launches(MOST_ROWS, 3)
    us = many.us.copy()
    us[0, 0] = np.nan
    made = learned(replace(many, us=us), H200, many.us, SCALE)
    assert len(made.weights) <= MOST_ROWS
    assert np.isfinite(made.weights).all()


def phased(count: int, seed: int) -> Anchors:
    """Those launches, an eighth slower for each time that the second size divides by two less often than by eight."""
    some = launches(count, seed)
    times = np.random.default_rng(seed).integers(0, 4, count)
    odd = 64 * (2 * np.rint(some.at[:, 1] / 128) + 1)
    at = np.stack([some.at[:, 0], odd * 2.0**times], axis=1)
    return replace(some, at=at, us=some.us * (1.0 + 0.125 * (3 - times))[:, None])


def test_how_often_a_size_divides_by_two_is_learned_where_it_tells() -> None:
    anchors, test = phased(100, 1), phased(60, 2)
    made = fit(anchors, H200)
    assert made.gp_correction is not None
    assert made.gp_correction.twos.tolist() == [0.0, 6.0]
    assert error(made.us(test.counts, test.logs), test.us) < 0.05
    plain = fit(launches(100, 1), H200).gp_correction
    assert plain is not None
    assert plain.twos.size == 0


def test_a_configuration_that_is_never_among_the_fastest_is_learned_from_where_it_is_expected_to_be() -> None:
    us = np.array([[1.0, 1.1, 1.2, 1.5]])
    wide = np.repeat(us, MOST_ROWS // 2, axis=0)
    last = np.array([[1.0, 1.1, 1.2, 0.9]]).repeat(len(wide), axis=0)
    assert set(rows_of(wide, wide)[1].tolist()) == {0, 1}
    assert set(rows_of(wide, last)[1].tolist()) == {0, 1, 3}

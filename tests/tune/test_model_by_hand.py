"""Predictions put together from parts that a pencil can work out, and one small fit that is kept as it was."""

from __future__ import annotations

from dataclasses import replace
from math import exp, log, log2
from typing import Any

import numpy as np
import pytest

from pipewave.tune.law import gp_correction as gp
from pipewave.tune.law.anchors import Anchors, Peaks, columns, peaks_of
from pipewave.tune.law.margin import Base, bases, decided, folds, with_margin
from pipewave.tune.law.model import (
    SIGMA,
    UNJUDGED,
    USUAL,
    Model,
    Pooled,
    PooledPrediction,
    fit,
    moved,
    physics_us,
    pooled,
    pooled_terms,
    ratios,
)
from pipewave.tune.law.smooth import SETTINGS, Smoother, alike, kernel, soft_regret, spread
from pipewave.tune.law.wave import TERMS
from pipewave.tune.law.wave import fit as fit_law

SMALL = Peaks("small", sms=10, sm_flops_us=100.0, sm_bytes_us=50.0, bytes_us=200.0)
COUNTS = np.array([[[25.0, 4.0, 6.0, 1000.0, 3000.0, 50_000.0]]])  # three blocks on the busiest SM, two at once
ONE = np.zeros((1, 1))


def constant(us: Any, **more: Any) -> Model:
    """A model whose laws are a launch time alone, the same at every launch."""
    law = np.zeros((len(us), len(TERMS)))
    law[:, 0] = us
    return Model(SMALL, np.full(len(us), 2), law, (), np.zeros(len(us)), **{"margin": 0.0, "launches": 20} | more)


def flat(log_factor: float, configs: int) -> Smoother:
    """A correction that is the same at the one size where it is asked."""
    return Smoother(np.zeros(1), np.ones(1), 1.0, ONE, np.full((1, configs), log_factor))


def at_one_launch(model: Model) -> list[float]:
    counts = np.repeat(COUNTS, len(model.sigma), axis=1)
    return [float(us) for us in model.us(counts, ONE)[0]]


def test_terms_of_the_pooled_law_and_its_usual_price() -> None:
    found = pooled_terms(COUNTS, np.array([2]), SMALL)[0, 0].tolist()
    assert found == pytest.approx([1, 6, 2 * 4, 3 * 20, 3 * 2.4, 50, 6, 5])
    ahead = pooled_terms(np.repeat(COUNTS, 2, axis=1), np.array([2, 2]), SMALL, np.array([1.0, 3.0]))[0]
    assert ahead[0].tolist() == found and ahead[1].tolist() == pytest.approx([1, 2, *found[2:]])
    priced = 2.5 + 6 * 0.25 + 8 * 0.1 + 60 * 1.2 + 7.2 * 0.3 + 50 * 0.2 + 6 * 0.1 + 5 * 1.15
    assert physics_us(COUNTS, np.array([2]), SMALL).item() == pytest.approx(priced)


def test_a_chain_of_trips_is_shorter_the_more_are_loaded_ahead() -> None:
    """One configuration loads a trip ahead, the other three: nothing else tells their times apart, nor is it said to."""
    counts = np.repeat(COUNTS, 2, axis=1) * np.array([0.04, 1.0, 1.0, 0.0, 0.0, 0.0])
    counts, held = np.concatenate([counts * [1, trips, trips, 1, 1, 1] for trips in (1, 2, 3)]), np.array([1, 1])
    us = pooled_terms(counts, held, SMALL, np.array([1.0, 3.0])) @ USUAL
    made = pooled(Anchors(np.ones((3, 1)), counts, us, {"num_stages": np.array([2, 4])}, held), SMALL)
    assert made.offset == pytest.approx([0.0, 0.0], abs=1e-3)
    assert made.us(counts, held) == pytest.approx(us, rel=1e-3)


def test_a_gpu_as_laws_see_it_is_that_of_its_data_sheet() -> None:
    h200, unknown = peaks_of("NVIDIA H200"), peaks_of("a GPU that nobody knows", 7)
    assert (h200.sms, h200.smem_bytes, h200.registers, h200.threads) == (132, 228 * 1024, 65_536, 2_048)
    assert h200.sm_flops_us == pytest.approx(4096 * 1980, rel=1e-3)  # FLOPs of bf16 a clock, MHz
    assert h200.bytes_us == pytest.approx(4.8e6, rel=0.03)
    assert 2.0 < h200.sm_bytes_us * 132 / h200.bytes_us < 5.0
    assert (unknown.gpu, unknown.sms) == ("a GPU that nobody knows", 7)
    assert unknown.sm_flops_us == pytest.approx(h200.sm_flops_us)


def test_parameters_are_columns_and_words_count_by_their_first_use() -> None:
    found = columns([{"BLOCK": 16, "order": "row"}, {"BLOCK": 32, "order": "column"}, {"order": "row", "flag": True}])
    assert {name: column.tolist() for name, column in found.items()} == {
        "BLOCK": [16, 32, 0], "order": [1, 2, 1], "flag": [0, 0, 1]}  # fmt: skip


def test_launches_are_taken_with_their_own_binaries() -> None:
    held = np.array([[1, 4], [3, 4], [3, 8]])
    some = Anchors(np.array([[1.0], [2.0], [0.0]]), np.ones((3, 2, 6)), np.ones((3, 2)), {}, held)
    assert some.usual.tolist() == [3, 4] and some.take(np.array([2, 0])).resident.tolist() == [[3, 8], [1, 4]]
    assert some.take(np.array([], np.int64)).resident.tolist() == [3, 4]
    assert some.logs.ravel().tolist() == [0.0, log(2), 0.0]


def test_predictions_are_means_of_logarithms() -> None:
    assert at_one_launch(constant([8.0])) == pytest.approx([8])
    smooth = constant([8.0, 8.0])
    assert at_one_launch(replace(smooth, smooth=(flat(0.5, 2), flat(0.25, 2)))) == pytest.approx([8 * exp(0.75)] * 2)
    pool = Pooled(SMALL, np.eye(8)[0] * 2.0, np.log([1.0, 4.0]))  # 2 µs a launch, the second four times as slow
    beside = PooledPrediction(pool, flat(log(3), 2), 0.25)
    assert at_one_launch(replace(smooth, beside=beside)) == pytest.approx([8**0.75 * 6**0.25, 8**0.75 * 24**0.25])
    # Another GPU's model counts as 20 launches: half where 20 were measured, four fifths where 5 were.
    assert at_one_launch(constant([8.0], there=constant([2.0]))) == pytest.approx([4])
    assert at_one_launch(constant([8.0], there=constant([2.0]), launches=5)) == pytest.approx([8**0.2 * 2**0.8])


def corrected(us: list[float], launches: int, level: float = 1.0) -> list[float]:
    """Log changes that launches alike make, all of one level."""
    none, at = np.zeros((0, 1)), np.zeros(0, np.int64)
    of = gp.GpCorrection(np.zeros(1), np.ones(1), np.eye(len(us)), none, np.zeros((0, 9)), at, np.zeros(0), level,
                         np.zeros(0))  # fmt: skip
    found = at_one_launch(constant(us, gp_correction=of, launches=launches))
    return np.log(np.array(found) / us).tolist()


def test_launches_alike_correct_what_is_near_the_best() -> None:
    assert corrected([1.0, 1.9, 2.1], 30) == pytest.approx([0.5, 0.5, 0.0])  # half way from 10 launches to 50
    assert corrected([1.0, 1.9], 15) == pytest.approx([0.125, 0.125])
    assert corrected([1.0, 1.9], 50) == corrected([1.0, 1.9], 90) == pytest.approx([1.0, 1.0])
    many = [1.0 + 0.01 * place for place in range(14)]
    assert corrected(many, 50) == pytest.approx([1.0] * 12 + [0.0] * 2)


def test_what_was_corrected_before_stays_before_launches_alike_are_asked() -> None:
    """The last correction over sizes is left to them, those of another GPU are not."""
    of = gp.GpCorrection(np.zeros(1), np.ones(1), np.eye(1), np.zeros((0, 1)), np.zeros((0, 9)), np.zeros(0, np.int64),
                         np.zeros(0), 0.5, np.zeros(0))  # fmt: skip
    made = constant([8.0], gp_correction=of, launches=50)
    assert at_one_launch(replace(made, smooth=(flat(0.25, 1), flat(3.0, 1)))) == pytest.approx([8 * exp(0.75)])


def test_choices_go_by_a_sigma_up_and_leave_the_base_for_a_margin() -> None:
    made = replace(constant([8.0, 4.0]), sigma=np.array([0.5, 0.25]), margin=0.125)
    counts = np.repeat(COUNTS, 2, axis=1)
    assert made.ranked(counts, ONE, np.array([1]))[0].tolist() == pytest.approx([log(8) + 0.5, log(4) + 0.125])
    based = replace(made, base=Base(ONE, np.array([0])))
    assert based.ranked(counts, ONE, np.array([1]))[0].tolist() == pytest.approx([log(8) + 0.375, log(4) + 0.25])


def test_a_law_on_another_gpu_goes_by_its_peaks_and_is_half_as_sure() -> None:
    other = Peaks("other", sms=20, sm_flops_us=400.0, sm_bytes_us=100.0, bytes_us=1000.0)
    by = dict(zip(TERMS, ratios(SMALL, other).tolist(), strict=True))
    assert (by["memory"], by["launch"], by["l2"]) == (0.2, 1.0, 0.25)
    assert {value for name, value in by.items() if name not in ("memory", "launch", "l2")} == {0.25}
    pool = PooledPrediction(Pooled(SMALL, np.ones(8), np.zeros(1)), flat(0.0, 1), 0.5)
    made = replace(constant([8.0], beside=pool, margin=0.125), sigma=np.array([0.25]))
    there = moved(made, other)
    assert there.law[0, 0] == 8.0 and (there.sigma.item(), there.margin) == (0.5, 0.25)
    assert there.peaks == other and there.beside is not None and there.beside.pooled.peaks == other
    assert moved(constant([8.0]), other).beside is None


def spread_anchors(count: int, times: Any) -> Anchors:
    counts = np.repeat(np.geomspace(8, 3000, count)[:, None, None] * np.array([1.0, 0, 0, 200, 600, 1e4]), 2, axis=1)
    counts[..., 1:3] = 4.0, 6.0
    us = physics_us(counts, np.array([2, 2]), SMALL) * times
    return Anchors(counts[:, 0, :1], counts, us, {"BLOCK": np.array([16, 64])}, np.array([2, 2]))


def test_a_configuration_is_as_much_slower_than_the_pooled_law_as_few_launches_tell() -> None:
    made = pooled(spread_anchors(4, np.array([1.0, 2.0])), SMALL)
    assert made.offset[1] - made.offset[0] == pytest.approx(0.8 * log(2))  # one launch more says that all are alike
    some = spread_anchors(4, np.array([[1.0, 2.0]] * 3 + [[1.0, np.nan]]))
    assert np.isfinite(pooled(some, SMALL).offset).all()


@pytest.mark.parametrize(
    ("count", "parts"), [(5, (0, False, False)), (6, (1, True, False)), (10, (1, True, False)), (11, (1, True, True))]
)
def test_what_is_fitted_grows_with_launches(count: int, parts: tuple[int, bool, bool]) -> None:
    made = fit(spread_anchors(count, np.array([1.0, 1.3])), SMALL)
    assert (len(made.smooth), made.beside is not None, made.gp_correction is not None) == parts
    assert made.launches == count
    if count == 5:
        assert made.sigma.tolist() == [SIGMA, SIGMA] and made.margin == UNJUDGED
    counts = spread_anchors(9, 1.0).counts
    us = made.us(counts, np.log(counts[:, 0, :1]))
    assert us[:, 1] / us[:, 0] == pytest.approx(1.3, rel=0.03)


def test_a_small_fit_is_what_it_was() -> None:
    """24 made-up launches of two configurations: every constant of the fit moves these predictions, as it may on
    purpose only. They were printed by the code of 29 November 2026.
    """
    rng = np.random.default_rng(3)
    some = spread_anchors(24, np.exp(rng.normal(0, 0.08, (24, 2)) + np.linspace(0, 0.5, 24)[:, None] * [1.0, -1.0]))
    wide = replace(some, at=np.stack([some.at[:, 0], rng.integers(1, 9, 24) * 64.0], axis=1))
    counts, logs = some.counts[[1, 9, 20]] * 1.1, wide.logs[[2, 8, 21]]
    for count, wanted in (
        (7, [0.05, 0.059482, 0.0520155, 325.987, 265.962, 1751.39, 1165.73, 28210.5, 17947.7]),
        (12, [0.02, 0.0460859, 0.0380541, 280.903, 285.285, 1799.54, 1223.83, 30578.2, 17362.3]),
        (24, [0.02, 0.0774433, 0.0578924, 302.84, 289.692, 1797.69, 1150.72, 30594.5, 15898.2]),
    ):
        made = fit(wide.take(np.arange(0, 24, 24 // count)[:count]), SMALL, some.counts[::3])
        assert [made.margin, *made.sigma, *made.us(counts, logs).ravel()] == pytest.approx(wanted, rel=1e-5)
    carried = fit(wide.take(np.arange(0, 24, 4)), SMALL, there=moved(made, SMALL))
    assert carried.us(counts, logs).ravel().tolist() == pytest.approx(
        [227.279, 250.219, 1794.2, 1149.19, 31835.4, 16331.1], rel=1e-5
    )


def test_a_gpu_on_which_nothing_was_measured_answers_as_the_other_one_is_expected_to() -> None:
    other, asked = fit(spread_anchors(24, np.array([1.0, 1.3])), SMALL), spread_anchors(9, 1.0)
    none = asked.take(np.zeros(0, np.int64))
    made = fit(none, SMALL, asked.counts, there=other)
    assert made.launches == 0 and made.sigma.tolist() == [SIGMA, SIGMA]
    assert made.us(asked.counts, asked.logs) == pytest.approx(other.us(asked.counts, asked.logs), rel=0.02)


def test_laws_of_several_parts_count_by_their_weights() -> None:
    """A launch time alone, told as 1 µs and, twice as surely, as 4: relative errors 1·(t − 1)² + 4·(t/4 − 1)²."""
    x = np.zeros((1, 1, len(TERMS)))
    x[..., 0] = 1.0
    law = fit_law([(x, np.array([[1.0]]), 1.0), (x, np.array([[4.0]]), 2.0)])
    assert law[0, 0] == pytest.approx((1 + 4 / 4) / (1 + 4 / 16))


def test_a_covariance_is_a_gaussian_of_distance() -> None:
    here, away = np.array([[0.0, 0.0]]), np.array([[3.0, 4.0], [0.0, 0.0]])
    assert kernel(here, away, 2.0)[0].tolist() == pytest.approx([exp(-0.5 * 25 / 4), 1])
    assert gp._near_32(here, away, 2.0)[0].tolist() == pytest.approx([exp(-0.5 * 25 / 4), 1], rel=1e-5)
    found = alike({"BLOCK": np.array([16, 64])}, reach=1.0, near=0.5, own=0.25).matrix  # two octaves apart
    assert found.tolist() == [pytest.approx([1.75, 1 + 0.5 * exp(-2)]), pytest.approx([1 + 0.5 * exp(-2), 1.75])]
    assert len(SETTINGS) == 60 and {each.length for each in SETTINGS} == {1.0, 1.5, 2.0, 3.0}


def test_regret_is_shared_by_those_predicted_near_the_best() -> None:
    us = np.array([[1.0, 1.5]])
    assert soft_regret(us, np.zeros((1, 2))) == pytest.approx(0, abs=1e-9)
    assert soft_regret(us, np.log([[1.0, 1.5]])) == pytest.approx(0.25)  # predicted alike
    assert soft_regret(us, np.log([[1.0, 1.5]]) - np.array([[0.0, -1.0]])) == pytest.approx(0.5)
    share = exp(-1) / (1 + exp(-1))  # one step of 0.015 slower
    assert soft_regret(us, np.log([[1.0, 1.5]]) - [[0.0, 0.015]]) == pytest.approx(0.5 * share)


def test_spread_is_of_what_moves_choices() -> None:
    us = np.array([[1.0, 1.1, 1.2, 1.6]] * 5)
    left = np.array([[0.5, 0.6, 0.4, 9.0]] * 5)  # all share 0.5 at a shape; the last is too slow to matter
    every = (0.02 / 3) ** 0.5
    usual = [(10 * every**2 / 15) ** 0.5, ((5 * 0.01 + 10 * every**2) / 15) ** 0.5]
    assert spread(us, left).tolist() == pytest.approx([usual[0], usual[1], usual[1], every])


def test_marks_of_a_launch() -> None:
    counts = np.array([[[25.0, 16.0, 64.0, 1e6, 4e6, 0.0]]])
    found = gp.marks(counts, np.array([2]), SMALL)[0, 0].tolist()
    in_flight = 1e6 * 20 / 25
    assert found == pytest.approx([log2(3), 50 / 30, 50 / 40, 1, 1, 2, 4, 1, 0.5 * log2(in_flight)])
    none = gp.marks(np.zeros((1, 1, 6)), np.array([2]), SMALL)
    assert np.isfinite(none).all()


def test_divisions_by_two_count_beyond_those_that_all_share_and_up_to_four() -> None:
    logs = np.log([[8.0, 12.0], [7.0, 1024.0]])
    assert gp.divided(logs, np.array([1.0, 0.0])).tolist() == [[1, 1], [0, 2]]
    assert gp.divided(logs, np.zeros(0)).shape == (2, 0)


def test_a_launch_learned_from_counts_by_size_and_by_marks() -> None:
    of = gp.GpCorrection(np.array([1.0]), np.array([2.0]), np.array([[1.0, 0.5], [0.5, 1.0]]), np.array([[0.0]]),
                         np.zeros((1, 9)), np.array([0]), np.array([0.25]), 0.125, np.zeros(0))  # fmt: skip
    marks = np.zeros((3, 9))
    marks[2, 0] = 2.0  # one length away
    found = of.log_factor(np.array([[1.0], [4.0], [1.0]]), marks, np.array([0, 1, 0]))
    size = exp(-0.5)  # three halves of a spread: one length
    wanted = [0.125 + 0.25 * 2, 0.125 + 0.125 * (size + 1), 0.125 + 0.25 * (1 + exp(-0.5))]
    assert found.tolist() == pytest.approx(wanted, rel=1e-5)


def test_rows_to_learn_from_are_near_the_fastest_and_spread_over_all_launches() -> None:
    us = np.array([[1.0, 1.9, 2.1, np.nan]])
    assert [each.tolist() for each in gp.rows_of(us, us)] == [[0, 0], [0, 1]]
    many = np.tile([1.0, 1.1, 1.2], (700, 1))
    launch, config = gp.rows_of(many, many)
    assert len(launch) == 1200 and (launch[0], launch[-1]) == (0, 699) and set(config.tolist()) == {0, 1}


def test_bases_charge_what_was_not_timed() -> None:
    us = np.array([[1.0, 1.2, np.nan], [1.0, 1.2, 0.9], [1.0, 1.2, 0.9]])
    one, nearest = bases(np.log([[1.0], [2.0], [2.0]]), us)
    # 0.7 for the launch that the third was not timed at, against twice 0.105 for the first.
    assert one.best.tolist() == [0] and nearest.best.tolist() == [0, 2]
    again, _ = bases(np.log([[1.0], [2.0], [2.0]]), np.vstack([us[1:], us[1:2]]))
    assert again.best.tolist() == [2]
    _, both = bases(np.zeros((2, 1)), np.array([[1.0, 1.5], [1.2, 1.0]]))
    assert both.of(np.zeros((1, 1))).tolist() == [0]  # two launches of one size: 0.18 lost against 0.41


def test_a_margin_lowers_the_default_alone() -> None:
    assert with_margin(np.zeros((2, 3)), np.array([2, 0]), 0.5).tolist() == [[0, 0, -0.5], [-0.5, 0, 0]]
    assert [len(out) for out, _ in folds(12)] == [3, 3, 2, 2, 2]
    us = np.array([[1.0, 2.0]] * 30)
    assert decided(us, np.log(us), [np.zeros(30, np.int64)]) == (0, 0.02)

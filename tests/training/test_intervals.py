"""Intervals and ceilings: they cover what they promise on rows of known noise, and are chosen for being narrow."""

from __future__ import annotations

import numpy as np
import pytest
from synthetic import synthetic

from pipewave.calls.families import from_dict
from pipewave.measure.row_files import rows
from pipewave.nets.weights_metadata import AGAIN, BASES, Interval, half_width, intervals_of
from pipewave.prediction.api import predict
from studies import card_blind
from train import ceilings
from train.collected_again import LARGE, Again, settled
from train.intervals import ENOUGH_ROWS, Held, calibrated, informative
from train.intervals import held as held_of
from train.splits import by_name, expand
from train.two_levels import for_next_unit

DATA = synthetic()


def held(error: np.ndarray, scale: np.ndarray, basis: int, card: np.ndarray | int = 0, protocol: str = "graph") -> Held:
    cards = np.zeros(len(error), np.int64) + card
    told = np.full(len(error), protocol)
    return Held(np.arange(len(error)), np.abs(error), scale, cards, cards, told, np.full(len(error), basis))


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
    assert np.mean(parts[2].error <= widths[2]) >= 0.9


def test_a_basis_without_rows_borrows_and_nothing_comes_of_nothing() -> None:
    scale = np.full(100, 0.1)
    found = calibrated([held(scale, scale, 0)])
    assert found["new_architecture"] == found["measured_gpu"]
    assert calibrated([]) == {}


def test_every_protocol_is_covered_by_its_own_errors() -> None:
    rng = np.random.default_rng(3)
    scale = np.exp(rng.normal(-3, 1, 3000))
    noise = {"graph": 0.5, "cold": 1.0, "profiler_warm": 4.0}
    parts = [held(factor * scale * rng.standard_normal(3000), scale, 0, 0, name) for name, factor in noise.items()]
    found = calibrated(parts)
    for part, name in zip(parts, noise, strict=True):
        width = half_width(intervals_of(found, "measured_gpu", name), scale)
        assert np.mean(part.error <= width) == pytest.approx(0.9, abs=0.01)


def test_a_protocol_of_few_rows_shares_the_interval_of_all() -> None:
    scale = np.full(ENOUGH_ROWS, 0.1)
    found = calibrated([held(scale, scale, 0), held(scale[1:], scale[1:], 0, 0, "cold")])
    assert "measured_gpu|graph" in found
    assert "measured_gpu|cold" not in found


def test_a_card_that_nobody_saw_is_covered_though_cards_differ() -> None:
    """Cards are off by factors of their own: what covers 90 % of the rows of six covers less of a seventh's."""
    rng, inside, plain = np.random.default_rng(4), [], []
    scale = np.full(400, 0.1)
    for _ in range(60):
        errors = np.exp(rng.normal(0, 0.6, 7))[:, None] * scale * rng.standard_normal((7, 400))
        parts = [held(error, scale, 2, card) for card, error in enumerate(errors[:6])]
        inside.append(np.mean(np.abs(errors[6]) <= calibrated(parts)["new_architecture"](scale)))
        plain.append(np.mean(np.abs(errors[6]) <= np.quantile(np.abs(errors[:6]), 0.9)))
    assert np.mean(plain) < np.mean(inside) - 0.005
    assert 0.87 < np.mean(inside) < 0.93


def test_an_architecture_is_one_unit() -> None:
    """Its second card is no second witness."""
    split = by_name("lofo:hopper", DATA)
    part = held_of("lofo:hopper", np.zeros(len(split.score)), np.ones(len(split.score)), DATA)
    assert len(np.unique(part.gpu)) == 3 and len(np.unique(part.unit)) == 1


@pytest.mark.parametrize(("true_power", "least", "most"), [(0.0, 0.0, 0.25), (0.5, 0.5, 0.75), (1.0, 0.75, 1.0)])
def test_new_architectures_follow_the_scale_as_far_as_others_did(true_power: float, least: float, most: float) -> None:
    """Where errors of architectures that were left out follow no scale, all calls get about the same width."""
    rng = np.random.default_rng(6)
    scale = np.exp(rng.normal(-3, 1, 400))
    errors = scale**true_power * np.exp(rng.normal(0, 0.3, 4))[:, None] * rng.standard_normal((4, 400))
    found = calibrated([held(0.3 * error, scale, 2, unit) for unit, error in enumerate(errors)])
    assert least <= found["new_architecture"].power <= most


@pytest.mark.parametrize("units", [1, 2, 4, 8])
def test_the_next_unit_is_covered_however_few_there_are(units: int) -> None:
    rng, inside, plain = np.random.default_rng(7), [], []
    unit = np.repeat(np.arange(units), 100)
    for _ in range(200):
        errors = np.abs(np.exp(rng.normal(0, 0.25, units + 1))[:, None] * rng.standard_normal((units + 1, 100)))
        seen = errors[:units].ravel()
        inside.append(np.mean(errors[units] <= for_next_unit(seen, unit, np.ones(len(seen)), 0.9)))
        plain.append(np.mean(errors[units] <= np.quantile(seen, 0.9)))
    assert np.mean(inside) > np.mean(plain)
    assert 0.88 < np.mean(inside) < 0.94


def test_the_next_unit_may_lie_beyond_the_worst() -> None:
    """Four units that differ by a lot: nothing says that the fifth is none further off."""
    needed, unit = np.repeat([0.1, 0.2, 0.4, 0.8], 50), np.repeat(np.arange(4), 50)
    assert for_next_unit(needed, unit, np.ones(200), 0.9) > 0.8
    assert for_next_unit(needed, unit, np.ones(200), 0.5) < 0.4


def test_folds_say_nothing_about_gpus_that_were_left_out() -> None:
    scale = np.full(50, 0.1)
    parts = {"fold:1": held(scale, scale, 1), "fold:2": held(scale, scale, 0), "logo:H200": held(scale, scale, 1)}
    kept = informative(parts)
    assert len(kept) == 2
    assert [int(part.basis[0]) for part in kept] == [0, 1]


def test_half_width_is_a_multiple_of_a_power() -> None:
    assert Interval(2.0, 0.5)(np.array([0.04, 0.25])) == pytest.approx([0.4, 1.0])


def test_a_protocol_may_have_an_interval_of_its_own() -> None:
    known = {"measured_gpu": Interval(1.0), "measured_gpu|cold": Interval(2.0), "same_architecture": Interval(1.5)}
    scale = np.array([0.1])
    assert half_width(intervals_of(known, "measured_gpu", "cold"), scale) == pytest.approx([0.2])
    assert half_width(intervals_of(known, "measured_gpu", "graph"), scale) == pytest.approx([0.1])
    assert half_width(intervals_of(known, "same_architecture", "cold"), scale) == pytest.approx([0.2])
    known["measured_gpu|cold|vllm-0.22.1"] = Interval(3.0)
    for stack, width in (("vllm-0.22.1", 0.3), ("vllm-0.24.0", 0.2)):
        assert half_width(intervals_of(known, "measured_gpu", "cold", stack=stack), scale) == pytest.approx([width])


def test_small_and_large_messages_are_held_alike_on_the_next_host() -> None:
    """Small ones differ by the start of a program, large ones hardly do: more than the net's scale tells them apart."""
    rng = np.random.default_rng(5)
    large = np.arange(8000) % 4 == 0
    scale = np.where(large, 0.02, 0.05)
    error = np.abs(rng.standard_normal(8000)) * 40.0 * scale**1.75
    found = Again(error, scale, large, np.arange(8000) // 4 % 4)
    interval = settled(found)
    assert interval.power == 1.75
    inside = found.inside(interval)  # of hosts that are all alike, a little more than of the next
    assert inside["small"] == pytest.approx(92.0, abs=2.0) and inside["large"] == pytest.approx(92.0, abs=2.0)
    apart = Again(error * np.where(found.host == 0, 1.5, 1.0), scale, large, found.host)
    assert settled(apart).multiple > 1.1 * interval.multiple  # one host of four is off by more
    assert found.inside(Interval(6.95))["large"] > 99.0  # what holds small ones, as a multiple of the scale


def test_a_type_of_a_level_counts_without_the_level() -> None:
    known = {"measured_gpu": Interval(0.1, 0.0), "nearest_version": Interval(0.3, 0.0)}
    known |= {"other_framework|int4": Interval(0.9, 0.0)}
    half = [
        half_width(intervals_of(known, "measured_gpu", "", "other_framework", kind), 0.1) for kind in ("int4", "fp8")
    ]
    assert half == [0.9, 0.3]


def test_a_cold_call_on_a_new_architecture_is_no_more_certain_than_a_replay() -> None:
    known = {"measured_gpu": Interval(0.1, 0.0), "new_architecture": Interval(0.2, 0.0)}
    known |= {"new_architecture|cold": Interval(0.15, 0.0), "new_architecture|graph": Interval(0.4, 0.0)}
    assert half_width(intervals_of(known, "new_architecture", "cold"), 0.1) == 0.4
    assert half_width(intervals_of(known, "measured_gpu", "cold"), 0.1) == 0.1


def test_an_interval_grows_no_wider_than_the_least_certain_row_that_settled_it() -> None:
    """A call far less certain than all rows would get a factor of ten each way by a power law."""
    interval = Interval(50.0, 1.75, 0.25)
    assert interval(np.array([0.01, 0.03, 0.3])) == pytest.approx([50.0 * 0.01**1.75, 50.0 * 0.03**1.75, 0.25])
    assert Interval(**interval.given()) == interval and "most" not in Interval(1.0).given()
    found = settled(
        Again(np.full(400, 0.1), np.linspace(0.01, 0.05, 400), np.arange(400) % 2 == 0, np.arange(400) // 2 % 4)
    )
    assert found(np.array([0.05])) == pytest.approx(found(np.array([5.0])), abs=1e-3)


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


def test_levels_of_software_stand_alone_and_types_may_have_their_own() -> None:
    known = {name: Interval(width, 0.0) for name, width in (("measured_gpu", 0.1), ("other_gpu", 0.5))}
    known |= {"nearest_version": Interval(0.2, 0.0), "nearest_version|bf16": Interval(0.3, 0.0)}

    def width(software: str, dtype: str = "") -> float:
        return float(half_width(intervals_of(known, "measured_gpu", "graph", software, dtype), np.ones(1))[0])

    assert [width("measured"), width("other_gpu"), width("nearest_version")] == pytest.approx([0.1, 0.5, 0.2])
    assert [width("nearest_version", "bf16"), width("nearest_version", "fp8")] == pytest.approx([0.3, 0.2])
    assert width("other_framework") == pytest.approx(0.5)  # no interval of its own: the widest of nearer ones


def test_no_interval_is_narrower_than_what_another_day_differs_by() -> None:
    known = {"measured_gpu": Interval(1.0), AGAIN: Interval(0.05, 0.0)}
    assert half_width(intervals_of(known, "measured_gpu"), np.array([0.01, 0.2])) == pytest.approx([0.05, 0.2])


def test_cold_collectives_hold_another_start_of_the_program() -> None:
    """Intervals were settled on another day's first start; these rows are of the second."""
    found = rows(card_blind.DATA / "h200" / "repeats" / "another_start")
    calls = [from_dict(row["case"] | {"stack": row["stack"], "impl": row["impl"]}) for row in found]
    answers = predict(calls, "H200", protocol="cold")
    measured = np.array([row["latency_us"] for row in found])
    inside = (answers.low_us <= measured) & (measured <= answers.high_us)
    large = np.array([row["case"]["bytes"] >= LARGE for row in found])
    assert inside[~large].mean() > 0.8
    assert inside[large].mean() > 0.9


def test_a_sibling_of_a_known_architecture_is_as_certain_as_another_gpu_of_it() -> None:
    known = {"measured_gpu": Interval(0.5), "same_architecture": Interval(0.4, 0.5), "new_architecture": Interval(1.6)}
    same = intervals_of(known, "same_architecture", "graph")
    assert intervals_of(known, "new_architecture", "graph", sibling=True) == same
    assert intervals_of(known, "new_architecture", "graph") != same

"""100 rows of an unseen GPU, used as `pipewave calibrate` uses them."""

from __future__ import annotations

import numpy as np
import pytest
from synthetic import synthetic

from pipewave.calibrate.fit import FARTHEST, Sample, fit
from train import evaluate
from train.corrected import averaged, corrected, log_factors
from train.splits import by_name, expand

DATA = synthetic()


def left_out(offset: float) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Members without a family that are off by a constant, and members with 100 rows that are off the other way."""
    found = {}
    for name in (*expand(["lofo:*"], DATA), "few:H200:0", "few:H200:1"):
        score = by_name(name, DATA).score
        sign = -1.0 if name.startswith("few:") else 1.0
        found[name] = (DATA.residual[score] + sign * offset, np.full(len(score), 0.1))
    return found


def test_a_gpu_that_is_off_by_a_factor_is_put_right() -> None:
    parts = corrected(DATA, left_out(0.3))
    cells = evaluate.table(parts, DATA, ("gpu",))
    assert set(cells) == set(np.unique(DATA.columns["gpu"].text()))
    assert evaluate.macro(cells).mape < 1.0


def test_rows_that_correct_and_their_groups_are_not_scored() -> None:
    parts = corrected(DATA, left_out(0.3))
    assert parts
    for part in parts:
        gpu = part.name.split(":")[1]
        assert (DATA.columns["gpu"].text()[part.index] == gpu).all()
        mine = np.flatnonzero(DATA.columns["gpu"].text() == gpu)
        assert len(np.unique(DATA.group[part.index])) < len(np.unique(DATA.group[mine]))


def test_the_average_lies_between_its_two_parents() -> None:
    parts = averaged(DATA, left_out(0.3))
    assert {part.name for part in parts} == {"few:H200:0", "few:H200:1"}
    for part in parts:
        error = part.mean - DATA.residual[part.index]
        assert np.median(error) == pytest.approx(-0.15, abs=0.02)


def test_log_factors_are_those_of_the_correction_itself() -> None:
    rng = np.random.default_rng(0)
    coordinates = rng.normal(size=(80, 3))
    sample = Sample(
        ("a", "b", "c"), coordinates, 0.2 + 0.1 * coordinates[:, 0], np.full(80, 0.1), np.arange(80), frozenset()
    )
    found = fit(sample).correction
    assert found is not None
    by_feature = found.of_software({}).log_factor(80, coordinates)
    assert log_factors(found, sample) == pytest.approx(by_feature)
    assert log_factors(None, sample) == pytest.approx(np.zeros(80))
    assert np.abs(found.frame.scaled(100 * coordinates)).max() <= FARTHEST

"""What choices start from, and the gain that it takes to leave it."""

from __future__ import annotations

import numpy as np
import pytest

from lab.own_kernels.shapes import draw
from pipewave.tune import load_table
from pipewave.tune.law.margin import ALWAYS, MARGINS, bases, decided, folds, with_margin
from pipewave.tune.shipped_kernels import defaults
from pipewave.tune.tables import LOAD, SHAPE

RNG = np.random.default_rng(11)


def anchors(error: float, count: int = 400) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Eight configurations: µs, log µs predicted with an error, the first as default, and the true best with a tenth
    of the anchors wrong, as that of the nearest is.
    """
    us = np.full((count, 8), 10.0) * np.exp(RNG.normal(0, 0.1, (count, 8)))
    nearest = np.where(RNG.random(count) < 0.1, 0, us.argmin(axis=1))
    return us, np.log(us) + RNG.normal(0, error, us.shape), np.zeros(count, np.int64), nearest


def test_what_was_measured_nearest_is_left_for_a_small_predicted_gain_where_predictions_are_good() -> None:
    us, predicted, default, nearest = anchors(0.001)
    assert decided(us, predicted, [default, nearest]) == (1, MARGINS[0])


def test_predictions_without_ground_are_never_followed() -> None:
    us, _, default, nearest = anchors(0.0)
    number, by = decided(us, RNG.normal(2, 0.5, us.shape), [default, nearest])
    assert (number, by) == (1, ALWAYS)


def test_another_start_must_be_surely_better() -> None:
    us, predicted, default, nearest = anchors(0.3)
    worst = us.argmax(axis=1)
    assert decided(us, predicted, [nearest, worst])[0] == 0
    assert decided(us, predicted, [default, nearest])[0] == 1


def test_the_loss_is_never_above_that_of_the_usual_decision() -> None:
    for error in (0.001, 0.03, 0.1, 0.3):
        us, predicted, default, nearest = anchors(error)
        row, starts = np.arange(len(us)), [default, nearest]
        losses = [np.log(us[row, with_margin(predicted, starts[number], by).argmin(axis=1)]).mean()
                  for number, by in (decided(us, predicted, starts), (1, MARGINS[0]))]  # fmt: skip
        assert losses[0] <= losses[1]


def test_bases_are_the_one_for_all_and_the_fastest_of_the_nearest() -> None:
    us = np.array([[1.0, 2.0, 1.1], [3.0, 2.0, 2.2], [np.nan, 5.0, 5.1]])
    one, nearest = bases(np.log([[1.0], [10.0], [100.0]]), us)
    assert one.of(np.zeros((2, 1))).tolist() == [2, 2]
    assert nearest.of(np.log([[2.0], [70.0]])).tolist() == [0, 1]


@pytest.mark.parametrize("count", [3, 5, 257])
def test_every_anchor_is_left_out_once(count: int) -> None:
    found = folds(count)
    assert sorted(np.concatenate([out for out, _ in found]).tolist()) == list(range(count))
    assert all(sorted([*out, *rest]) == list(range(count)) for out, rest in found)


def test_a_table_whose_errors_are_large_leaves_the_default_for_large_gains_only() -> None:
    table = load_table("gemm_fp8", gpu="H200", env={})
    columns = {name: np.array([shape[name] for shape in draw("gemm_fp8", 5, 200)]) for name in ("m", "n", "k")}
    default, row, log_us = defaults(table.kernel, table.config, columns), np.arange(200), np.log(table.us(columns))
    for by in (0.02, 0.2):
        chosen = with_margin(log_us, default, by).argmin(axis=1)
        left = chosen != default
        assert left.any()
        assert (log_us[row, default] - log_us[row, chosen])[left].min() > by


@pytest.mark.parametrize("kernel", ["moe_w13", "moe_w2", "decode_128", "decode_64"])
def test_a_load_that_is_not_told_asks_for_no_less_gain(kernel: str) -> None:
    table = load_table(kernel, gpu="H200", env={})
    assert table.kinds[SHAPE].model.margin >= table.kinds[LOAD].model.margin >= MARGINS[0]

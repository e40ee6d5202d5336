"""The selection margin: the default is left only for gains beyond the error shown."""

from __future__ import annotations

import numpy as np
import pytest

from lab.own_kernels.shapes import draw
from pipewave.tune import load_table
from pipewave.tune.law.margin import FEW, MARGINS, defaults, folds, is_slower, margin, with_margin

RNG = np.random.default_rng(11)


def anchors(error: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Eight configurations at 4000 anchors: which are slower than the first, their log µs predicted with an error."""
    us = np.full((4000, 8), 10.0) * np.exp(RNG.normal(0, 0.03, (4000, 8)))
    default = np.zeros(4000, np.int64)
    return is_slower(us, default), np.log(us) + RNG.normal(0, error, us.shape), default


def test_the_margin_grows_with_the_error_of_predictions() -> None:
    found = [margin(*anchors(error)) for error in (0.001, 0.02, 0.04)]
    assert found[0] == MARGINS[0]
    assert found == sorted(found)
    assert found[2] > 0.04


@pytest.mark.parametrize("error", [0.03, 0.05])
def test_the_margin_is_the_least_that_few_lose_by(error: float) -> None:
    slower, predicted, default = anchors(error)
    by = margin(slower, predicted, default)

    def share(tried: float) -> float:
        chosen = with_margin(predicted, default, tried).argmin(axis=1)
        return float(np.mean(slower[np.arange(len(slower)), chosen]))

    assert share(by) <= FEW
    assert share(by - 0.01) > FEW


def test_one_anchor_among_few_forbids_no_choice() -> None:
    us = np.tile([10.0, 8.0], (12, 1))
    us[0, 1] = 30.0  # disturbed
    default = np.zeros(12, np.int64)
    assert margin(is_slower(us, default), np.log(np.tile([10.0, 8.0], (12, 1))), default) == MARGINS[0]


def test_where_no_margin_protects_the_narrowest_of_the_best_is_taken() -> None:
    us = np.tile([10.0, 12.0, 8.0], (12, 1))
    us[:4, 2] = 14.0
    predicted = np.log(np.tile([10.0, 9.9, 5.0], (12, 1)))  # no margin tried is as wide as this error
    assert margin(is_slower(us, np.zeros(12, np.int64)), predicted, np.zeros(12, np.int64)) == MARGINS[0]


def test_slower_is_by_more_than_the_repeats_tell_and_only_what_was_timed() -> None:
    us = np.array([[10.0, 10.1, 10.3, np.nan, 9.0]])
    assert is_slower(us, np.array([0])).tolist() == [[False, False, True, False, False]]


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
    assert table.model().margin >= table.model(known_load=True).margin >= MARGINS[0]

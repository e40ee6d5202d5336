"""The selection margin: the default is left only for gains beyond the error shown, and an unknown load is averaged over."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pipewave.tune import load_table
from pipewave.tune.loads import bins, halves, knows_load
from pipewave.tune.mapping import mean_trips
from pipewave.tune.margin import FEW, MARGINS, defaults, folds, is_slower, margin, with_margin
from pipewave.tune.shapes import draw
from pipewave.tune.table import locate, read

RNG = np.random.default_rng(11)
MOE = {"m": 203, "e": 8, "top_k": 2, "hidden": 6144, "inter": 2048}
DECODE = {"batch": 72, "kv_len": 1837, "heads": 64, "kv_heads": 8}


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
    sure = read(locate("gemm_fp8", "H200")).fitted
    unsure = replace(sure, margins=(0.2, 0.2))
    columns = {name: np.array([[shape[name]] for shape in draw("gemm_fp8", 5, 200)]) for name in ("m", "n", "k")}
    default, row = defaults(sure.kernel, sure.config, columns), np.arange(200)
    us = sure.upper_us(columns)
    for fitted in (sure, unsure):
        chosen = fitted.with_margin_us(columns).argmin(axis=1)
        left = chosen != default
        gain = np.log(us[row, default] / us[row, chosen])[left]
        assert left.any()
        assert gain.min() > fitted.margin(known_load=True)


@pytest.mark.parametrize("kernel", ["moe_w13", "moe_w2", "decode_128", "decode_64"])
def test_a_load_that_is_not_told_asks_for_no_less_gain(kernel: str) -> None:
    known_load, unknown_load = read(locate(kernel, "H200")).fitted.margins
    assert unknown_load >= known_load >= MARGINS[0]


@pytest.mark.parametrize(("kernel", "shape"), [("moe_w13", MOE), ("decode_128", DECODE)])
def test_what_to_expect_without_a_load_is_the_mean_of_both_halves(kernel: str, shape: dict[str, int]) -> None:
    fitted = read(locate(kernel, "H200")).fitted
    assert fitted.loads is not None
    columns = {name: np.array([[value]]) for name, value in shape.items()}
    states = fitted.loads.states(kernel, columns, fitted.config)
    light, heavy = (fitted.law_us(columns | state) for state in states)
    assert np.allclose(fitted.law_us(columns), (light + heavy) / 2, rtol=1e-9)
    few, many = (np.broadcast_to(fitted.works(columns | state)[0].blocks, light.shape) for state in states)
    as_many = many >= few - 1e-9  # a ragged batch may leave splits without work, which then cost nothing
    assert np.mean(as_many) >= 0.5
    assert np.mean((heavy >= light)[as_many]) > 0.9
    assert knows_load(columns | states[0])
    assert not knows_load(columns)


@pytest.mark.parametrize("kernel", ["moe_up", "moe_w2", "decode_64"])
def test_numbers_and_arrays_expect_the_same_loads(kernel: str) -> None:
    table = load_table(kernel, env={})
    shape = DECODE if kernel.startswith("decode") else MOE
    loads = table.table.fitted.loads.states(
        kernel, {name: np.array([[value]]) for name, value in shape.items()}, table.table.fitted.config
    )
    for one, other in zip(table.states(shape), loads, strict=True):
        for name in ("active", "longest"):
            assert (name in one) == (name in other)
            assert one.get(name, 0) == pytest.approx(np.ravel(other.get(name, 0))[0])


def test_halves_lie_about_the_mean_of_their_own_bin() -> None:
    at = np.repeat([1, 6], 2000)
    found = np.where(at == 1, 1.0, 2.0)[:, None] + RNG.normal(0, 0.1, (4000, 1))
    light, heavy = halves(at, found)
    assert light[[1, 6], 0] == pytest.approx([0.9, 1.9], abs=0.02)
    assert heavy[[1, 6], 0] == pytest.approx([1.1, 2.1], abs=0.02)


def test_bins_grow_with_tokens_an_expert_and_with_the_batch() -> None:
    moe = {"m": np.array([1, 64, 100, 4096]), "e": np.full(4, 8), "top_k": np.full(4, 2)}
    assert bins("moe_w2", moe).tolist() == [(m * 2 // 8) ** 2 and int((m * 2 // 8) ** 2).bit_length() for m in moe["m"]]
    assert bins("decode_64", {"batch": np.array([1, 2, 3, 4])}).tolist() == [1, 2, 2, 3]


@pytest.mark.parametrize(("kv", "longest", "step"), [(136, 195, 64), (136, 136, 64), (849, 1281, 128), (5, 30, 16)])
def test_trips_of_a_ragged_batch_are_counted(kv: int, longest: int, step: int) -> None:
    spread = min(longest - kv, kv - 1)
    each = np.arange(kv - spread, kv + spread + 1)
    assert mean_trips(kv, longest, step) == pytest.approx(np.mean(-(-each // step)))

"""The law of ageing: as fast as rows of later versions call for, and no faster where they are held already."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from train.ageing import MOST, inside, law, law_of, left_out, limit

SHARE = np.arange(0.5, 100.0) / 100.0


def pair(months: float, grows: float, asked: str = "vllm-0.30.0", held: float = 1.0) -> dict[str, Any]:
    """Rows nine in ten of which need `held` times the half-width, and more for each month."""
    needed = SHARE / 0.9 * held * (1.0 + grows * months)
    return {"net": "gemm", "asked": asked, "answered": "vllm-0.1.0", "months": months, "other_kernels": False,
            "rows": 100, "needed": needed.tolist()}  # fmt: skip


def changed(half: float, asked: str = "vllm-0.30.0") -> dict[str, Any]:
    """Rows by other kernels, nine in ten of which are within a half-width."""
    return pair(2.0, 0.0, asked, half) | {"other_kernels": True}


def test_the_rate_is_that_by_which_rows_need_more() -> None:
    pairs = [pair(months, 0.2, f"vllm-0.{i}.0") for i, months in enumerate((0.5, 1.0, 2.0, 4.0))]
    assert law_of(pairs) == (pytest.approx(0.2, abs=0.06), 0.0)
    assert inside(pairs, *law_of(pairs)) >= 0.9
    assert left_out(pairs) == pytest.approx(0.9, abs=0.05)


def test_what_is_held_already_does_not_age() -> None:
    assert law_of([pair(3.0, 0.0, held=0.7)]) == (0.0, 0.0)


def test_what_other_kernels_run_has_a_half_width_of_its_own_and_does_not_age() -> None:
    pairs = [pair(3.0, 0.0, held=0.7), changed(0.8, "vllm-0.2.0"), changed(1.2, "vllm-0.3.0")]
    rate, half = law_of(pairs)
    assert rate == 0.0
    assert 0.8 < half <= 1.2
    assert limit(pairs[1], 9.0, half) == half
    assert min(inside([one], rate, half) for one in pairs) > 0.7
    assert left_out(pairs) < inside(pairs, rate, half)  # 0.8 holds less than nine in ten of what needs 1.2


def test_no_answer_is_widened_without_end() -> None:
    assert limit(pair(1000.0, 0.0), 0.5, 0.0) == MOST
    assert limit(pair(2.0, 0.0), 0.5, 0.0) == 2.0


def test_other_nets_take_the_mean_and_the_widest_and_pairs_of_few_rows_tell_nothing() -> None:
    found = [pair(2.0, 0.0, held=0.5), pair(2.0, 0.5) | {"net": "gemm_fp8"}, pair(2.0, 9.0) | {"rows": 3}, changed(0.6)]
    rates, halves = (law(found)[name] for name in ("rates", "other_kernels"))
    assert halves == {"gemm": pytest.approx(0.6, abs=0.06), "other": halves["gemm"]}
    assert rates["gemm"] == 0.0
    assert rates["gemm_fp8"] == pytest.approx(0.5, abs=0.06)
    assert rates["other"] == pytest.approx((rates["gemm"] + rates["gemm_fp8"]) / 2, abs=0.01)

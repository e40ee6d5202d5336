"""The law of ageing: as fast as rows of later versions call for, and no faster where they are held already."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from train.ageing import MOST, factor, inside, law, left_out, rate_of

SHARE = np.arange(0.5, 100.0) / 100.0


def pair(months: float, grows: float, asked: str = "vllm-0.30.0", held: float = 1.0) -> dict[str, Any]:
    """Rows nine in ten of which need `held` times the half-width, and more for each month."""
    needed = SHARE / 0.9 * held * (1.0 + grows * months)
    return {"net": "gemm", "asked": asked, "answered": "vllm-0.1.0", "months": months, "rows": 100,
            "needed": needed.tolist()}  # fmt: skip


def test_the_rate_is_that_by_which_rows_need_more() -> None:
    pairs = [pair(months, 0.2, f"vllm-0.{i}.0") for i, months in enumerate((0.5, 1.0, 2.0, 4.0))]
    assert rate_of(pairs) == pytest.approx(0.2, abs=0.06)
    assert inside(pairs, rate_of(pairs)) >= 0.9
    assert left_out(pairs) == pytest.approx(0.9, abs=0.05)


def test_what_is_held_already_does_not_age() -> None:
    assert rate_of([pair(3.0, 0.0, held=0.7)]) == 0.0


def test_no_answer_is_widened_without_end() -> None:
    assert factor(pair(1000.0, 0.0), 0.5) == MOST
    assert factor(pair(2.0, 0.0), 0.5) == 2.0


def test_other_nets_take_the_mean_and_pairs_of_few_rows_tell_nothing() -> None:
    found = [pair(2.0, 0.0, held=0.5), pair(2.0, 0.5) | {"net": "gemm_fp8"}, pair(2.0, 9.0) | {"rows": 3}]
    rates = law(found)["rates"]
    assert rates["gemm"] == 0.0
    assert rates["gemm_fp8"] == pytest.approx(0.5, abs=0.06)
    assert rates["other"] == pytest.approx((rates["gemm"] + rates["gemm_fp8"]) / 2, abs=0.01)

"""Measured kernels of today's kinds: every case has its row, and the kernels that ran are those the cases name."""

from __future__ import annotations

from functools import cache

from lab.kind_kernels import cases
from pipewave.measure.plan import Job
from studies.kind_kernels import layout, measured, scores

GEMMA = "16 heads on 8 of 256", "16 heads on 2 of 512"


def is_gemma(name: str) -> bool:
    """Whether a layout is one of Gemma 4's, which no constant saw."""
    return any(heads in name for heads in GEMMA)


def test_every_case_was_measured_once() -> None:
    asked = {Job({k: v for k, v in case.items() if k != "impl"}, case["impl"]).key for case in cases()}
    assert {row["key"] for row in measured()} == asked
    assert len(measured()) == len(asked)


def test_decode_of_few_heads_is_split_over_the_keys() -> None:
    for row in measured():
        if row["impl"] == "vllm_triton_attn":
            few = len(row["case"]["q_lens"]) * row["case"]["kv_heads"] <= 128
            names = [kernel["name"] for kernel in row["kernels"]]
            assert ("reduce_segments" in names) == (few and layout(row).startswith("decode"))


@cache
def off() -> dict[str, float]:
    """Mean absolute error of each layout of attention, %."""
    return {name: mape for name, _, mape, _ in scores(measured()) if name.startswith(("prefill", "decode"))}


def test_layouts_that_no_constant_saw_are_near_their_rows() -> None:
    unseen = {name: mape for name, mape in off().items() if is_gemma(name)}
    assert len(unseen) == 4
    assert max(unseen.values()) < 15.0


def test_constants_are_as_near_to_the_rows_that_they_were_fitted_to() -> None:
    seen = {name: mape for name, mape in off().items() if not is_gemma(name)}
    assert len(seen) == 16
    assert max(seen.values()) < 15.0
    assert sum(seen.values()) / len(seen) < 7.5

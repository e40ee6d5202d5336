"""Measured kernels of today's kinds: every case has its row, and the kernels that ran are those the cases name."""

from __future__ import annotations

import pytest

from lab.kind_kernels import cases
from pipewave.measure.job import Job
from pipewave.software.rules import constant
from studies.kind_kernels import layout, measured, scores
from train.kernel_fit import PHASES, is_gemma, loads_of, shipped


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


def test_layouts_that_no_constant_saw_are_near_their_rows() -> None:
    unseen = {name: mape for name, _, mape, _ in scores(measured()) if is_gemma(name)}
    assert len(unseen) == 4
    assert max(unseen.values()) < 15.0


@pytest.mark.parametrize("phase", PHASES)
def test_fitted_constants_are_those_that_ship(phase: str) -> None:
    hopper = {"engine": "unified", "architecture": "hopper"}
    prompts, decode = (constant(f"attention_{of}_cycles", **hopper) for of in ("prefill", "decode"))
    shipping = {
        "prefill": [*prompts.step_cycles, prompts.window_factor, *prompts.wave_cycles],
        "decode": [*decode.tile_cycles, decode.blocks_per_sm, decode.merge_dram_share],
    }
    known = shipping[phase]
    assert known == pytest.approx(list(shipped(loads_of(phase), phase)), rel=0.01)

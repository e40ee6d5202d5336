"""Tokens that a drafting step made, and what handing over takes, from published rows."""

from __future__ import annotations

import pytest

from pipewave.simulate.speculative import of
from studies.published_pools import accepted, best_ms, by_group, error, implied, tokens_made
from studies.published_rows import Group, Row


def _row(name: str, tpot: float) -> Row:
    return Row(name, Group("s", "trtllm", "B200", "m", "fp4"), {}, {"tpot_ms": tpot}, "")


def test_a_step_that_is_off_alike_with_and_without_drafts_makes_what_is_measured() -> None:
    usual = of({"method": "mtp", "tokens": 3}).mean
    rows = [_row("plain", 10.0), _row("drafted", 5.0)]
    # Steps are predicted 20 % too fast; drafted ones besides made two tokens a step and not the usual number.
    notes = ["disaggregated, 3 tokens drafted"]
    answers = {
        "plain": {"tpot_ms": 8.0, "notes": []},
        "drafted": {"tpot_ms": 0.8 * 5.0 * 2.0 / usual, "notes": notes},
    }
    groups = by_group(rows, answers)
    assert implied(groups, 3) == {("trtllm", "B200", "fp4"): pytest.approx(2.0)}
    assert implied(groups, 2) == {}


def test_the_time_that_explains_most_groups_is_taken() -> None:
    key = ("sglang", "H200", "fp8")
    groups = {key: [(100.0, 180.0), (300.0, 380.0)]}
    assert best_ms(groups) == 80
    assert error(groups, 80) == pytest.approx(0.0)


def test_the_acceptance_that_made_the_tokens_is_found_again() -> None:
    for rate in (0.4, 0.62, 0.85):
        made = {
            ("sglang", "H200", "fp8"): {k: of({"method": "mtp", "tokens": k, "acceptance": rate}).mean for k in (1, 3)}
        }
        assert accepted(made) == pytest.approx(rate)


def test_a_group_that_implies_less_than_a_token_a_step_is_left_out() -> None:
    key = ("trtllm", "H100", "fp8")
    logs = {key: {0: [0.0], 1: [-1.0], 2: [0.0]}}
    assert tokens_made(logs) == {key: {2: pytest.approx(of({"method": "mtp", "tokens": 2}).mean)}}

"""A plan's designs are answered as `serve` answers them, and none is recommended that cannot serve."""

from __future__ import annotations

import json
import random
import shlex
from typing import Any

import pytest

from pipewave.cli import build
from pipewave.models import load
from pipewave.planning import Plan, Question, Space, plan
from tests.command_line import CliRunner

ENGINES = ("vllm:0.22.1", "vllm", "sglang:0.5.14", "sglang", "trtllm:1.3.0rc20", "trtllm")
MODELS = (("Llama-3.1-8B", 1), ("Qwen3-0.6B", 1), ("Qwen3-30B-A3B", 2))


def planned(seed: int) -> Plan:
    """A plan of one random design."""
    draw = random.Random(seed)
    model, tp = draw.choice(MODELS)
    batch, budget = draw.choice(((1, 2048), (4, 2048), (16, 4096), (32, 8192)))
    question = Question(draw.choice((100, 500, 1200)), draw.choice((20, 64)))
    space = Space((draw.choice(("H200", "H100", "B200")),), (tp,), engines=(draw.choice(ENGINES),), experts=False)
    one = {"batches": (batch,), "budgets": (budget,)}
    return plan(load(model), question, Space(space.gpus, space.tps, experts=False, engines=space.engines, **one))


def by_serve(found: Plan) -> dict[str, Any]:
    assert found.winner is not None
    words = shlex.split(found.serve_command(found.winner))[1:]
    done = CliRunner().invoke(build(), [*words, "--json", "--no-interval"], catch_exceptions=False)
    assert not done.exit_code, done.output
    return dict(json.loads(done.stdout))


def same(seed: int) -> None:
    found = planned(seed)
    assert found.winner is not None
    served = by_serve(found)
    row = found.designs.row(found.winner)
    assert row["ttft_ms"] == pytest.approx(served["ttft_mean_ms"], abs=2e-3)  # a row shows three digits
    assert row["tpot_ms"] == pytest.approx(served["tpot_mean_ms"], abs=2e-3)
    each = served["output_tokens_per_s_per_gpu"]
    assert row["tokens_per_s_per_gpu"] == pytest.approx(each, abs=2e-3)


@pytest.mark.parametrize("seed", range(10))
def test_a_design_is_answered_as_serve_answers_it(seed: int) -> None:
    same(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10, 200))
def test_many_designs_are_answered_as_serve_answers_them(seed: int) -> None:
    same(seed)


def test_no_design_whose_prompts_are_longer_than_a_step_of_an_engine_that_does_not_cut_them() -> None:
    question = Question(4096, 100, ttft_ms=2000, tpot_ms=60)
    space = Space(("H200",), (1,), engines=("trtllm",), budgets=(1024, 8192), batches=(8,))
    found = plan(load("Qwen3-32B"), question, space)
    assert set(found.designs.budget.tolist()) == {8192}
    short = Space(("H200",), (1,), engines=("trtllm",), budgets=(1024,), batches=(8,))
    none = plan(load("Qwen3-32B"), question, short)
    assert none.winner is None
    assert "does not cut prompts" in none.to_dict()["does_not_fit"][0]["why"]


def test_the_usual_budgets_grow_with_the_prompts_of_such_an_engine() -> None:
    space = Space(("H200",), (2,), engines=("trtllm",), batches=(1,))
    found = plan(load("Llama-3.1-8B"), Question(20000, 20), space)
    assert set(found.designs.budget.tolist()) == {32768}

"""`estimate`: the contract's fields, the schedule behind them, and errors instead of numbers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipewave.errors import BadInput, CannotShard, DoesNotFit, PipewaveError, UnknownGPU
from pipewave.simulate import estimate
from pipewave.simulate.kv_budget import KvBudget
from pipewave.simulate.policies import VllmPolicy
from pipewave.simulate.static_batch import Schedule, StaticBatch, sample
from tests.sampled import examples

BASE: dict[str, Any] = {"model": "Llama-3.1-8B", "gpu": "H200", "batch": 8, "input_len": 512, "output_len": 64}


def test_answers_what_the_contract_names() -> None:
    answer = estimate(**BASE).to_dict()
    for name in ("prefill_ms", "tpot_ms", "e2e_ms"):
        assert 0 < answer[f"{name}_low"] < answer[name] < answer[f"{name}_high"]
    assert {"weights", "kv", "activations", "free"} <= answer["memory_gib"].keys()
    assert answer["breakdown"]["prefill_ms"]["gemm"] > 0


def test_the_whole_is_prefill_and_the_later_tokens() -> None:
    answer = estimate(**BASE)
    assert answer.e2e_ms == pytest.approx(answer.prefill_ms + 63 * answer.tpot_ms, rel=1e-6)


def test_one_token_out_is_the_prefill() -> None:
    answer = estimate(**BASE | {"output_len": 1})
    assert answer.e2e_ms == pytest.approx(answer.prefill_ms)
    assert answer.tpot_ms > 0


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_more_of_anything_takes_longer(engine: str) -> None:
    for field in ("batch", "input_len", "output_len"):
        answers = [estimate(**BASE | {field: value, "engine": engine}).e2e_ms for value in (16, 64, 200)]
        assert answers[0] < answers[1] < answers[2]


def test_faster_memory_decodes_faster() -> None:
    assert estimate(**BASE).tpot_ms < estimate(**BASE | {"gpu": "H100"}).tpot_ms


def test_breakdown_is_the_whole() -> None:
    answer = estimate(**BASE)
    assert sum(answer.breakdown["prefill_ms"].values()) == pytest.approx(answer.prefill_ms, rel=1e-6)


@pytest.mark.parametrize(
    ("change", "error", "field"),
    [
        ({"batch": 0}, BadInput, "batch"),
        ({"batch": -5}, BadInput, "batch"),
        ({"input_len": 0}, BadInput, "input_len"),
        ({"output_len": -1}, BadInput, "output_len"),
        ({"input_len": 10**12}, BadInput, "input_len"),
        ({"batch": 2.5}, BadInput, "batch"),
        ({"tp": 3}, CannotShard, "tp"),
        ({"tp": 0}, BadInput, "tp"),
        ({"ep": 2, "tp": 2}, CannotShard, "ep"),
        ({"pp": 40}, CannotShard, "pp"),
        ({"gpu": "H201"}, UnknownGPU, "gpu"),
        ({"engine": "tgi"}, BadInput, "engine"),
        ({"batch": 200_000, "input_len": 8000}, DoesNotFit, "batch"),
        ({"model": "Llama-3.1-405B"}, DoesNotFit, "gpu"),
    ],
)
def test_what_cannot_be_is_an_error(change: dict[str, Any], error: type[PipewaveError], field: str) -> None:
    with pytest.raises(error) as caught:
        estimate(**BASE | change)
    assert caught.value.field == field


def schedule(batch: int, input_len: int, output_len: int, budget: int, mixed: bool) -> Schedule:
    policy = VllmPolicy(budget, batch, mixes_phases=mixed)
    return Schedule.of(policy, KvBudget(1, 16), StaticBatch(batch, input_len, output_len, budget))


schedules = st.builds(
    schedule,
    batch=st.integers(1, 12),
    input_len=st.integers(1, 60),
    output_len=st.integers(1, 12),
    budget=st.integers(13, 64),
    mixed=st.booleans(),
)


@examples(300)
@given(schedules)
def test_a_schedule_serves_every_token_once(plan: Schedule) -> None:
    prompt = tokens = 0
    run = plan.batch
    for step in range(plan.total_steps):
        q_lens, kv_lens = plan.lengths(step)
        assert sum(q_lens) <= run.budget
        assert all(q <= kv for q, kv in zip(q_lens, kv_lens, strict=True))
        pieces = plan.prompts[step].pieces if step < plan.prompt_steps else ()
        prompt += sum(q for q, _ in pieces)
        tokens += len(q_lens) - len(pieces)
    assert prompt == run.requests * run.input_len
    assert tokens == run.requests * (run.output_len - 1)


@examples(200)
@given(schedules)
def test_every_prompt_step_but_the_last_is_full(plan: Schedule) -> None:
    for step in range(plan.prompt_steps - 1):
        q_lens, _ = plan.lengths(step)
        assert sum(q_lens) == plan.batch.budget


def test_samples_keep_the_ends() -> None:
    for size in (0, 1, 5, 16, 17, 1000):
        points = sample(10, 10 + size, 16)
        assert len(points) <= 16
        if size:
            assert (points[0], points[-1]) == (10, 9 + size)

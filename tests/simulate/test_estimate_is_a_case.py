"""`estimate` and mode `estimate` of `serve --cases` are one path: the same batch has the same answer."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from pipewave.errors import PipewaveError
from pipewave.published.answers import answer
from pipewave.published.cases import from_dict
from pipewave.simulate import estimate
from pipewave.simulate.kv_budget import KvBudget
from pipewave.simulate.policies import VllmPolicy
from pipewave.simulate.simulation import Pool, Simulation
from pipewave.simulate.traffic import Traffic
from tests.sampled import sampled

MODELS = ("Llama-3.1-8B", "Qwen3-32B", "Mistral-7B-v0.1", "gpt-oss-20b", "Llama-3.1-70B")
GPUS = ("H200", "H100", "B200", "A100", "L40S")
ENGINES = ("vllm", "sglang", "trtllm")
TIMES = {"ttft_ms": "prefill_ms", "tpot_ms": "tpot_ms", "e2e_ms": "e2e_ms"}


def _batches(count: int) -> list[dict[str, Any]]:
    draw = random.Random(37)
    return [
        {
            "model": draw.choice(MODELS), "gpu": draw.choice(GPUS), "engine": draw.choice(ENGINES),
            "tp": draw.choice((1, 2, 4)), "concurrency": draw.choice((1, 3, 8, 40, 150)),
            "isl": draw.choice((1, 100, 700, 3000, 9000)), "osl": draw.choice((2, 3, 20)),
        }
        for _ in range(count)
    ]  # fmt: skip


def _case(batch: dict[str, Any]) -> dict[str, Any] | str:
    try:
        return answer(from_dict(batch | {"id": 1, "mode": "estimate"}))
    except PipewaveError as problem:
        return problem.code


def _estimate(batch: dict[str, Any]) -> dict[str, Any] | str:
    names = {"concurrency": "batch", "isl": "input_len", "osl": "output_len"}
    try:
        return estimate(**{names.get(key, key): value for key, value in batch.items()}).to_dict()
    except PipewaveError as problem:
        return problem.code


@pytest.mark.parametrize("part", sampled(range(4), 1))
def test_a_batch_has_one_answer_from_both_doors(part: int) -> None:
    """100 batches; none names its version or its tokens of a step."""
    for batch in _batches(100)[part::4]:
        one, other = _estimate(batch), _case(batch)
        if isinstance(one, str) or isinstance(other, str):
            assert one == other, batch
            continue
        for name, field in TIMES.items():
            for side in ("", "_low", "_high"):
                assert other[name + side] == pytest.approx(one[field + side], rel=1e-9), (batch, name)
        assert other["output_tokens_per_s"] == pytest.approx(one["output_tokens_per_s"], rel=1e-9)
        assert other["kv_tokens"] == one["memory_gib"]["kv_tokens"]


class Even:
    """Every step takes one second."""

    def seconds(self, *step: object) -> float:
        return 1.0


def test_requests_of_one_instant_are_all_queued_before_a_step_starts() -> None:
    """None runs ahead alone: 24 prompts of ten tokens fill steps of 80 three times."""
    traffic = Traffic(np.zeros(24), np.full(24, 10), np.full(24, 1))
    pool = Pool(Even(), VllmPolicy(80, 64), KvBudget(1000, 16))  # type: ignore[arg-type]
    record = Simulation(traffic, pool).run()
    assert [sum(tokens for _, tokens, _ in step.pieces) for _, step in record.steps] == [80, 80, 80]

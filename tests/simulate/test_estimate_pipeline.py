"""Static batches over pipeline stages: one batch passes them in series, as the public vLLM runs did."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median

import pytest

from pipewave.simulate import Estimate, estimate
from pipewave.simulate.kv_budget import KvBudget
from pipewave.simulate.policies import SchedulingPolicy
from pipewave.simulate.static_batch import Schedule, StaticBatch
from studies.e2e_pipeweave import VLLM_ROWS
from studies.published_rows import corpus

RUNS = corpus() / "pipeweave" / "e2e" / "real"
SHAPES = {"arxiv16": (16, 2197, 403), "splitwise64": (64, 901, 169)}


def ask(pp: int, batch: int, output_len: int = 64, tokens: int = 8192) -> Estimate:
    return estimate(
        "Llama-3.1-8B", "H200", batch=batch, input_len=256, output_len=output_len, pp=pp, max_num_batched_tokens=tokens
    )


@pytest.mark.parametrize("mixed", [True, False])
@pytest.mark.parametrize(("batch", "output_len", "tokens"), [(3, 9, 64), (1, 9, 64), (9, 2, 64), (7, 1, 64)])
def test_no_step_is_empty(batch: int, output_len: int, tokens: int, mixed: bool) -> None:
    policy = SchedulingPolicy(tokens, batch, mixes_phases=mixed)
    plan = Schedule.of(policy, KvBudget(1, 16), StaticBatch(batch, 32, output_len, tokens))
    assert all(plan.lengths(step)[0] for step in range(plan.total_steps))


@pytest.mark.parametrize("tokens", [257, 8192])
@pytest.mark.parametrize("batch", [1, 3, 64])
def test_a_batch_pays_for_every_stage(batch: int, tokens: int) -> None:
    """Stages in series do the work of one GPU, and hand over between."""
    alone, piped = ask(1, batch, tokens=tokens), ask(4, batch, tokens=tokens)
    assert piped.tpot_ms == pytest.approx(alone.tpot_ms, rel=0.15)
    assert piped.prefill_ms == pytest.approx(alone.prefill_ms, rel=0.15)
    assert piped.e2e_ms > 0.99 * alone.e2e_ms


@pytest.mark.parametrize(("gpu", "tp"), [("GH200", 1), ("H100", 8)])
def test_stages_on_several_hosts_rest_on_the_network_and_say_so(gpu: str, tp: int) -> None:
    found = estimate("Llama-3.1-8B", gpu, batch=4, input_len=256, output_len=8, tp=tp, pp=2)
    assert any("send_recv" in note and "network between hosts" in note for note in found.notes)


@pytest.mark.skipif(not RUNS.exists(), reason="needs the public corpus")
@pytest.mark.parametrize(("gpu", "name"), VLLM_ROWS)
def test_two_stages_take_what_vllm_took(gpu: str, name: str) -> None:
    runs = json.loads(Path(RUNS / f"vllm_{name}_{gpu}_llama70B.json").read_text())
    batch, input_len, output_len = SHAPES[name]
    found = estimate("Llama-3.1-70B", gpu, batch=batch, input_len=input_len, output_len=output_len, tp=4, pp=2)
    assert found.e2e_ms == pytest.approx(1e3 * median(runs["latencies"]), rel=0.12)

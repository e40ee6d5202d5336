"""A step is priced from its parts: counts multiply, stages share, memory adds up, states come on top of caches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pipewave.calls.families import FusedMoe
from pipewave.gpus import find
from pipewave.models import load
from pipewave.models.kernels import Batch, Deployment, Use
from pipewave.models.shard import ALONE, Parallel, state_bytes
from pipewave.step import Runner, find_engine
from pipewave.step.kernel_latency import kernel_latencies
from pipewave.step.memory import ACT, GIB, UNBOUNDED, budget, cache_bytes
from pipewave.step.overlap import arranged, lanes
from pipewave.step.predict import USUAL_CACHE, USUAL_REQUESTS, detail

DECODE, PROMPT = Batch((1,) * 8, (512,) * 8), Batch((300,), (300,))
MAMBA = {
    "model_type": "mamba", "hidden_size": 2560, "num_hidden_layers": 64, "intermediate_size": 5120, "state_size": 16,
    "conv_kernel": 4, "time_step_rank": 160, "vocab_size": 50280, "torch_dtype": "bfloat16",
    "architectures": ["MambaForCausalLM"],
}  # fmt: skip
HYBRID = {
    "model_type": "qwen3_next", "hidden_size": 2048, "num_hidden_layers": 4, "num_attention_heads": 16,
    "num_key_value_heads": 2, "head_dim": 256, "intermediate_size": 5120, "moe_intermediate_size": 512,
    "num_experts": 512, "num_experts_per_tok": 10, "shared_expert_intermediate_size": 512,
    "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_key_head_dim": 128,
    "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "full_attention_interval": 4, "vocab_size": 151936,
    "torch_dtype": "bfloat16", "architectures": ["Qwen3NextForCausalLM"], "max_position_embeddings": 262144,
}  # fmt: skip


def runner(model: Any, engine: str = "vllm", parallel: Parallel = ALONE) -> Runner:
    return Runner.of(Deployment(load(model), parallel), find("H200"), find_engine(engine))


def test_a_price_is_the_sum_of_calls_times_their_counts() -> None:
    run = runner("Llama-3.1-8B")
    parts = [run.deployment.kernels(batch) for batch in (DECODE, PROMPT)]
    priced = run.price(parts)
    assert max(use.count for use in parts[0]) == 32
    for at, uses in enumerate(parts):
        alone, counts = (
            kernel_latencies([use.call for use in uses], run.gpu, run.engine),
            np.array([use.count for use in uses]),
        )
        assert priced.us[at] == pytest.approx(float(alone.found.latency_us @ counts))
        for name, column in zip(("us", "nodes", "launches", "above_idle_j"), alone.columns, strict=True):
            assert getattr(priced, name)[at] == pytest.approx(float(column @ counts)), name


@pytest.mark.parametrize("stages", [1, 2, 4])
def test_stages_share_a_step_as_their_kernels_take_time(stages: int) -> None:
    run = runner("Llama-3.1-70B", parallel=Parallel(2, stages))
    shares = run.stage_shares()
    taken = []
    for stage in range(stages):
        uses = run.deployment.kernels(DECODE, stage)
        found = kernel_latencies([use.call for use in uses], run.gpu, run.engine).found
        taken.append(float(found.latency_us @ [use.count for use in uses]))
    assert shares == pytest.approx([one / sum(taken) for one in taken])


def test_how_uncertain_a_deployment_is_is_read_off_a_usual_step() -> None:
    run = runner("Llama-3.1-8B")
    half, basis = run.usual()
    steps = run.steps([run.batch([1] * USUAL_REQUESTS, [USUAL_CACHE] * USUAL_REQUESTS)])
    assert half == pytest.approx(float(np.log(steps.high_us[0] / steps.total_us[0])))
    assert sum(basis.values()) == pytest.approx(1.0)


def test_what_hides_beside_routed_experts_costs_nothing() -> None:
    run = runner("DeepSeek-V3", parallel=Parallel(8))
    uses = run.deployment.kernels(DECODE)
    found, counts = kernel_latencies([use.call for use in uses], run.gpu, run.engine).found, [use.count for use in uses]
    times = dict.fromkeys(("routed", "shared", "rest"), 0.0)
    for use, us, count in zip(uses, found.latency_us, counts, strict=True):
        shared = use.name.startswith("shared_") and use.name != "shared_add"
        times["routed" if isinstance(use.call, FusedMoe) else "shared" if shared else "rest"] += us * count
    assert min(times.values()) > 0
    expected = times["rest"] + max(times["routed"], times["shared"])
    assert run.price([uses]).us[0] == pytest.approx(expected)


def test_a_fused_rotation_is_launched_with_the_caches_write_and_nothing_else_is_lost() -> None:
    run = runner("Llama-3.1-8B")
    uses = run.deployment.kernels(DECODE)
    fused = arranged(uses, run.engine.what_if(fused_rope=True))
    assert [use.name for use in fused] == [use.name for use in uses if use.name != "rope"]
    assert len(fused) == len(uses) - 1
    assert list(arranged(uses, run.engine.what_if(fused_rope=False))) == list(uses)


def test_parts_of_a_step_name_each_kernel_with_its_count_and_nodes() -> None:
    run = runner("Llama-3.1-8B")
    uses, parts = run.deployment.kernels(DECODE), [part for part in detail(run, DECODE) if part.family != "gap"]
    assert [(part.name, part.count) for part in parts] == [(use.name, use.count) for use in uses]
    priced = run.price([uses])
    assert sum(part.kernels for part in parts) == pytest.approx(priced.nodes[0])
    assert sum(part.total_us for part in parts) == pytest.approx(priced.us[0])
    for part in parts:
        assert part.total_us == pytest.approx(part.each_us * part.count)
        assert part.low_us < part.total_us < part.high_us


def _experts(uses: Any) -> list[FusedMoe]:
    return [use.call for use in uses if isinstance(use.call, FusedMoe)]


def test_a_fused_shared_expert_is_one_more_routed_one_for_every_token() -> None:
    run = runner("DeepSeek-V3", "sglang", Parallel(8))
    engine = run.engine.what_if(shared_experts="fused")
    plain = run.deployment.kernels(DECODE)
    fused = arranged(plain, engine)
    assert {(one.experts, one.topk) for one in _experts(plain)} == {(256, 8)}
    assert {(one.experts, one.topk) for one in _experts(fused)} == {(257, 9)}
    assert any(use.name.startswith("shared_") for use in plain)
    assert not any(use.name.startswith("shared_") for use in fused)
    assert arranged(plain, run.engine.what_if(shared_experts="alone")) == [
        use for use in plain if not (run.engine.kernels.fused_rope and use.name == "rope")
    ]


def test_shared_experts_run_beside_routed_ones_for_few_tokens_only() -> None:
    run = runner("DeepSeek-V3", parallel=Parallel(8))
    engine = run.engine.what_if(shared_experts="overlapped", shared_tokens=8)

    def beside(uses: list[Use]) -> set[int]:
        return set(lanes(uses, engine))

    many = Batch((9,), (9,))
    assert len(beside(run.deployment.kernels(DECODE))) == 3
    assert len(beside(run.deployment.kernels(many))) == 1


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_memory_adds_up_whoever_divides_it(engine: str) -> None:
    run = runner("Llama-3.1-8B", engine)
    found = budget(run.deployment, run.gpu, run.engine)
    assert found.weights + found.activations + found.engine + found.kv + found.free == pytest.approx(found.total)
    assert min(found.weights, found.activations, found.engine, found.kv, found.free) > 0


def test_a_request_holds_its_states_beside_its_cache() -> None:
    deployment = Deployment(load(HYBRID))
    one_layer, heads = 2 * 2 * 256 * ACT, 32  # keys and values of one full layer; value heads of three others
    states = 3 * (heads * 128 * 128 * 4 + 3 * (2 * 16 * 128 + heads * 128) * ACT)
    assert state_bytes(deployment.model, ALONE) == states
    for length in (100, 1000):
        held = cache_bytes(deployment, length) - state_bytes(deployment.model, ALONE)
        assert held == pytest.approx(length * one_layer)


@pytest.mark.parametrize("length", [None, 4096])
def test_a_model_without_a_cache_spreads_its_state_over_its_longest_request(length: int | None) -> None:
    model = load(MAMBA | ({"max_position_embeddings": length} if length else {}))
    deployment, gpu, engine = Deployment(model), find("H200"), find_engine("vllm")
    found = budget(deployment, gpu, engine)
    requests = found.kv * GIB / state_bytes(model, ALONE)
    assert model.max_length == length
    assert found.kv_tokens == pytest.approx(requests * (length or UNBOUNDED), rel=1e-3)

"""Fused kernels of a step: the law beside measured rows, and what is charged where they run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import pipewave as pw
from pipewave.calls.families import Call, Collective, Elementwise, RmsNorm
from pipewave.calls.operators import Mamba2
from pipewave.gpus import find
from pipewave.models import load
from pipewave.models.kernels import Deployment
from pipewave.models.shard import Parallel
from pipewave.software.engine import Engine
from pipewave.step import Runner, find_engine
from pipewave.step.kernel_latency import launches_of
from pipewave.step.overlap import MIB, ROUTED, SHARED, arranged, fused_us, lanes, with_fused_norms

EACH = 0.06  # mean error of the law on either GPU


def engine_of(tp: int = 8, mib: float = 1.0) -> Engine:
    runner = Runner.of(Deployment(load("Llama-3.1-70B"), Parallel(tp)), find("H200"), find_engine("vllm"))
    return runner.engine.what_if(fused_norm_mib=mib).on(runner.engine.facts)


def test_the_law_agrees_with_measured_rows(corpus: Path) -> None:
    pytest.importorskip("pandas")
    from studies.fused_norm import compared

    table = compared(corpus)
    off = (table.law_us / table.us - 1).abs()
    assert off.mean() < 0.04
    for gpu, rows in off.groupby(table.gpu):
        assert rows.mean() < EACH, gpu


def test_norms_go_into_the_all_reduce_before_them() -> None:
    """Up to the engine's limit, inside one host, and never slower than alone."""
    gpu, rows = find("H200"), int(MIB) // (2 * 8192)  # of 1 MiB in bf16
    calls: list[Call] = [
        pw.all_reduce(1 << 18, 8), pw.rmsnorm(16, 8192, fused_add=True), pw.all_reduce(1 << 21, 8),
        pw.rmsnorm(rows, 8192, fused_add=True), pw.rmsnorm(rows + 1, 8192, fused_add=True), pw.rmsnorm(16, 8192),
        pw.all_reduce(1 << 18, 16, nodes=2), pw.all_gather(1 << 18, 8), pw.gemm(16, 8192, 8192),
    ]  # fmt: skip
    alone = pw.predict(calls, gpu, protocol="serving")
    fused, gone, _ = with_fused_norms(calls, alone, gpu, engine_of())
    assert gone.tolist() == [False, True, False, True, False, False, False, False, False]
    assert fused.latency_us[0] == pytest.approx(min(alone.latency_us[0], fused_us(1 << 18, 8, gpu)))
    assert (fused.latency_us[gone] < 1e-3).all() and (fused.high_us[gone] < 1e-3).all()
    kept = ~gone & (np.arange(len(calls)) > 0)
    assert (fused.latency_us[kept] == alone.latency_us[kept]).all()
    ratio = fused.latency_us[0] / alone.latency_us[0]
    assert fused.low_us[0] / alone.low_us[0] == pytest.approx(ratio)
    assert fused.high_us[0] / alone.high_us[0] == pytest.approx(ratio)


def test_a_slow_prediction_becomes_the_fused_kernels_time_and_a_fast_one_stays() -> None:
    gpu, calls = find("H200"), [pw.all_reduce(1 << 18, 8), pw.rmsnorm(16, 8192, fused_add=True)]
    alone, law = pw.predict(calls, gpu, protocol="serving"), fused_us(1 << 18, 8, gpu)
    for factor, expected in ((3.0, law), (0.5, 0.5 * law)):
        found, *_ = with_fused_norms(calls, replace(alone, latency_us=np.array([factor * law, 1.0])), gpu, engine_of())
        assert found.latency_us[0] == pytest.approx(expected)


def test_squares_of_all_heads_are_reduced_by_a_kernel_of_their_own() -> None:
    """MiniMax norms queries and keys over all heads, which lie on several GPUs: 8 bytes a token and layer."""
    card = {
        "model_type": "minimax_m2", "hidden_size": 3072, "intermediate_size": 1536, "num_hidden_layers": 3, "head_dim": 128,
        "num_attention_heads": 48, "num_key_value_heads": 8, "vocab_size": 200064, "num_local_experts": 256,
        "num_experts_per_tok": 8, "use_qk_norm": True, "use_routing_bias": True, "torch_dtype": "bfloat16", "rotary_dim": 64,
        "tie_word_embeddings": False, "rope_theta": 5000000,
    }  # fmt: skip
    for tp, count in ((1, 0), (4, 3)):
        runner = Runner.of(Deployment(load(card), Parallel(tp)), find("H200"), find_engine("vllm"))
        uses = [use for use in runner.deployment.kernels(runner.batch([1] * 8, [512] * 8)) if "qk_norm" in use.name]
        assert sum(use.count for use in uses) == count
        assert all(isinstance(use.call, Collective) and use.call.bytes == 8 * 8 for use in uses)
    calls: list[Call] = [pw.all_reduce(64, 4), pw.rmsnorm(8, 3072, fused_add=True)]
    alone = pw.predict(calls, "H200", protocol="serving")
    found, _, called = with_fused_norms(calls, alone, find("H200"), engine_of(4))
    assert found.latency_us[0] == alone.latency_us[0] and not called.any()


@pytest.mark.parametrize(("tp", "mib"), [(1, 1.0), (8, 0.0)])
def test_nothing_is_fused_on_one_gpu_or_where_the_engine_does_not(tp: int, mib: float) -> None:
    calls = [pw.all_reduce(1 << 18, 8), pw.rmsnorm(16, 8192, fused_add=True)]
    alone = pw.predict(calls, "H200", protocol="serving")
    found, gone, called = with_fused_norms(calls, alone, find("H200"), engine_of(tp, mib))
    assert found is alone and not gone.any() and not called.any()


@pytest.mark.parametrize(
    ("version", "mib", "python"),
    [
        ("0.11.0", 8, True),  # whatever the size
        ("0.11.0", 0, False),
        ("0.17.0", 16, True),  # prompts of 1,024 tokens of 8,192 values in bf16 are 16 MiB
        ("0.17.0", 15, False),
    ],
)
def test_all_reduce_and_norm_in_one_call_of_python_take_the_host_as_long_as_many_launches(
    version: str, mib: float, python: bool
) -> None:
    runner = Runner.of(Deployment(load("Llama-3.1-70B"), Parallel(4)), find("B200"), find_engine(f"vllm:{version}"))
    engines = [runner.engine.what_if(fused_norm_mib=mib, **one) for one in ({}, {"fused_norm_launches": 1})]
    launches = [
        replace(runner, engine=engine).steps([runner.batch([900, 1], [900, 1024])]).load.launches[0]
        for engine in engines
    ]
    reductions, many = 2 * 80, engines[0].kernels.fused_norm_launches  # two a layer
    assert many > 1
    assert launches[0] - launches[1] == pytest.approx(python * reductions * (many - 1), rel=0.02)


@pytest.mark.parametrize(("version", "joined"), [("0.11.1", 1), ("0.20.0", 1), ("0.21.0", 2)])
def test_sums_of_experts_in_padded_rows_are_reduced_and_normed_apart(version: str, joined: int) -> None:
    """gpt-oss is 2,880 wide; before 0.21 vLLM reduces experts' rows of 3,072 on Blackwell and cuts them afterwards."""
    runner = Runner.of(Deployment(load("gpt-oss-120b"), Parallel(2)), find("B200"), find_engine(f"vllm:{version}"))
    engines = [runner.engine.what_if(fused_norm_mib=mib) for mib in (64.0, 0.0)]
    batch = runner.batch([1] * 16, [512] * 16)
    calls = {use.name: use.call for use in arranged(runner.deployment.kernels(batch), runner.engine)}
    assert calls["attention_all_reduce"].bytes == 2 * 16 * 2880
    assert calls["ffn_all_reduce"].bytes == 2 * 16 * (3072 if joined == 1 else 2880)
    nodes = [replace(runner, engine=engine).steps([batch]).load.nodes[0] for engine in engines]
    assert nodes[1] - nodes[0] == 36 * joined + 1  # a layer's norms, and the last one or the first
    wide = Runner.of(Deployment(load("Llama-3.1-70B"), Parallel(4)), find("B200"), find_engine("vllm:0.11.1"))
    uses = wide.deployment.kernels(wide.batch([1], [512]))
    assert list(arranged(uses, wide.engine.what_if(padded_sums=256))) == list(uses)  # 8,192 wide: nothing is padded


def test_the_shorter_lane_hides_behind_the_longer() -> None:
    """Of routed experts and shared ones of a step, whoever comes first in it."""
    runner = Runner.of(Deployment(load("DeepSeek-V3"), Parallel(8)), find("H200"), find_engine("vllm"))
    batch = runner.batch([1] * 8, [1024] * 8)
    uses = runner.deployment.kernels(batch)
    assert {ROUTED, SHARED} <= set(lanes(uses, runner.engine))
    beside = {lane: [use for use, one in zip(uses, lanes(uses, runner.engine), strict=True) if one == lane]
              for lane in (ROUTED, SHARED)}  # fmt: skip
    routed, shared = (runner.price([part]).us[0] for part in beside.values())
    assert -runner.steps([batch]).families["shared_overlap"][0] == pytest.approx(min(routed, shared))


@pytest.mark.parametrize("model", ["Qwen3-8B", "Qwen3-30B-A3B"])
def test_sglang_norms_the_heads_of_queries_and_keys_in_one_kernel_since_0_5_8(model: str) -> None:
    """As many rows as the two norms before it; the mixture's RoPE writes the cache, too, since 0.5.3."""

    def uses_of(version: str) -> dict[str, Call]:
        runner = Runner.of(Deployment(load(model)), find("H100"), find_engine(f"sglang:{version}"))
        book = runner.deployment.kernels(runner.batch([1] * 8, [512] * 8))
        return {use.name: use.call for use in arranged(book, runner.engine)}

    before, since = uses_of("0.5.6"), uses_of("0.5.9")
    (one,) = [call for name, call in since.items() if name == "qk_norm"]
    two = [call for name, call in before.items() if name in ("q_norm", "k_norm")]
    assert isinstance(one, RmsNorm) and one.rows == sum(call.rows for call in two if isinstance(call, RmsNorm))
    assert before.keys() - since.keys() == {"q_norm", "k_norm"}
    assert {"rope" in uses_of(version) for version in ("0.5.6", "0.5.9")} == {model == "Qwen3-8B"}


def test_a_norm_over_all_heads_together_stays_one_a_side() -> None:
    runner = Runner.of(Deployment(load("OLMoE-1B-7B")), find("H100"), find_engine("sglang"))
    names = [use.name for use in runner.deployment.kernels(runner.batch([1] * 8, [512] * 8))]
    assert {"q_norm", "k_norm"} <= set(names) and "qk_norm" not in names


def test_experts_of_triton_kernels_hold_the_host_longer_on_hopper() -> None:
    """gpt-oss on an H100 under vLLM: prompts beyond the captured sizes wait for Python, graphs do not."""

    def step_us(version: str, tokens: int) -> float:
        runner = Runner.of(Deployment(load("gpt-oss-20b")), find("H100"), find_engine(f"vllm:{version}"))
        assert runner.engine.graphs.graph_limit == 1024
        named = find_engine(f"vllm:{version}").what_if(moe_backend="triton")
        chosen = Runner.of(Deployment(load("gpt-oss-20b")), find("H100"), named)
        batch = runner.batch([tokens], [tokens])
        assert chosen.steps([batch]).total_us[0] == pytest.approx(runner.steps([batch]).total_us[0])
        return float(runner.steps([batch]).total_us[0])

    assert step_us("0.22.1", 2048) > 2.0 * step_us("0.22.1", 1024)


def test_a_scan_of_mamba_2_is_launched_as_many_kernels_and_its_step_as_one() -> None:
    scan, step = Mamba2((2048,), 64), Mamba2((1,), 64, phase="generation")
    assert launches_of(scan, None) > 5
    assert launches_of(step, None) == 1


def test_kernels_that_the_rows_of_others_hold_are_counted_once() -> None:
    """TensorRT-LLM's rows of attention write the cache, those of experts choose them; vLLM's steps count both."""
    counted = {}
    for engine in ("trtllm", "vllm"):
        runner = Runner.of(Deployment(load("gpt-oss-120b")), find("B200"), find_engine(engine))
        uses = runner.deployment.kernels(runner.batch([1] * 8, [500] * 8))
        counted[engine] = {use.name for use in arranged(uses, runner.engine)}
    assert counted["vllm"] - counted["trtllm"] == {"rope", "topk", "kv_write"}
    assert {"attention", "fused_moe", "router"} <= counted["trtllm"]


@pytest.mark.parametrize(
    ("engine", "model", "floats"),
    [
        ("vllm:0.19.0", "MiniMax-M2.5", True),
        ("vllm:0.19.0", "GLM-4.5-Air", True),
        ("sglang:0.5.9", "GLM-4.5-Air", False),
        ("sglang:0.5.14", "GLM-4.5-Air", True),
        ("vllm:0.19.0", "Qwen3-30B-A3B", False),
    ],
)
def test_routers_multiply_in_the_type_that_the_engine_keeps_them_in(engine: str, model: str, floats: bool) -> None:
    runner = Runner.of(Deployment(load(model), Parallel(1)), find("H200"), find_engine(engine))
    uses = runner.deployment.kernels(runner.batch([4096], [4096]))
    [router] = {use.call for use in arranged(uses, runner.engine) if use.name == "router"}
    assert isinstance(router, Elementwise) == floats
    others = [use for use in uses if use.name != "router"]
    assert [use for use in arranged(uses, runner.engine) if use.name != "router"] == list(others)

"""Kernels that an engine's rules say are slower than others' rows: a block of every expert, products for few rows."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

import numpy as np
import pytest

from pipewave.calls.families import FusedMoe, Gemm, Mla
from pipewave.calls.operators import AttentionModule
from pipewave.errors import BadInput, UnsupportedDtype
from pipewave.gpus import find
from pipewave.models import load
from pipewave.models.kernels import Batch, Deployment
from pipewave.models.shard import Parallel
from pipewave.software.engine_parts import DeploymentFacts, GroupedGemmTime
from pipewave.step import Runner, find_engine
from pipewave.step.kernel_latency import (
    UNSAID,
    every_block,
    every_block_us,
    kernel_latencies,
    kernels_of,
    launches_of,
    masked_us,
    slow_us,
)
from studies import masked_experts
from studies.published_rows import corpus

EXPERTS = {"experts": 128, "topk": 8, "hidden": 4096, "inter": 1536, "dtype": "fp8_block"}


def fp8() -> dict[str, Any]:
    """Qwen3-235B-A22B with weights in blocks of 128 × 128 of FP8."""
    config = json.loads((files("pipewave") / "data" / "models" / "Qwen3-235B-A22B.json").read_text("utf-8"))
    return dict(config) | {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}


def decode_us(version: str, requests: int, tp: int = 2, gpu: str = "H200") -> float:
    """µs of the experts of one decode step of Qwen3-235B-A22B in FP8."""
    runner = Runner.of(Deployment(load(fp8()), Parallel(tp)), find(gpu), find_engine(f"vllm:{version}"))
    steps = runner.steps([runner.batch([1] * requests, [1000] * requests)])
    return float(steps.families["fused_moe"][0])


def test_tiles_of_every_block_by_hand() -> None:
    """128 experts, 12 column tiles of gate and up and 32 of down, each with 128 rows of either operand."""
    gpu = find("H200")
    call = FusedMoe(16, tp=2, **EXPERTS)  # type: ignore[arg-type]
    tiles = 128 * (12 * (128 + 128) * 4096 + 32 * (128 + 128) * 768)
    assert every_block_us(call, 128, gpu) == pytest.approx(tiles / (22.0 * gpu.sms * gpu.sustained_clock_mhz))
    spread = FusedMoe(16, ep=2, **EXPERTS)  # type: ignore[arg-type]
    assert every_block_us(spread, 128, gpu) == pytest.approx(every_block_us(call, 128, gpu))


def test_hopper_multiplies_blocks_that_hold_a_row_and_blackwell_all() -> None:
    call = FusedMoe(16, tp=2, **EXPERTS)  # type: ignore[arg-type]
    each, active = 3 * 4096 * 768, 128 * (1 - (1 - 8 / 128) ** 16)
    hopper, blackwell = (every_block(call, 128, find(name)) for name in ("H200", "B200"))
    assert hopper.flops == pytest.approx(2 * each * 128 * active)
    assert blackwell.flops == pytest.approx(2 * each * 128 * 128)
    assert hopper.dram == blackwell.dram == pytest.approx(each * active)


def decode_j(version: str, requests: int) -> float:
    """Joules above idle of the experts of such a step on two B200s."""
    runner = Runner.of(Deployment(load(fp8()), Parallel(2)), find("B200"), find_engine(f"vllm:{version}"))
    uses = runner.deployment.kernels(runner.batch([1] * requests, [1000] * requests), 0)
    return float(runner.price([[use for use in uses if isinstance(use.call, FusedMoe)]]).above_idle_j[0])


def test_walked_blocks_take_their_joules_however_few_the_tokens() -> None:
    few, many = (decode_j("0.11.1", requests) for requests in (4, 64))
    assert 0.5 * many < few < many
    assert few > 3.0 * decode_j("0.14.0", 4)


def test_experts_whose_rows_fit_one_block_take_the_same_time_whatever_the_tokens() -> None:
    few, most, more = (decode_us("0.11.1", requests, gpu="B200") for requests in (4, 2048, 4096))
    assert few == pytest.approx(most)
    assert more > most


def test_decode_hangs_on_the_split_and_not_on_the_batch() -> None:
    few, many = (decode_us("0.12.0", requests) for requests in (4, 20))
    assert few == pytest.approx(many)
    assert decode_us("0.12.0", 4, tp=4) == pytest.approx(few / 2)


def test_blackwell_walked_every_block_before_hopper_did() -> None:
    few, many = (decode_us("0.11.1", requests, gpu="B200") for requests in (4, 20))
    assert few == pytest.approx(many)
    assert few > 1.5 * decode_us("0.14.0", 4, gpu="B200")


@pytest.mark.parametrize("version", ["0.11.0", "0.19.0"])
def test_versions_that_take_triton_read_what_tokens_ask_for(version: str) -> None:
    assert decode_us(version, 4) < 0.7 * decode_us(version, 20) < decode_us("0.12.0", 20)


def prompt_us(backend: str, tokens: int) -> float:
    """µs of the products of a prompt of DeepSeek-R1 in FP8 under SGLang on B200."""
    engine = find_engine("sglang:0.5.9").what_if(gemm_backend=backend)
    runner = Runner.of(Deployment(load("DeepSeek-R1"), Parallel(8)), find("B200"), engine)
    return float(runner.steps([runner.batch([tokens], [tokens])]).families["gemm"][0])


def test_a_slow_product_at_its_rate_by_hand() -> None:
    """1,024 rows of (24576, 7168) took 826 µs on a B200 (github.com/sgl-project/sglang/pull/13528)."""
    gpu = find("B200")
    call = Gemm(1024, 24576, 7168, dtype="fp8_block")
    flops = 2.0 * 1024 * 24576 * 7168
    assert slow_us(call, 1610.0, gpu) == pytest.approx(flops / (1610.0 * 148 * gpu.sustained_clock_mhz))
    assert slow_us(call, 1610.0, gpu) == pytest.approx(826, rel=0.03)


def test_flashinfers_product_is_slower_for_long_prompts_only() -> None:
    assert prompt_us("flashinfer_trtllm", 16) == prompt_us("", 16)
    assert prompt_us("flashinfer_trtllm", 8192) > 2.0 * prompt_us("", 8192)


def test_a_backend_of_products_is_chosen_by_name_or_refused() -> None:
    with pytest.raises(BadInput, match="flashinfer_trtllm"):
        prompt_us("deepep", 16)


LAYER = {"experts": 256, "topk": 8, "hidden": 7168, "inter": 2048, "dtype": "fp8_block"}
LAW = GroupedGemmTime(20.0, 1.5, 2.0)


def test_masked_rows_by_hand() -> None:
    """One expert a rank and all of them chosen: its weights at DRAM's rate, its rows at the peak."""
    gpu = find("GB200")
    call = FusedMoe(32 * 256, ep=256, **LAYER)  # type: ignore[arg-type]
    each = 3 * 7168 * 2048
    read = 1e6 * each * (1 + 4 / 128**2) / (1e9 * gpu.dram_gbps)
    multiplied = 1e6 * 2 * each * 256 / gpu.peak_flops("fp8_block")
    assert masked_us(call, LAW, gpu) == pytest.approx(20 + ((1.5 * read) ** 2 + (2 * multiplied) ** 2) ** 0.5, rel=1e-6)
    fewer = FusedMoe(8, ep=256, **LAYER)  # type: ignore[arg-type]
    assert 20.0 < masked_us(fewer, LAW, gpu) < masked_us(call, LAW, gpu)


def test_the_law_of_masked_rows_is_that_of_deepep_alone() -> None:
    """Decode steps of SGLang behind DeepEP take what the law says; behind gathering they are predicted from rows."""
    model, split = load("DeepSeek-R1"), Parallel(1, 1, 32, 32)

    def experts_us(exchange: str, requests: int) -> float:
        engine = find_engine("sglang:0.5.8").what_if(exchange=exchange)
        runner = Runner.of(Deployment(model, split), find("GB200"), engine)
        steps = runner.steps([runner.batch([1] * requests, [1000] * requests)])
        return float(steps.families["fused_moe"][0])

    rule = find_engine("sglang:0.5.8").what_if(exchange="deepep").on(
        DeploymentFacts(gpu="GB200", dp=32, ep=32, experts=True, dtype="fp8_block")
    ).kernel("fused_moe", "fp8_block")  # fmt: skip
    assert rule is not None
    call = FusedMoe(32 * 32, ep=32, **LAYER)  # type: ignore[arg-type]
    assert experts_us("deepep_narrow", 32) == pytest.approx(
        58 * masked_us(call, rule.masked_gemm, find("GB200")), rel=0.05
    )
    assert experts_us("allgather", 32) != pytest.approx(experts_us("deepep_narrow", 32), rel=0.05)
    # A launch in low-latency mode stays masked however many tokens; one that goes by their number does not.
    many = FusedMoe(256 * 32, ep=32, **LAYER)  # type: ignore[arg-type]
    masked = 58 * masked_us(many, rule.masked_gemm, find("GB200"))
    assert experts_us("deepep_ll_narrow", 256) == pytest.approx(masked, rel=0.05)
    assert experts_us("deepep_narrow", 256) > 1.5 * masked
    assert experts_us("deepep_ht_narrow", 32) > experts_us("deepep_ll_narrow", 32)


def test_fp8_experts_on_blackwell_ran_on_deepgemm_alone_until_tensorrt_llm_1_2() -> None:
    def backend(version: str, dtype: str) -> str:
        facts = DeploymentFacts(gpu="B200", mma="tcgen05", experts=True, dtype=dtype)
        rule = find_engine(f"trtllm:{version}").on(facts).kernel("fused_moe", dtype)
        return rule.backend if rule else ""

    assert [backend(one, "fp8_block") for one in ("1.1.0rc2", "1.2.0rc2")] == ["DEEPGEMM", "DEEPGEMM"]
    assert [backend(*one) for one in (("1.2.0rc6", "fp8_block"), ("1.1.0rc2", "nvfp4"))] == ["TRTLLM", "TRTLLM"]


@pytest.mark.skipif(not (corpus() / "aiconfigurator").is_dir(), reason="needs the corpus")
@pytest.mark.parametrize("gpu", masked_experts.GPUS)
def test_constants_that_ship_hold_on_rows_of_each_gpu(gpu: str) -> None:
    shipped = masked_experts.shipped("masked", masked_experts.GPUS[gpu])
    assert masked_experts.error(shipped, masked_experts.rows(gpu)) < 10.0


@pytest.mark.skipif(not (corpus() / "aiconfigurator").is_dir(), reason="needs the corpus")
@pytest.mark.parametrize("gpu", masked_experts.GPUS)
def test_constants_of_masked_rows_hold_on_a_gpu_they_were_not_fitted_on(gpu: str) -> None:
    pytest.importorskip("scipy")
    table = masked_experts.rows(gpu)
    others = np.concatenate([masked_experts.rows(name) for name in masked_experts.GPUS if name != gpu])
    assert masked_experts.error(masked_experts.fitted(others), table) < 10.0


def test_a_sparse_module_is_launched_kernel_by_kernel() -> None:
    """One measured call stands for a module of many kernels: the host that launches a prompt pays for each."""
    setting = {"gpu": "B200", "mma": "tcgen05", "attention": "mla", "experts": True}
    asked = {
        name: find_engine("sglang").on(DeploymentFacts(**setting, model_type=name)) for name in ("glm_moe_dsa", "llama")
    }
    rules = {name: engine.kernel("attention_module", "fp8_block") for name, engine in asked.items()}
    call = AttentionModule([922], [922], kind="dsa", heads=16, hidden=6144)
    assert launches_of(call, rules["glm_moe_dsa"]) == 35
    assert launches_of(call, rules["llama"]) == 1


def _product_us(gpu: str, version: str, rows: int, *, quantize: bool = True) -> float:
    """µs of a down projection in FP8 inside a step of vLLM."""
    call = Gemm(rows, 4096, 14336, dtype="fp8", quantize=quantize)
    engine = find_engine(f"vllm:{version}").on(DeploymentFacts(gpu=gpu, mma=find(gpu).traits.mma))
    return float(kernel_latencies([call], find(gpu), engine).found.latency_us[0])


@pytest.mark.parametrize("gpu", ["H100", "H200"])
def test_compiled_norms_quantise_for_nothing_while_rows_stay_in_l2(gpu: str) -> None:
    """14,336 columns of 16 bits are 28 KiB a row: 1,024 rows fit the L2 of either card, 8,192 do not."""
    assert _product_us(gpu, "0.22.1", 8) == _product_us(gpu, "0.22.1", 8, quantize=False)
    assert _product_us(gpu, "0.22.1", 1024) == _product_us(gpu, "0.22.1", 1024, quantize=False)
    assert _product_us(gpu, "0.22.1", 8192) > 1.05 * _product_us(gpu, "0.22.1", 8192, quantize=False)


def test_products_of_releases_not_read_pay_for_quantising() -> None:
    assert _product_us("H200", "0.14.0", 8) > 1.05 * _product_us("H200", "0.14.0", 8, quantize=False)


def test_an_engine_routes_what_does_not_say_how_it_is_routed_and_nothing_else() -> None:
    engine = find_engine("vllm:0.22.1").what_if(routing="power_law_1.2")
    routings = (UNSAID, "power_law_1.2", "balanced")
    calls = [FusedMoe(256, experts=64, topk=6, hidden=2048, inter=1408, routing=routing) for routing in routings]
    unsaid, skewed, balanced = kernel_latencies(calls, find("H200"), engine).found.latency_us
    assert unsaid == skewed != balanced
    alone = kernel_latencies(calls, find("H200"), engine.what_if(routing="")).found.latency_us
    assert [skewed, balanced] == pytest.approx(alone[1:])
    assert alone[0] != skewed


@pytest.mark.parametrize("version", ["0.11.0", "0.19.0", "0.22.1"])
@pytest.mark.parametrize("gpu", ["B200", "GB200"])
def test_products_of_a_long_prompt_gain_from_fp8_on_blackwell(version: str, gpu: str) -> None:
    """CUTLASS does 2.2 PFLOP/s there, and cuBLAS 1.4 in 16 bits; rows of 0.19 in FP8 do less than the latter."""

    def seconds(dtype: str) -> float:
        card = json.loads((files("pipewave") / "data" / "models" / "Llama-3.1-70B.json").read_text("utf-8"))
        online = (
            {"quantization_config": {"quant_method": "fp8", "activation_scheme": "static"}} if dtype == "fp8" else {}
        )
        runner = Runner.of(
            Deployment(load(dict(card) | online), Parallel(1)), find(gpu), find_engine(f"vllm:{version}")
        )
        products = [
            use
            for use in runner.deployment.kernels(runner.batch([8192], [8192]))
            if use.name in ("gate_up_proj", "down_proj")
        ]
        assert {use.call.dtype for use in products if isinstance(use.call, Gemm)} == {dtype}
        return float(runner.steps([runner.batch([8192], [8192])]).families["gemm"][0])

    assert seconds("fp8") < 0.75 * seconds("bf16")


def latent(version: str, gpu: str = "B200", dp: int = 8) -> Runner:
    """DeepSeek-V3 under SGLang with attention data parallelism."""
    return Runner.of(
        Deployment(load("DeepSeek-V3"), Parallel(1, 1, dp, dp=dp)), find(gpu), find_engine(f"sglang:{version}")
    )


def prompts(runner: Runner, *pieces: tuple[int, int]) -> set[str]:
    """Phases of latent attention over prompt pieces (tokens, cached before)."""
    batch = Batch(tuple(q for q, _ in pieces), tuple(q + before for q, before in pieces))
    return {use.call.phase for use in runner.deployment.by_length(batch) if isinstance(use.call, Mla)}


def test_prompts_behind_a_prefix_stay_latent_where_the_engine_leaves_them() -> None:
    for before, phase in ((0, "context"), (512, "generation"), (8191, "generation"), (8192, "context")):
        assert prompts(latent("0.5.3"), (2048, before)) == {phase}
    assert prompts(latent("0.5.2"), (2048, 100_000)) == {"generation"}
    assert prompts(latent("0.5.3"), (1024, 0), (1024, 64)) == {"generation"}, "all prompts of a step go one way"
    for runner in (latent("0.5.4"), latent("0.5.3", dp=1)):
        assert prompts(runner, (2048, 512)) == {"context"}
    for before, phase in ((0, "context"), (512, "generation"), (8192, "context")):
        assert prompts(latent("0.5.9", "H200", dp=1), (2048, before)) == {phase}


def test_expanded_prompts_on_hopper_take_no_rows_of_latent_ones() -> None:
    """SGLang's rows of FlashAttention 3 are of 3.4 times the products."""
    runner, gpu = latent("0.5.9", "H200"), find("H200")
    call = Mla((8192,), (8192,), 128, "context")
    rows = runner.engine.what_if(kernel_rules=())
    expanded, own = (
        float(kernel_latencies([call], gpu, engine).found.latency_us[0]) for engine in (runner.engine, rows)
    )
    flops = 2 * 128 * (192 + 128) * 8192**2 / 2
    assert 400e6 < flops / expanded < 900e6  # FLOP/µs
    assert own > 2 * expanded


def test_latent_prompts_run_at_the_rate_of_the_older_kernel() -> None:
    """Published on B200: 128 requests of 4,096 and 32,768 tokens in 0.569 and 4.413 ms; pairs by hand."""
    gpu, runner = find("B200"), latent("0.5.3")
    for kv, us in ((4096, 569.0), (32768, 4413.0)):
        assert slow_us(Mla((1,) * 128, (kv,) * 128, 128, "generation"), 965.0, gpu) == pytest.approx(us, rel=0.04)
    chunk = Mla((2048,), (8192,), 128, "generation")
    pairs = sum(6145 + i for i in range(2048))
    least = 2 * 128 * 1088 * pairs / (965.0 * gpu.sms * gpu.sustained_clock_mhz)
    assert slow_us(chunk, 965.0, gpu) == pytest.approx(least)
    assert kernel_latencies([chunk], gpu, runner.engine).found.latency_us[0] == pytest.approx(least)
    step = Mla((1,) * 64, (4096,) * 64, 128, "generation")
    plain = runner.engine.what_if(kernel_rules=())
    assert kernel_latencies([step], gpu, runner.engine).found.latency_us == pytest.approx(
        kernel_latencies([step], gpu, plain).found.latency_us
    )


@pytest.mark.parametrize(("engine", "version"), [("vllm", "0.22.1"), ("sglang", "0.5.14")])
def test_fp8_weights_on_ampere_are_read_as_bytes_and_multiplied_in_16_bits(engine: str, version: str) -> None:
    """Marlin: few rows wait for a byte a weight, many for products at the 16-bit rate; nothing is quantised."""
    gpu, profile = find("A100"), find_engine(f"{engine}:{version}")
    sizes, kind = {"n": 8192, "k": 8192}, {"dtype": "fp8_block", "quantize": True}
    few, many = (Gemm(m, **sizes, **kind) for m in (16, 2048))
    runner = Runner.of(Deployment(load("Qwen3-32B-FP8")), gpu, profile)
    kernels = kernels_of((few, many), gpu, runner.engine)
    assert [(one.call.dtype, one.call.quantize) for one in kernels] == [("int8", False), ("bf16", False)]
    found = kernel_latencies((few, many), gpu, runner.engine).found.latency_us
    bytes_us, flops_us = 8192**2 / gpu.dram_gbps * 1e-3, 2 * 2048 * 8192**2 / gpu.peak_flops("bf16") * 1e6
    assert bytes_us < found[0] < 2.0 * bytes_us and flops_us < found[1] < 2.0 * flops_us
    wide = kernel_latencies((Gemm(16, **sizes), Gemm(2048, **sizes)), gpu, runner.engine).found.latency_us
    assert found[0] < 0.8 * wide[0] and found[1] == pytest.approx(wide[1])
    assert any("without FP8 tensor cores" in note for _, note in kernels[0].own)


def test_fp8_weights_on_ampere_of_engines_without_marlin() -> None:
    deployment = Deployment(load("Qwen3-32B-FP8"))
    for gpu, engine in (("A100", "trtllm:1.2.0"), ("T4", "vllm:0.22.1")):
        runner = Runner.of(deployment, find(gpu), find_engine(engine))
        with pytest.raises(UnsupportedDtype, match="fp8_block"):
            runner.steps([runner.batch([1], [100])])
    experts = FusedMoe(64, 64, 8, 2048, 1024, dtype="fp8")
    runner = Runner.of(Deployment(load("Qwen3-30B-A3B-FP8")), find("A100"), find_engine("vllm:0.22.1"))
    calls = [
        kernel.call.dtype for kernel in kernels_of((experts, experts.changed(tokens=768)), find("A100"), runner.engine)
    ]
    assert calls == ["int8", "bf16"], "8 rows of an expert, and 96"

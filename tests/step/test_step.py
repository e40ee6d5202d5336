"""An engine step is exactly the sum of its kernels and its named gaps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pipewave.calls.families import Gemm
from pipewave.errors import BadInput, DoesNotFit
from pipewave.gpus import find
from pipewave.models import load
from pipewave.models.kernels import Batch, Deployment
from pipewave.models.shard import ALONE, Parallel
from pipewave.physics.power import LIMIT_EXPONENT, board_of, limited_us
from pipewave.prediction.api import predict
from pipewave.software.engine import Engine
from pipewave.software.rules import constant
from pipewave.step import Runner, StepLoad, find_engine
from pipewave.step.kernel_latency import kernel_latencies
from pipewave.step.memory import GIB, budget, cache_bytes
from pipewave.step.predict import detail, hosts_of


def runner(model: str = "Llama-3.1-8B", gpu: str = "H200", engine: str = "vllm", parallel: Parallel = ALONE) -> Runner:
    return Runner.of(Deployment(load(model), parallel), find(gpu), find_engine(engine))


@pytest.mark.parametrize(("ranks", "hosts"), [(1, 1), (4, 1), (8, 1), (9, 3), (12, 2), (16, 2), (20, 4), (72, 9)])
def test_ranks_beyond_one_host_share_as_many_as_hold_them_evenly(ranks: int, hosts: int) -> None:
    assert hosts_of(ranks, find("H200")) == hosts


def test_a_group_of_a_host_and_a_half_is_answered() -> None:
    steps = runner("Kimi-K2-Instruct", "B200", parallel=Parallel(1, ep=12, dp=12)).steps([Batch((1,) * 4, (64,) * 4)])
    assert 0 < steps.total_us[0] < 1e6


BATCHES = [Batch((1,) * 4, (100, 200, 300, 400)), Batch((512, 256), (512, 700)), Batch((1, 1, 64), (9, 99, 64))]


@pytest.mark.parametrize(
    ("model", "parallel"),
    [
        ("Llama-3.1-8B", Parallel()),
        ("Qwen3-32B", Parallel(2)),
        ("Llama-3.1-70B", Parallel(4, 2)),
        ("gpt-oss-20b", Parallel()),
    ],
)
def test_a_step_is_the_sum_of_its_kernels_and_gaps(model: str, parallel: Parallel) -> None:
    run = runner(model, parallel=parallel)
    steps = run.steps(BATCHES)
    for index, batch in enumerate(BATCHES):
        kernels = 0.0
        for stage in range(parallel.pp):
            uses = run.deployment.kernels(batch, stage)
            found = kernel_latencies([u.call for u in uses], run.gpu, run.engine).found
            kernels += float(np.dot(found.latency_us, [u.count for u in uses]))
        gaps = sum(float(values[index]) for values in steps.gaps.values())
        assert steps.total_us[index] == pytest.approx(kernels + gaps, rel=1e-6)
        families = sum(float(values[index]) for values in steps.families.values())
        assert families == pytest.approx(kernels, rel=1e-6)


def test_intervals_hold_the_answer_and_shrink_from_kernels_to_steps() -> None:
    run = runner()
    steps = run.steps(BATCHES)
    assert np.all(steps.low_us < steps.total_us)
    assert np.all(steps.total_us < steps.high_us)
    uses = run.deployment.kernels(BATCHES[0])
    found = predict([u.call for u in uses], run.gpu, protocol="serving", stack=run.engine.stack)
    widest = float(np.max(found.high_us / found.latency_us))
    assert steps.high_us[0] / steps.total_us[0] < widest


def test_half_of_a_kernels_error_is_common_to_the_step() -> None:
    """Against the errors drawn: half of each kernel's variance is one draw for the step, the rest a draw of its own."""
    run, batch = runner(), BATCHES[0]
    steps, uses = run.steps([batch]), run.deployment.kernels(batch)
    found, counts = (
        kernel_latencies([u.call for u in uses], run.gpu, run.engine).found,
        np.array([u.count for u in uses]),
    )
    half = np.log(found.high_us / found.latency_us) * found.latency_us * counts
    draws = np.random.default_rng(0)
    shared, own = draws.normal(size=(20_000, 1)), draws.normal(size=(20_000, len(half)))
    deviation = float(((np.sqrt(0.5) * shared + np.sqrt(0.5) * own) * half).sum(axis=1).std())
    kernels = float(np.dot(found.latency_us, counts))
    assert np.log(steps.high_us[0] / steps.total_us[0]) == pytest.approx(deviation / kernels, rel=0.03)
    assert np.log(steps.total_us[0] / steps.low_us[0]) == pytest.approx(deviation / kernels, rel=0.03)


def test_steps_do_not_depend_on_their_company() -> None:
    run = runner()
    together = run.steps(BATCHES).total_us
    alone = [float(run.steps([batch]).total_us[0]) for batch in BATCHES]
    assert together == pytest.approx(alone, rel=1e-6)


def test_energy_of_a_step_is_the_power_of_all_boards_for_its_time() -> None:
    found = runner(parallel=Parallel(2, 2))
    steps = found.steps([found.batch([1] * 4, [500] * 4)])
    energy, seconds = found.energy(steps), 1e-6 * float(steps.total_us[0])
    for end in ("", "_low", "_high"):
        assert energy[f"energy_j{end}"] == pytest.approx(4 * seconds * energy[f"power_w{end}"])
    assert energy["power_w"] == pytest.approx(float(steps.power_w[0]))
    assert energy["power_w_low"] < energy["power_w"] < energy["power_w_high"]


def test_more_work_takes_longer() -> None:
    run = runner()
    sizes = [Batch((n,), (n,)) for n in (64, 512, 2048, 8192)]
    assert np.all(np.diff(run.steps(sizes).total_us) > 0)
    lengths = [Batch((1,) * 32, (n,) * 32) for n in (128, 1024, 8192, 65536)]
    assert np.all(np.diff(run.steps(lengths).total_us) > 0)


def test_decode_is_padded_to_a_captured_graph() -> None:
    vllm = find_engine("vllm")
    assert [vllm.graphs.padded(n) for n in (1, 2, 3, 5, 9, 17, 250, 257, 512, 600)] == [
        1,
        2,
        4,
        8,
        16,
        24,
        256,
        272,
        512,
        600,
    ]
    assert runner().batch([1] * 9, [64] * 9).rows == 16
    assert runner().batch([9], [64]).rows == 9


@pytest.mark.parametrize("requests", range(1, 300))
def test_padding_never_shrinks_a_batch(requests: int) -> None:
    for name in ("vllm", "sglang"):
        assert find_engine(name).graphs.padded(requests) >= requests


def load_of(kernel_us: float, *, graph: bool, rows: float = 4096.0, at_limit_us: float = 0.0) -> StepLoad:
    columns = (np.array([value]) for value in (kernel_us, at_limit_us, 300.0, 340.0, 8.0, rows))
    return StepLoad(*columns, graph=np.array([graph]), layers=np.array([32.0]))


def test_the_host_matters_only_when_the_gpu_waits_for_it() -> None:
    engine = find_engine("vllm")
    eager, pieces, graph = (
        {us: float(engine.gaps_us(load_of(us, graph=replayed, rows=rows))["launch"][0]) for us in (1.0, 1e6)}
        for replayed, rows in ((False, 4096.0), (False, 256.0), (True, 256.0))
    )
    assert eager[1.0] > pieces[1.0] > graph[1.0] > 0
    assert eager[1e6] == pieces[1e6] == graph[1e6] == 0


@pytest.mark.parametrize("name", ["vllm", "sglang"])
@pytest.mark.parametrize(("graph", "rows"), [(True, 64.0), (False, 64.0), (False, 4096.0)])
@pytest.mark.parametrize("kernel_us", [10.0, 5e3, 1e6])
def test_a_regime_is_the_sum_of_the_named_gaps(name: str, graph: bool, rows: float, kernel_us: float) -> None:
    engine, load = find_engine(name), load_of(kernel_us, graph=graph, rows=rows)
    gaps = sum(float(values[0]) for values in engine.gaps_us(load).values())
    regime = engine.gaps_of(graph=graph, rows=rows, nodes=300.0, launches=340.0, layers=32.0)
    busy = max(kernel_us + regime.between_us, regime.beside_us)
    assert busy + regime.after_us + 8 * engine.each_request_us == pytest.approx(kernel_us + gaps)


def test_power_binds_only_work_that_needs_more_than_the_board_delivers() -> None:
    kernels, at_limit = np.array([100.0, 100.0, 100.0]), np.array([0.0, 60.0, 300.0])
    limited = limited_us(kernels, at_limit)
    assert limited == pytest.approx([100.0, 100.0, 100.0 * 3 ** (1 / LIMIT_EXPONENT)], rel=1e-3)
    assert np.all(limited >= kernels)


def test_an_h200_sustains_what_its_microbenchmark_measured() -> None:
    gpu, found = find("H200"), kernel_latencies([Gemm(8192, 8192, 8192)], find("H200"), find_engine("vllm")).found
    (sustained_us,) = limited_us(found.latency_us, board_of(gpu).at_limit_us(found.above_idle_j))
    assert 2.0 * 8192**3 / (1e-6 * sustained_us) == pytest.approx(660e12, rel=0.06)


def _clock(state: str) -> float:
    return float(constant("sm_clock", state=state))


def test_a_step_spares_streaming_kernels_the_write_back_of_a_flush() -> None:
    gpu, engine = find("H200"), find_engine("vllm")
    thin, thick = Gemm(1, 14336, 4096), Gemm(8192, 14336, 4096)
    busy, alone = ({"sm_clock_mhz": share * gpu.boost_clock_mhz} for share in map(_clock, ("loaded", "idle")))
    cold = predict([replace(thin, **busy), replace(thick, **busy)], gpu, stack=engine.stack)
    quick = predict(replace(thick, **alone), gpu, stack=engine.stack)
    found = kernel_latencies([thin, thick], gpu, engine).found
    assert found.floor_us[0] <= found.latency_us[0] < cold.latency_us[0]
    assert 0.99 * quick.latency_us < found.latency_us[1] < 1.01 * cold.latency_us[1]


def test_unknown_engine_is_named() -> None:
    with pytest.raises(BadInput, match="did you mean vllm"):
        find_engine("vlm")
    assert isinstance(find_engine(find_engine("sglang")), Engine)


def test_memory_parts_add_up() -> None:
    run = runner("Llama-3.1-8B")
    memory = budget(run.deployment, run.gpu, run.engine)
    parts = memory.weights + memory.activations + memory.engine + memory.kv + memory.free
    assert parts == pytest.approx(memory.total)
    assert memory.kv_tokens % run.engine.memory.page_size == 0
    assert cache_bytes(run.deployment, memory.kv_tokens) <= memory.kv * GIB
    assert cache_bytes(run.deployment, memory.kv_tokens + run.engine.memory.page_size) > memory.kv * GIB


def test_windows_cap_the_cache() -> None:
    deployment = Deployment(load("gpt-oss-20b"))
    per_layer = 2 * 8 * 64 * 2
    assert cache_bytes(deployment, 10_000) == 12 * per_layer * 128 + 12 * per_layer * 10_000
    assert cache_bytes(deployment, 100) == 24 * per_layer * 100


def test_a_model_that_does_not_fit_says_so() -> None:
    with pytest.raises(DoesNotFit, match=r"Llama-3\.1-70B does not fit 1 × H100"):
        budget(Deployment(load("Llama-3.1-70B")), find("H100"), find_engine("vllm"))


@pytest.mark.parametrize(
    ("model", "engine", "parallel"),
    [
        ("Qwen3-30B-A3B", "vllm", ALONE),
        ("Qwen3-30B-A3B", "vllm", Parallel(2, 2)),
        ("Llama-3.1-8B", "trtllm", ALONE),  # whose kernels write the cache and rotate within attention
        ("DeepSeek-R1", "vllm", Parallel(8)),  # whose shared experts run beside routed ones
        ("DeepSeek-R1", "sglang", Parallel(8)),  # where they are one more routed expert
    ],
)
def test_the_parts_of_a_step_add_up(model: str, engine: str, parallel: Parallel) -> None:
    run = runner(model, engine=engine, parallel=parallel)
    steps = run.steps(BATCHES)
    for index, batch in enumerate(BATCHES):
        parts = detail(run, batch)
        assert sum(part.total_us for part in parts) == pytest.approx(float(steps.total_us[index]))
        assert sum(part.share for part in parts) == pytest.approx(1)
        assert {part.family for part in parts} - {"gap"} == {one for one in steps.families if one != "shared_overlap"}
    assert sum(float(share[0]) for share in steps.basis.values()) == pytest.approx(1)


def test_evidence_adds_up_where_kernels_run_beside_others() -> None:
    steps = runner("DeepSeek-R1", parallel=Parallel(8)).steps([Batch((1,) * 8, (1024,) * 8)])
    assert steps.families["shared_overlap"][0] < 0
    assert sum(float(share[0]) for share in steps.basis.values()) == pytest.approx(1)


def test_prompts_and_decodes_are_one_attention_kernel_but_where_the_engine_runs_two() -> None:
    def attention(gpu: str) -> list[tuple[int, ...]]:
        runner = Runner.of(Deployment(load("Llama-3.1-8B")), find(gpu), find_engine("vllm"))
        uses = runner.deployment.kernels(runner.batch([1, 512, 1], [100, 512, 200]))
        return [use.call.q_lens for use in uses if use.name == "attention"]  # type: ignore[attr-defined]

    assert attention("H200") == [(1, 512, 1)]
    assert attention("B200") == [(512,), (1, 1)]


def test_what_a_request_costs_without_overlap_is_gone_with_it() -> None:
    engine = find_engine("vllm:0.11.0")
    assert not engine.scheduler.overlaps and engine.host.serial_request_us > 0
    beside = engine.what_if(overlaps=True)
    assert engine.each_request_us - beside.each_request_us == pytest.approx(engine.host.serial_request_us)
    kind = {"graph": True, "rows": 8.0, "nodes": 100.0, "launches": 0.0, "layers": 32.0}
    assert (engine.gaps_of(**kind).beside_us, beside.gaps_of(**kind).beside_us) == (0.0, engine.host.step_us)


@pytest.mark.parametrize("gpu", ["V100", "T4"])
def test_a_gpu_without_bf16_runs_models_in_fp16_and_says_so(gpu: str) -> None:
    run = runner(gpu=gpu, parallel=Parallel(2))
    steps = run.steps([run.batch([1] * 4, [512] * 4)])
    assert any(f"{gpu} has no bf16" in note for note in steps.notes)
    weights_us = 1e6 * 8.03e9 * 2 / 2 / (find(gpu).dram_gbps * 1e9)
    assert steps.total_us[0] > 0.9 * weights_us


def test_a_call_in_fp16_is_the_same_on_a_gpu_without_bf16_and_needs_no_note() -> None:
    half = [Gemm(4, 4096, 4096, dtype="fp16")]
    found = kernel_latencies(half, find("T4"), find_engine("vllm"))
    assert not any("has no bf16" in note for note in found.notes)
    assert (
        kernel_latencies([replace(half[0], dtype="bf16")], find("T4"), find_engine("vllm")).found.latency_us
        == found.found.latency_us
    )

"""Steps against the committed vLLM measurements of an H200, and against profiler traces of such steps."""

from __future__ import annotations

import json
from functools import partial

import numpy as np
import pytest

from pipewave.calls.families import Attention, Gemm
from pipewave.gpus import find
from pipewave.step import find_engine
from pipewave.step.kernel_latency import kernel_latencies
from pipewave.step.memory import budget
from studies.e2e_steps import Measured, engines, measure_loads, points, runner_of, steps_of
from studies.e2e_traces import family_of, traced
from studies.e2e_vllm import leave_one_model_out, memory, score
from train.step_fit import fit


@pytest.fixture(scope="module")
def measured() -> Measured:
    return measure_loads(points())


def test_there_are_points_of_five_models_and_both_phases(measured: Measured) -> None:
    assert len({point.model for point in measured.points}) == 5
    assert sum(point.phase == "prefill" for point in measured.points) >= 50
    assert sum(point.phase == "decode" for point in measured.points) >= 60


@pytest.mark.parametrize("constants", ["shipped", "held out"])
def test_predicted_steps_meet_their_bars(measured: Measured, constants: str) -> None:
    """Prefill within 5 %, decode within 3.2 %, neither biased by more than 2 %, also with whole models held out."""
    real = np.array([point.measured_ms for point in measured.points])
    shipped = find_engine("vllm")
    ms = measured.predict_ms(shipped) if constants == "shipped" else leave_one_model_out(measured, shipped)
    figures = score(measured.points, 100 * (ms / real - 1))
    assert figures["prefill"]["mape"] <= 5.0
    assert figures["decode"]["mape"] <= 3.2
    assert abs(figures["prefill"]["bias"]) <= 2.0
    assert abs(figures["decode"]["bias"]) <= 2.0


def test_a_release_to_which_nothing_was_fitted_is_predicted_too() -> None:
    """Steps inside vLLM 0.26.0, of which no kernel row exists: within 6 %, decode 3 %; and the defaults that it names."""
    name = "vllm:0.26.0"
    later = measure_loads(points("0.26.0"), partial(runner_of, name=name))
    real = np.array([point.measured_ms for point in later.points])
    figures = score(later.points, 100 * (later.predict_ms(find_engine(name)) / real - 1))
    assert figures["prefill"]["mape"] <= 6.0
    assert figures["decode"]["mape"] <= 3.0
    started = engines("0.26.0")
    assert len(started) == 3
    for row in started:
        runner = runner_of(row["model"], 1, name)
        tokens = budget(runner.deployment, runner.gpu, runner.engine).kv_tokens
        assert tokens == pytest.approx(row["kv_tokens_logged"], rel=0.02)
        said = (row["max_requests"], row["memory_share"], json.loads(row["graph_sizes"])[-1])
        engine = runner.engine
        assert (engine.scheduler.max_requests, engine.memory.memory_share, engine.graphs.graph_limit) == said


def test_a_mixture_decodes_as_predicted_at_every_batch(measured: Measured) -> None:
    """Experts drawn at random, 1 to 256 requests: within 4 % on average, no point beyond 8 %."""
    chosen = [point.phase == "decode" and point.model == "Qwen3-30B-A3B" for point in measured.points]
    mixture = measured.only(np.array(chosen))
    assert {point.batch for point in mixture.points} == {1, 2, 4, 8, 16, 32, 64, 128, 256}
    errors = 100 * (mixture.predict_ms(find_engine("vllm")) / [point.measured_ms for point in mixture.points] - 1)
    assert np.abs(errors).mean() < 4.0
    assert np.abs(errors).max() < 8.0


def test_fitted_constants_do_not_leave_their_meaning(measured: Measured) -> None:
    few = measured.only(np.arange(len(measured.points)) % 6 == 0)
    found = fit(few, find_engine("vllm"))
    assert 0.4 <= found.host.graph_gap_us <= found.host.stream_gap_us <= 3.0
    assert found.host.launch_us > found.host.graph_gap_us


def test_chunks_of_a_prompt_cover_it() -> None:
    long = next(point for point in points() if len(point.chunks) == 2 and point.batch == 1)
    first, second = steps_of(long, runner_of(long.model, long.tp))
    assert first.q_lens[0] + second.q_lens[0] == long.input_len == second.kv_lens[0]
    assert first.kv_lens == first.q_lens


def test_products_take_in_a_trace_what_they_are_predicted_to() -> None:
    rows = [row for row in traced() if row["family"] == "gemm"]
    assert len(rows) >= 4
    assert all(abs(row["error_percent"]) < 12 for row in rows)


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("nvjet_sm90_tst_128x32_64x10_2x1_v_bz_TNT", "gemm"),
        ("void cublasLt::splitKreduce_kernel<32, 16, int>", "gemm"),
        ("void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16>", "kv_write"),
        ("triton_red_fused_fused_add_rms_norm_2", "rmsnorm"),
        ("triton_poi_fused_3", "rope"),
        ("fused_moe_kernel", "fused_moe"),
        ("Memcpy HtoD (Pinned -> Device)", "other"),
    ],
)
def test_kernels_are_told_apart_by_name(name: str, family: str) -> None:
    assert family_of(name) == family


def test_cache_capacity_is_within_three_percent_of_the_log() -> None:
    assert all(abs(row["error_percent"]) < 3 for row in memory())


def test_cards_without_cold_rows_answer_from_graph_replays() -> None:
    calls = [Gemm(64, 4096, 4096), Attention((1,) * 8, (512,) * 8, 32, 8, 128)]
    engine = find_engine("vllm")
    for name in ("H200", "L40S"):
        found = kernel_latencies(calls, find(name), engine).found
        assert [found[i].latency_us >= found[i].floor_us for i in range(2)] == [True, True]
    assert {kernel_latencies(calls, find("H200"), engine).found[i].basis for i in range(2)} == {"measured_gpu"}

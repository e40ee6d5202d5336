"""Deployments on AMD's GPUs: laws that hold without rows of them, and what public launches set."""

from __future__ import annotations

from typing import Any

import pytest

from pipewave.gpus import find
from pipewave.models import load
from pipewave.models.kernels import Deployment
from pipewave.models.shard import Parallel
from pipewave.published.answers import answer
from pipewave.published.cases import from_dict
from pipewave.published.unstated import fill
from pipewave.step import Runner, find_engine

CASE = {"model": "DeepSeek-R1", "engine": "sglang", "tp": 8, "isl": 922, "osl": 64, "requests": 16}


def decode_us(gpu: str, requests: int, cache: int) -> float:
    """µs of latent attention in one decode step of DeepSeek-R1 over eight GPUs."""
    runner = Runner.of(Deployment(load("DeepSeek-R1"), Parallel(8)), find(gpu), find_engine("sglang"))
    steps = runner.steps([runner.batch([1] * requests, [cache] * requests)])
    return float(steps.families["mla"][0])


@pytest.mark.parametrize("gpu", ["MI300X", "MI355X"])
def test_latent_attention_of_few_requests_is_split_over_the_gpu(gpu: str) -> None:
    """A long cache of few requests is read by all of the GPU: no slower than that of many times as many."""
    assert decode_us(gpu, 4, 8192) < 2.0 * decode_us(gpu, 32, 1024)
    assert decode_us(gpu, 4, 8192) < 0.5 * decode_us(gpu, 64, 8192)
    assert decode_us(gpu, 4, 8192) < 4.0 * decode_us("H200", 4, 8192)


def test_more_in_flight_takes_longer_a_token() -> None:
    times = [answer(from_dict(CASE | {"gpu": "MI300X", "concurrency": n}))["tpot_ms"] for n in (1, 4, 16)]
    assert times == sorted(times)


def _notes(**more: Any) -> str:
    return " ".join(answer(from_dict(CASE | {"concurrency": 4} | more))["notes"])


@pytest.mark.slow
def test_public_launches_say_how_large_steps_are() -> None:
    assert "chunks of 131,072 tokens" in _notes(gpu="MI300X")
    assert "chunks of 196,608 tokens" in _notes(gpu="MI355X")
    assert "as DeepSeek is launched on AMD" not in _notes(gpu="H200")
    case = from_dict(CASE | {"gpu": "MI300X", "concurrency": 4, "max_num_batched_tokens": 8192})
    assert fill(case.stated(), case.traffic())[0].max_num_batched_tokens == 8192


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_a_cache_in_eight_bits_is_read_no_slower(engine: str) -> None:
    took = []
    for kind in (None, "fp8"):
        deployment = Deployment(load("DeepSeek-R1"), Parallel(8), kind)
        runner = Runner.of(deployment, find("MI355X"), find_engine(engine))
        took.append(float(runner.steps([runner.batch([1] * 64, [8192] * 64)]).families["mla"][0]))
    assert took[1] <= took[0]


def test_small_kernels_come_with_block_scaled_work_alone() -> None:
    """Dense models and their steps stay as they are; DeepSeek's take as many clocks more as their calls have kernels."""
    for model, split, more in (("Llama-3.1-8B", 1, 0), ("DeepSeek-R1", 8, 1)):
        took = []
        for clocks in (0.0, 30_000.0):
            engine = find_engine("sglang").what_if(extra_kernel_clk=clocks)
            runner = Runner.of(Deployment(load(model), Parallel(split)), find("MI300X"), engine)
            took.append(float(runner.steps([runner.batch([1] * 4, [1000] * 4)]).total_us[0]))
        assert (took[1] > 1.2 * took[0]) == bool(more)
        assert more or took[1] == took[0]


def small_kernels(engine: str, gpu: str) -> float:
    """How many small kernels no row holds in a decode step of DeepSeek-R1 over eight GPUs."""
    took = []
    for clocks in (0.0, 1000.0):
        chosen = find_engine(engine).what_if(extra_kernel_clk=clocks)
        runner = Runner.of(Deployment(load("DeepSeek-R1"), Parallel(8)), find(gpu), chosen)
        took.append(sum(float(us[0]) for us in runner.steps([runner.batch([1] * 4, [1000] * 4)]).families.values()))
    return (took[1] - took[0]) * find(gpu).sustained_clock_mhz / 1000.0


def test_small_kernels_are_counted_by_version_and_generation() -> None:
    """Of 61 layers with attention, 58 with experts (4 kernels); 3 products with a kernel of their own, 5 in dense layers."""
    dense, experts = 3, 58
    cdna3 = 61 * (8 + 3) + 2 * dense + 4 * experts
    assert small_kernels("sglang:0.5.8", "MI300X") == pytest.approx(cdna3, rel=0.01)
    assert small_kernels("sglang:0.5.14", "MI300X") == pytest.approx(cdna3 - 2 * 61, rel=0.01)
    assert small_kernels("sglang:0.5.8", "MI355X") == pytest.approx(61 * 2 + 4 * experts, rel=0.01)
    assert small_kernels("vllm:0.13.0", "MI355X") == pytest.approx(61 * 4 + 4 * experts, rel=0.01)

"""Equal requests do not run in step, however `serve` is asked, and whoever asks gets one answer."""

from __future__ import annotations

import json

import pytest

import pipewave as pw
from pipewave.cli import build
from pipewave.simulate.server import Server
from pipewave.simulate.setup import Setup
from pipewave.simulate.traffic import synthetic
from pipewave.software.front import INSIDE, of
from tests.command_line import CliRunner

MODEL, GPU = "Llama-3.1-8B", "H200"
EQUAL = ["--isl", "1000", "--osl", "100", "--concurrency", "16", "--num-prompts", "160"]
CASE = {"isl": 1000, "osl": 100, "concurrency": 16, "requests": 160}


def served(*more: str, engine: str = "vllm:0.22.1") -> dict[str, float]:
    words = ["serve", "--model", MODEL, "--gpu", GPU, "--engine", engine, *EQUAL, "--json", *more]
    done = CliRunner().invoke(build(), words)
    assert done.exit_code == 0, done.output
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize("engine", ["vllm:0.22.1", "sglang:0.5.14", "trtllm:1.2.0"])
def test_equal_requests_do_not_run_in_step(engine: str) -> None:
    found = served(engine=engine)
    assert found["e2e_p99_ms"] > 1.01 * found["e2e_p50_ms"]
    assert found["ttft_p99_ms"] > 1.1 * found["ttft_p50_ms"]


def test_nor_do_those_of_data_parallel_ranks() -> None:
    found = synthetic(160, input_len=1000, output_len=100, concurrency=16)
    server = Server.of("Qwen3-30B-A3B", GPU, Setup(dp=4, ep=4), found.longest)
    answer = server.run(found).answer
    assert answer["e2e_p99_ms"] > 1.01 * answer["e2e_p50_ms"]
    steps = [step.seconds for _, step in server.record(found, keep_steps=True).steps if not step.pieces]
    assert len(set(steps)) > 0.9 * len(steps)  # no two alike


def test_inside_the_engine_equal_requests_do() -> None:
    inside = served("--host", "none", engine="sglang:0.5.14")
    assert inside["e2e_p99_ms"] == pytest.approx(inside["e2e_p50_ms"], rel=1e-6)


@pytest.mark.parametrize("engine", ["vllm:0.22.1", "sglang:0.5.14"])
def test_the_command_and_the_function_give_one_answer(engine: str) -> None:
    name, _, version = engine.partition(":")
    one, other = served(engine=engine), pw.serve(MODEL, GPU, engine=name, version=version, **CASE)
    for metric in ("ttft", "tpot", "e2e"):
        assert one[f"{metric}_mean_ms"] == pytest.approx(other[f"{metric}_ms"], abs=1e-3)
        assert one[f"{metric}_mean_ms_high"] == pytest.approx(other[f"{metric}_ms_high"], rel=1e-3)


def test_a_front_end_that_is_not_named_is_the_engines_own() -> None:
    assert [Setup(engine=name).front_end for name in ("vllm", "sglang:0.5.9")] == [of("vllm"), of("sglang")]
    assert Setup(front=INSIDE).front_end == INSIDE

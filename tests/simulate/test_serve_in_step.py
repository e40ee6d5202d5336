"""Equal requests do not run in step, however `serve` is asked, and whoever asks gets one answer."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

import pipewave as pw
from pipewave.cli import build
from pipewave.simulate.server import Server
from pipewave.simulate.setup import Setup
from pipewave.simulate.traffic import synthetic
from pipewave.software.front import INSIDE, of
from tests.command_line import CliRunner
from tests.simulate.serving import recorded, serve

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
    answer = serve(server, found).answer
    assert answer["e2e_p99_ms"] > 1.01 * answer["e2e_p50_ms"]
    steps = [step.seconds for _, step in recorded(server, found, keep_steps=True).steps if not step.pieces]
    assert len(set(steps)) > 0.9 * len(steps)  # no two alike


def test_inside_the_engine_equal_requests_do() -> None:
    inside = served("--host", "none", engine="sglang:0.5.14")
    # The first of them find the engine idle, and wait for its host.
    assert inside["e2e_p99_ms"] == pytest.approx(inside["e2e_p50_ms"], rel=5e-3)


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


def test_a_prompt_behind_a_running_step_waits_for_no_host() -> None:
    """An engine that schedules ahead prepares captured graphs while the step before runs (`studies.sessions`)."""
    server = Server.of("Llama-3.1-8B", "H200", Setup(engine="vllm:0.22.1", front=INSIDE), 2048)
    hidden = server.table.hidden_s(1, [(200, 0)])
    assert hidden > 0.001
    assert server.table.hidden_s(1, [(2000, 0)]) == 0.0  # launched kernel by kernel
    lengths = {"input_len": 200, "output_len": 50}
    pair = synthetic(2, **lengths, rate=1.0)
    apart, beside = (replace(pair, arrival_s=np.array([0.0, at])) for at in (10.0, 0.05))
    for traffic, whole in ((apart, True), (beside, False)):
        steps = recorded(server, traffic, keep_steps=True).steps
        (second,) = [step for _, step in steps if any(request == 1 for request, _, _ in step.pieces)]
        alone = server.table.seconds(second.decoding, second.cached, [(200, 0)])
        assert second.seconds == pytest.approx(alone if whole else alone - hidden, rel=1e-6)


@pytest.mark.parametrize("requests", [3, 10, 18, 25, 60])
def test_steps_are_read_as_they_are_priced(requests: int) -> None:
    """Decode attention fills the GPU in waves, so the table has to know numbers of requests between powers of two."""
    server = Server.of("Llama-3.1-8B", "H200", Setup(engine="vllm:0.22.1", front=INSIDE), 16384)
    priced = 1e-6 * server.runner.steps([server.runner.batch([1] * requests, [8192] * requests)]).total_us[0]
    assert server.table.seconds(requests, requests * 8192, []) == pytest.approx(priced, rel=0.015)

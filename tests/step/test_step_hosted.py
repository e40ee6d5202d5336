"""The host of an estimate or a step: what changes with its pace, and what does not."""

from __future__ import annotations

import json

import pytest

from pipewave.cli import build
from pipewave.errors import BadInput
from pipewave.gpus import find
from pipewave.models import load
from pipewave.models.kernels import Deployment
from pipewave.prediction.notes import merged
from pipewave.simulate import estimate
from pipewave.software.front import Host, host_of
from pipewave.step import Runner, find_engine
from tests.command_line import CliRunner

HOST_GAPS = {"launch", "host"}


def _runner(engine: str = "vllm") -> Runner:
    return Runner.of(Deployment(load("Qwen3-8B")), find("H100"), find_engine(engine))


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm", "vllm:0.12.0"])
def test_a_slower_host_moves_its_own_gaps_alone(engine: str) -> None:
    """Kernels and the gaps between them stay; a host at half speed makes the rest longer, never shorter."""
    runner = _runner(engine)
    batches = [runner.batch([1] * 8, [600] * 8), runner.batch([300], [300])]
    usual, slow = runner.steps(batches), runner.hosted(Host(speed=0.5)).steps(batches)
    assert (slow.total_us >= usual.total_us).all()
    assert (slow.total_us > usual.total_us).any()
    for name, us in usual.families.items():
        assert slow.families[name] == pytest.approx(us)
    for name, us in usual.gaps.items():
        if name not in HOST_GAPS | {"power_throttling"}:
            assert slow.gaps[name] == pytest.approx(us)
    same = runner.hosted(Host()).steps(batches)
    assert same.total_us == pytest.approx(usual.total_us)


def test_cores_that_take_turns_count_as_a_slower_core() -> None:
    """One GPU, one engine and one API server on one core: three take turns."""
    runner = _runner()
    batch = [runner.batch([64], [64])]
    shared, slow = runner.hosted(host_of("cores=1")), runner.hosted(host_of("speed=0.3333333333"))
    assert shared.steps(batch).total_us == pytest.approx(slow.steps(batch).total_us)


def test_an_estimate_takes_a_host() -> None:
    usual, same, slow = (
        estimate("Qwen3-8B", "H100", batch=1, input_len=64, output_len=8, host=host)
        for host in (None, "speed=1", "speed=0.25")
    )
    assert same.to_dict() == usual.to_dict()
    assert slow.prefill_ms > 1.5 * usual.prefill_ms  # a short prompt waits for its launches
    with pytest.raises(BadInput, match="host"):
        estimate("Qwen3-8B", "H100", batch=1, input_len=64, output_len=8, host="speed=fast")


def test_the_command_takes_a_host() -> None:
    def told(*words: str) -> float:
        step = ["step", "--model", "Qwen3-8B", "--gpu", "H100", "--q-lens", "64", "--kv-lens", "64", "--json", *words]
        return float(json.loads(CliRunner().invoke(build(), step).stdout)["total_us"])

    assert told("--host", "speed=0.25") > 1.5 * told()


def test_what_is_said_of_several_kernels_is_said_once() -> None:
    notes = ("a: rows of x", "a, b: rows of x", "c: rows of y", "times are inside: yes", "times are inside: yes")
    assert merged(notes) == ("times are inside: yes", "a, b: rows of x", "c: rows of y")


def test_a_prompt_that_waits_for_the_host_says_so_and_which_host_would_not() -> None:
    """The share is that of the breakdown; at the pace of published servers the prompt takes less."""
    asked = {"model": "Qwen3-30B-A3B", "gpu": "B200", "batch": 8, "input_len": 2048, "output_len": 8}
    alone, shared = estimate(**asked), estimate(**asked, tp=4)
    assert not any("waits for that host" in note for note in alone.notes)
    (note,) = (note for note in shared.notes if "waits for that host" in note)
    prompts = shared.breakdown["prefill_ms"]
    assert note.startswith(f"{100 * prompts['launch'] / sum(prompts.values()):.0f} %")
    assert estimate(**asked, tp=4, host="speed=2").prefill_ms < 0.7 * shared.prefill_ms


def test_collectives_far_below_the_link_say_that_another_host_may_be_faster() -> None:
    """Rows of eight L40S pass 1 GB/s where a card's link has 32; over NVLink nothing is said, nor of few bytes."""
    asked = {"model": "Llama-3.1-70B", "batch": 1, "input_len": 4096, "output_len": 8, "tp": 8}
    slow = [estimate(gpu=gpu, **asked).notes for gpu in ("L40S", "A100")]
    assert [any("all_reduce" in note and "another host" in note for note in notes) for notes in slow] == [True, False]
    short = estimate(gpu="L40S", **asked | {"input_len": 16})
    assert not any("another host" in note for note in short.notes)

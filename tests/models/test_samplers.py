"""Samplers: kernels over all logits, and what their host work does to steps."""

from __future__ import annotations

from typing import Any

import pytest

from pipewave.calls.families import Elementwise
from pipewave.errors import BadInput
from pipewave.gpus import find
from pipewave.models import load
from pipewave.models.kernels import Deployment
from pipewave.models.samplers import sampler
from pipewave.models.shard import padded_vocab
from pipewave.published.cases import from_dict
from pipewave.published.unstated import fill
from pipewave.simulate.setup import Setup
from pipewave.step import Runner, find_engine

MODEL = "Llama-3.1-8B"
DRAWN: dict[str, Any] = {"engine": "vllm:0.11.1", "overlaps": True, "sampler": "penalties_top_p"}


def runner(**setup: Any) -> Runner:
    return Runner.of(Deployment(load(MODEL)), find("H100"), Setup(**{**DRAWN, **setup}).program())


def step_us(run: Runner, requests: int, cache: int = 512) -> float:
    return float(run.steps([run.batch([1] * requests, [cache] * requests)]).total_us[0])


def test_a_sampler_looks_at_the_logits_of_every_row() -> None:
    rows, vocabulary = 24, padded_vocab(load(MODEL))
    run = runner()
    uses = run.deployment.kernels(run.batch([1] * rows, [512] * rows))
    drawn = [call for use in uses if isinstance(call := use.call, Elementwise) and use.name == "sort_logits"]
    assert [call.bytes_read for call in drawn] == [4 * rows * vocabulary]
    once, twice = (sum(use.call.bytes_read for use in sampler(DRAWN["sampler"]).drawn(n, 1000)) for n in (8, 16))  # type: ignore[attr-defined]
    assert twice == 2 * once


def test_steps_that_draw_take_longer_by_more_than_a_few_requests_do() -> None:
    plain, drawn = runner(sampler=None), runner()
    few, many = (step_us(drawn, n) - step_us(plain, n) for n in (8, 128))
    assert many > 8 * few > 0


def test_the_host_counts_answers_beside_the_gpu() -> None:
    """So that long answers lengthen the steps of many requests, and none that the GPU takes longer for."""
    short, long = runner(), runner(penalised_tokens=30_000)
    assert step_us(long, 8, cache=32_768) == pytest.approx(step_us(short, 8, cache=32_768))
    host = sampler(DRAWN["sampler"])
    assert step_us(long, 256, cache=64) >= 256 * (host.request_us + 30_000 * host.token_us)
    assert step_us(long, 256, cache=64) > step_us(short, 256, cache=64)


def test_an_engine_that_draws_keeps_its_other_times_on_another_host() -> None:
    engine = Setup(**DRAWN, penalised_tokens=100).program()
    slower = engine.on_host(2.0)
    assert slower.host.draw_request_us == 2 * engine.host.draw_request_us
    assert slower.each_request_us == pytest.approx(2 * engine.each_request_us)
    assert find_engine("vllm:0.11.1").host.draw_request_us == 0.0


def test_an_unknown_sampler_is_named() -> None:
    with pytest.raises(BadInput, match="greedy"):
        Setup(sampler="greedy").program()


@pytest.mark.parametrize(("version", "draws"), [("0.11.1", True), ("0.11.2", False), ("0.22.1", False)])
def test_public_runs_of_one_release_draw(version: str, draws: bool) -> None:
    case = {"model": MODEL, "gpu": "H100", "engine": "vllm", "version": version, "isl": 300, "osl": 400}
    asked = from_dict(case | {"concurrency": 8})
    setup, notes, _ = fill(asked.stated(), asked.traffic())
    assert (setup.sampler == DRAWN["sampler"]) is draws
    assert any("penalty" in note for note in notes) is draws
    assert setup.penalised_tokens == (400 if draws else 0)

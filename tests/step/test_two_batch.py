"""Two-batch overlap: the law of two halves taking turns against a walk through their layers, and when engines cut."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipewave.errors import BadInput
from pipewave.gpus import find
from pipewave.models import load
from pipewave.models.expert_parallel import DEEPEP, FEW_TOKENS
from pipewave.models.kernels import Batch, Deployment
from pipewave.models.shard import Parallel
from pipewave.step import Runner, find_engine
from pipewave.step.overlap import TwoBatch, halved

TIMES = st.floats(1.0, 1e3)
SPLIT = Parallel(dp=16, ep=16)


def turns(computing: float, exchanging: float, layers: int) -> float:
    """Two halves walk through layers of kernels and an exchange; either resource serves one of them at a time."""
    kernels = wire = 0.0
    ready = [0.0, 0.0]
    for _ in range(layers):
        for half in (0, 1):
            kernels = max(kernels, ready[half]) + computing / layers / 2
            ready[half] = kernels
        for half in (0, 1):
            wire = max(wire, ready[half]) + exchanging / layers / 2
            ready[half] = wire
    return max(ready)


@given(TIMES, TIMES)
def test_halves_that_take_turns(computing: float, exchanging: float) -> None:
    """The law is within a layer's turn of the walk."""
    layers = 40
    law = float(TwoBatch(2, 2, layers, "deepep_ll", 0.0).busy(computing, exchanging, 64.0))
    assert law == pytest.approx(turns(computing, exchanging, layers), rel=0.06)


@given(TIMES, TIMES)
def test_an_exchange_of_few_tokens_takes_no_sms(computing: float, exchanging: float) -> None:
    """DeepEP's kernels for few tokens copy without SMs, up to the most that they are launched for."""
    halves = TwoBatch(2, 2, 40, DEEPEP, 0.5)
    one, most, more = halves.busy(computing, exchanging, np.array([1.0, FEW_TOKENS, FEW_TOKENS + 1.0]))
    assert one == most == halves.busy(computing, exchanging, 1.0)
    turn = min(computing, exchanging) / 40
    assert most == pytest.approx(max(computing, exchanging) + turn)
    assert more == pytest.approx(
        computing + 0.5 * exchanging + turn if computing > exchanging / 2 else exchanging + turn
    )


@given(TIMES, TIMES)
def test_never_faster_than_either_nor_slower_than_both(computing: float, exchanging: float) -> None:
    busy = float(TwoBatch(2, 2, 60, "deepep_ll", 0.0).busy(computing, exchanging, 64.0))
    assert max(computing, exchanging) <= busy <= computing + exchanging


def test_a_high_throughput_exchange_takes_sms_from_the_kernels() -> None:
    overlap = TwoBatch(2, 2, 60, "deepep", 20 / 132)
    low, high = (float(overlap.busy(1000.0, 500.0, tokens)) for tokens in (128, 129))
    assert high - low == pytest.approx(500.0 * 20 / 132)


def test_two_tokens_are_the_fewest_that_can_be_cut() -> None:
    every = TwoBatch(0, 0, 60, "deepep", 0.0)
    assert [every.cuts(tokens, prompts=True) for tokens in (1, 2, 3)] == [False, True, True]
    some = TwoBatch(8, 4, 60, "deepep", 0.0)
    assert [some.cuts(tokens, prompts=True) for tokens in (7, 8)] == [False, True]
    assert [some.cuts(tokens, prompts=False) for tokens in (3, 4)] == [False, True]


def _runner(model: str = "DeepSeek-V3", split: Parallel = SPLIT, **chosen: object) -> Runner:
    engine = find_engine("sglang").what_if(**({"exchange": "deepep_narrow"} | chosen))
    return Runner.of(Deployment(load(model), split), find("H200"), engine)


def _ms(runner: Runner, batch: Batch) -> float:
    return float(runner.steps([batch]).total_us[0]) * 1e-3


def test_long_prompts_gain_and_few_decodes_lose() -> None:
    """Half of a large prompt step costs half; half of a decode step reads the same weights."""
    plain, cut = _runner(), _runner(two_batch=True)
    prompts, decodes = Batch.of([1024] * 8, [1024] * 8), Batch.of([1] * 16, [1024] * 16)
    assert _ms(cut, prompts) < _ms(plain, prompts)
    assert _ms(cut, decodes) > _ms(plain, decodes)


def test_a_step_below_the_engines_threshold_is_not_cut() -> None:
    """vLLM cuts from 32 decodes of a rank."""
    engine = find_engine("vllm").what_if(exchange="deepep_narrow")
    runners = [
        Runner.of(Deployment(load("DeepSeek-V3"), SPLIT), find("H200"), one)
        for one in (engine, engine.what_if(two_batch=True))
    ]
    for count in (31, 32):
        plain, cut = (_ms(runner, Batch.of([1] * count, [1024] * count)) for runner in runners)
        assert (plain == cut) == (count < 32)


def test_nothing_overlaps_without_an_exchange_of_its_own() -> None:
    for runner in (_runner(split=Parallel(8), two_batch=True), _runner(exchange="allgather", two_batch=True)):
        with pytest.raises(BadInput, match="two_batch_overlap"):
            _ms(runner, Batch.of([1] * 64, [64] * 64))


def test_the_larger_half() -> None:
    assert halved(Batch.of([5, 4, 3], [5, 9, 3])) == Batch.of([5, 3], [5, 3])
    assert halved(Batch.of([1001], [3001])) == Batch.of([501], [2501])
    assert np.sum(halved(Batch.of([1] * 7, [9] * 7, padded=8)).rows) == 4
    assert [halved(Batch.of([1] * 7, [9] * 7, padded=most)).padded for most in (8, 9, 16, None)] == [4, 5, 8, None]

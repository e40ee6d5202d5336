"""Steps that wait for a kernel to be compiled for their number of tokens."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from pipewave.gpus import find
from pipewave.models import load
from pipewave.models.kernels import Deployment
from pipewave.models.shard import Parallel
from pipewave.simulate.data_parallel import DataParallelGroup
from pipewave.simulate.kv_budget import KvBudget
from pipewave.simulate.policies import SglangPolicy
from pipewave.simulate.replica import Replica
from pipewave.simulate.step_grids import RankBatch
from pipewave.simulate.traffic import Traffic
from pipewave.step import Engine, find_engine

COMPILE_S = 0.125
STEP_S = 0.5
MEASURED = Path(__file__).resolve().parents[2] / "studies" / "results" / "compile_cost.json"


PAGES = KvBudget(1 << 12, 1)


def policy(*, mixed: bool = False, compile_s: float = COMPILE_S) -> SglangPolicy:
    return SglangPolicy(1 << 12, 8, mixes_phases=mixed, compile_s=compile_s)


class Even:
    """Every step takes alike."""

    def seconds(self, decoding: int, cached: int, pieces: Sequence[tuple[int, int]], /) -> float:
        return STEP_S


def steps_of(prompts: Sequence[int], *, mixed: bool = False, compile_s: float = COMPILE_S) -> list[tuple[int, float]]:
    """(prompt tokens, seconds beyond an even step) of each step of prompts that come one after another."""
    ones = np.ones(len(prompts), int)
    traffic = Traffic(np.zeros(len(prompts)), np.array(prompts), 2 * ones)
    replica = Replica(Even(), policy(mixed=mixed, compile_s=compile_s), PAGES, traffic)
    found = []
    for request in range(len(prompts)):
        replica.waiting.append(request)
        for _ in range(2):
            step = replica.step(0.0)
            found.append((sum(tokens for _, tokens, _ in step.pieces), step.seconds - STEP_S))
    return found


def test_each_number_of_prompt_tokens_compiles_once_and_decodes_never_do() -> None:
    steps = steps_of([100, 200, 100, 200, 300])
    assert [wait for tokens, wait in steps if tokens] == [COMPILE_S, COMPILE_S, 0.0, 0.0, COMPILE_S]
    assert [wait for tokens, wait in steps if not tokens] == [0.0] * 5


def test_requests_that_decode_beside_a_prompt_count() -> None:
    """100 tokens alone, and 99 beside one request that decodes, are the same kernel."""
    traffic = Traffic(np.zeros(2), np.array([100, 99]), np.array([9, 9]))
    replica = Replica(Even(), policy(mixed=True), PAGES, traffic)
    replica.waiting.append(0)
    first = replica.step(0.0)
    replica.waiting.append(1)
    second = replica.step(0.0)
    assert (second.decoding, first.seconds, second.seconds) == (1, STEP_S + COMPILE_S, STEP_S)


class EvenRanks:
    """Every step of all ranks takes alike."""

    def group_seconds(self, ranks: Sequence[RankBatch], /) -> float:
        return STEP_S


def step_of_ranks(group: DataParallelGroup, *prompts: int) -> float:
    """Seconds beyond an even step of the prompts of as many ranks, and of one that decodes them to their ends."""
    group.waiting.extend(prompts)
    first = group.step(0.0).seconds
    assert group.step(0.0).seconds == STEP_S
    assert group.idle
    return first - STEP_S


def test_ranks_wait_together_for_what_one_compiles_and_find_what_another_did() -> None:
    traffic = Traffic(np.zeros(6), np.array([100, 200, 200, 100, 100, 300]), np.full(6, 2))
    group = DataParallelGroup(EvenRanks(), policy(), PAGES, traffic, 2)
    assert step_of_ranks(group, 0, 1) == COMPILE_S  # 100 and 200 tokens, each on its own cores
    assert step_of_ranks(group, 2, 3) == 0.0
    assert step_of_ranks(group, 4, 5) == COMPILE_S


def test_most_engines_compile_nothing() -> None:
    assert all(wait == 0.0 for _, wait in steps_of([100, 200], compile_s=0.0))


def test_a_server_says_what_it_waits_for() -> None:
    assert "125 ms" in policy().notes[0]
    assert not policy(compile_s=0.0).notes


def engine(name: str, model: str, gpu: str) -> Engine:
    return find_engine(name).on(Deployment(load(model), Parallel(8)).facts(find(gpu)))


@pytest.mark.parametrize("version", ["0.5.9", "0.5.14"])
def test_sglang_compiles_for_delta_nets_as_long_as_was_measured(version: str) -> None:
    measured = json.loads(MEASURED.read_text("utf-8"))["ms"]
    for gpu, capability in (("H100", "90"), ("H200", "90"), ("B200", "100"), ("GB200", "100")):
        found = engine(f"sglang:{version}", "Qwen3.5-397B-A17B", gpu).host.compile_us
        assert found == pytest.approx(1e3 * measured[capability])


def test_other_models_and_other_engines_do_not() -> None:
    assert engine("sglang:0.5.9", "Llama-3.1-8B", "H200").host.compile_us == 0.0
    assert engine("vllm:0.19.0", "Qwen3.5-397B-A17B", "H200").host.compile_us == 0.0

"""The closed form of a prefill's makespan against handing out blocks one by one, in the order of requests."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipewave.gpus import find
from pipewave.kernels import family_of
from pipewave.kernels.attention.family import PREFILL
from pipewave.kernels.attention.prefill import makespan
from pipewave.kernels.attention.setting import AttentionSetting, setting_of
from pipewave.kernels.attention.tasks import Heads, Requests, requests_of
from pipewave.kernels.base import Context
from pipewave.prediction.columns import columns, ragged

FAMILY = family_of("attention")

SMS = find("H200").sms


@dataclass(frozen=True)
class Batch:
    """Blocks of every request: how many, and the KV tiles of each of them."""

    blocks: list[int]
    steps: list[list[int]]

    @property
    def requests(self) -> Requests:
        lens = ragged([[1] * len(self.blocks)])
        return requests_of({"q_lens": lens, "kv_lens": lens})

    def simulated(self) -> float:
        """Every block goes to the place that is free first."""
        places = [0.0] * SMS
        for steps in (steps for request in self.steps for steps in request):
            heapq.heapreplace(places, places[0] + steps)
        return max(places)

    def least(self) -> float:
        """An even load, or the longest block."""
        every = [steps for request in self.steps for steps in request]
        return max(sum(every) / SMS, max(every))

    def closed_form(self, setting: AttentionSetting) -> float:
        tiles, total, longest = (np.array([f(request) for request in self.steps], float) for f in (len, sum, max))
        return float(makespan(self.requests, 1.0, tiles, total, longest, setting))


def hopper() -> AttentionSetting:
    options = (("kv_dtype", None), ("causal", True), ("sinks", False), ("head_dim", 128), ("variant", PREFILL))
    ctx = Context(find("H200"), "bf16", "cold", "vllm-0.22.1", "fa3", options)
    return setting_of(ctx, Heads(32.0, 8.0, None, 128.0, 128.0, 2.0, 2.0))


def mixed(rng: np.random.Generator) -> Batch:
    """Decodes with one block a head, then one chunk of causal tiles, as an engine orders them."""
    decodes = [[int(rng.integers(1, 40))] * 4 for _ in range(rng.integers(4, 60))]
    history, tiles = int(rng.integers(0, 60)), int(rng.integers(4, 60))
    chunk = [history + tile for tile in range(tiles, 0, -1)] * 4
    return Batch([len(r) for r in (*decodes, chunk)], [*decodes, chunk])


def test_mixed_batches_end_when_their_blocks_do() -> None:
    rng, setting = np.random.default_rng(0), hopper()
    batches = [mixed(rng) for _ in range(300)]
    simulated = np.array([batch.simulated() for batch in batches])
    off = np.abs(np.log([batch.closed_form(setting) for batch in batches] / simulated))
    bound = np.abs(np.log([batch.least() for batch in batches] / simulated))
    assert off.mean() < 0.13
    assert off.mean() < bound.mean() / 2


@given(st.integers(1, 40), st.integers(1, 300), st.integers(1, 50))
def test_blocks_alike_fill_whole_waves(requests: int, blocks: int, steps: int) -> None:
    batch = Batch([blocks] * requests, [[steps] * blocks] * requests)
    assert batch.closed_form(hopper()) == pytest.approx(steps * -(-requests * blocks // SMS))


@given(st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=5), min_size=1, max_size=6))
def test_sums_so_far_are_of_the_same_call(calls: list[list[int]]) -> None:
    cases = [{"q_lens": q, "kv_lens": q, "heads": 8, "kv_heads": 8, "head_dim": 64} for q in calls]
    requests = requests_of(columns(FAMILY, cases))
    expected = [sum(q[: i + 1]) for q in calls for i in range(len(q))]
    assert requests.so_far(requests.q).tolist() == expected


def test_sums_so_far_count_all_of_a_group() -> None:
    lens = ragged([[5] * 100 + [7] * 100])
    assert requests_of({"q_lens": lens, "kv_lens": lens}).so_far(np.array([5.0, 7.0])).tolist() == [500, 1200]

"""A cache of prefixes by hashes: what is found, what goes first, and that pages are neither lost nor made."""

from __future__ import annotations

import json
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipewave.errors import BadInput
from pipewave.simulate.arrival_files import read_trace
from pipewave.simulate.kv_budget import KvBudget
from pipewave.simulate.policies import VllmPolicy
from pipewave.simulate.prefix_cache import PrefixCache
from pipewave.simulate.replica import Replica
from pipewave.simulate.server import Server
from pipewave.simulate.setup import Setup
from pipewave.simulate.traffic import Traffic


class Toy:
    def seconds(self, decoding: int, cached: int, pieces: object) -> float:
        return 1.0


def _traffic(prompts: list[list[int]], outputs: list[int], tokens: int = 16) -> Traffic:
    count = len(prompts)
    return Traffic(
        np.zeros(count), np.array([len(p) * tokens for p in prompts]), np.array(outputs), blocks=tuple(map(tuple, prompts)),
        block_tokens=tokens,
    )  # fmt: skip


def test_a_prefix_is_found_and_the_last_token_computed() -> None:
    cache = PrefixCache([[1, 2, 3], [1, 2, 3], [1, 9, 3]], 16, 16)
    assert cache.admit(0, 48, 100) == 0
    assert cache.leave(0) == 0
    assert cache.admit(1, 48, 100) == 32  # all three blocks are there; the last one is computed again
    assert cache.shared(2) == 2  # blocks 1 and 3 are in use; 3 is no prefix, but its pages are one
    assert cache.admit(2, 48, 100) == 16
    assert cache.leave(1) == 2
    with pytest.raises(BadInput, match="whole pages"):
        PrefixCache([[1]], 100, 16)


def test_the_longest_idle_goes_first_and_ends_before_beginnings() -> None:
    cache = PrefixCache([[1, 2], [3, 4], [1, 2], [3, 4]], 16, 16)
    for request in (0, 1):
        cache.admit(request, 32, 100)
        cache.leave(request)
    cache.trim(3)  # of four idle blocks the end of the older prompt goes
    assert list(cache.idle) == [1, 4, 3]
    assert cache.admit(2, 40, 3) == 16
    cache.trim(1)
    assert list(cache.idle) == [3]


def _plain(traffic: Traffic, capacity: int) -> list[int]:
    """Requests one after another through a dictionary in order of use: tokens found by each."""
    held: OrderedDict[int, None] = OrderedDict()
    found = []
    for blocks in traffic.blocks or ():
        hits = 0
        while hits < len(blocks) and blocks[hits] in held:
            hits += 1
        for block in reversed(blocks):
            held.pop(block, None)
        for block in reversed(blocks):
            held[block] = None
        while len(held) > capacity:
            held.popitem(last=False)
        found.append((hits if hits < len(blocks) else hits - 1) * 16)
    return found


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.integers(0, 12), min_size=1, max_size=6, unique=True), min_size=1, max_size=25))
def test_one_at_a_time_is_a_plain_lru(prompts: list[list[int]]) -> None:
    """Outputs of one token: a request is gone when its prompt is; 12 pages, of which prompts leave what they need."""
    traffic = _traffic(prompts, [1] * len(prompts))
    replica = Replica(Toy(), VllmPolicy(1 << 12, 1), KvBudget(1 << 20, 16), traffic)
    found = []
    for request in range(len(prompts)):
        replica.waiting.append(request)
        while not replica.idle:
            for _, _, before in replica.step(0.0).pieces:
                found.append(before)
    assert found == _plain(traffic, 1 << 20)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=5, unique=True), min_size=1, max_size=20),
    st.integers(7, 20), st.integers(1, 40),
)  # fmt: skip
def test_pages_are_neither_lost_nor_made(prompts: list[list[int]], pages: int, output: int) -> None:
    """Shared blocks count once while several run, and everything is free in the end; preemption included."""
    traffic = _traffic(prompts, [output] * len(prompts))
    replica = Replica(Toy(), VllmPolicy(256, 8), KvBudget(pages + 3, 16), traffic)
    replica.waiting.extend(range(len(prompts)))
    done: list[int] = []
    while not replica.idle:
        done += replica.step(0.0).done
        assert replica.free >= 0
    assert sorted(done) == list(range(len(prompts)))
    assert replica.free == pages + 3


def test_mooncakes_hashes_save_prompt_time(tmp_path: Path) -> None:
    rows = [
        {"timestamp": 500 * i, "input_length": 4096, "output_length": 16, "hash_ids": [1, 2, 3, 4, 5, 6, 7, 100 + i]}
        for i in range(20)
    ]
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    shared = read_trace(path)
    assert shared.blocks is not None
    assert shared.blocks[3][-1] == 103
    apart = read_trace(path)
    apart = Traffic(apart.arrival_s, apart.input_len, apart.output_len)
    server = Server.of("Llama-3.1-8B", "H200", Setup(), shared.longest)
    found, cold = server.run(shared).answer, server.run(apart).answer
    assert found["prefix_found_share"] == pytest.approx(7 / 8 * 19 / 20)
    assert found["ttft_mean_ms"] < 0.5 * cold["ttft_mean_ms"]
    assert "prefix_found_share" not in cold


def test_burstgpts_columns_are_known(tmp_path: Path) -> None:
    path = tmp_path / "burst.csv"
    path.write_text(
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,472,18,490,Conversation log\n45,ChatGPT,1087,230,1317,API log\n"
    )
    traffic = read_trace(path)
    assert traffic.arrival_s.tolist() == [0, 40]
    assert (traffic.input_len.tolist(), traffic.output_len.tolist()) == ([472, 1087], [18, 230])

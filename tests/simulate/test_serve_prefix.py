"""A cache of prefixes by hashes: what is found, what goes first, and that pages are neither lost nor made."""

from __future__ import annotations

import json
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipewave.errors import BadInput
from pipewave.simulate.arrival_files import read_trace
from pipewave.simulate.kv_budget import KvBudget
from pipewave.simulate.policies import VllmPolicy
from pipewave.simulate.prefix_cache import PrefixCache
from pipewave.simulate.replica import Replica
from pipewave.simulate.server import Server
from pipewave.simulate.setup import Setup
from pipewave.simulate.shared_tokens import of_hashes
from pipewave.simulate.traffic import Traffic
from tests.sampled import examples
from tests.simulate.serving import serve


class Toy:
    def seconds(self, decoding: int, cached: int, pieces: object) -> float:
        return 1.0


def _traffic(prompts: list[list[int]], outputs: list[int], tokens: int = 16) -> Traffic:
    """A hash stands for its block and all in front of it."""
    known: dict[tuple[int, ...], int] = {}
    hashes = [[known.setdefault(tuple(p[: i + 1]), len(known)) for i in range(len(p))] for p in prompts]
    lengths = np.array([len(p) * tokens for p in prompts])
    shared = of_hashes(hashes, lengths, np.array(outputs), tokens)
    return Traffic(np.zeros(len(prompts)), lengths, np.array(outputs), shared=shared)


def _cache(prompts: list[list[int]], tokens: int = 16) -> PrefixCache:
    lengths = np.array([len(p) * tokens for p in prompts])
    return PrefixCache(of_hashes(prompts, lengths, np.ones(len(prompts), int), tokens), 16)


def _run(cache: PrefixCache, request: int, tokens: int) -> int:
    """One request alone; what it found."""
    match = cache.match(request, tokens, -(-tokens // 16), 100)
    cache.admit(request, match)
    cache.passed(request, match.tokens, tokens, tokens)
    cache.leave(request, -(-tokens // 16), tokens)
    return match.tokens


def test_a_prefix_is_found_and_the_last_token_computed() -> None:
    cache = _cache([[1, 2, 3], [1, 2, 3], [1, 9, 4]])
    assert _run(cache, 0, 48) == 0
    match = cache.match(1, 48, 3, 100)
    assert match.tokens == 32  # all three blocks are there; the last one is computed again
    cache.admit(1, match)
    other = cache.match(2, 48, 3, 100 - match.takes)
    assert (other.tokens, other.takes) == (16, 2)  # the page in use is no free one
    with pytest.raises(BadInput, match="whole pages"):
        _cache([[1]], 100)


def test_the_longest_idle_goes_first_and_ends_before_beginnings() -> None:
    cache = _cache([[1, 2], [3, 4], [1, 2, 7], [3, 4, 8]])
    for request in (0, 1):
        _run(cache, request, 32)
    cache.trim(3)  # of four idle pages the end of the older prompt goes
    assert [cache.match(request, 48, 3, 3).tokens for request in (2, 3)] == [16, 32]
    cache.trim(1)
    assert [cache.match(request, 48, 3, 1).tokens for request in (2, 3)] == [0, 16]


def _plain(prompts: list[list[int]], pages: int) -> list[int]:
    """Requests one after another through a queue of free blocks as vLLM's: tokens found by each."""
    free: OrderedDict[int, tuple[int, ...] | None] = OrderedDict((block, None) for block in range(pages))
    found = []
    for prompt in prompts:
        names = [tuple(prompt[: i + 1]) for i in range(len(prompt))]
        place = {name: block for block, name in free.items() if name}
        hits = next((i for i, name in enumerate(names) if name not in place), len(names))
        hits = min(hits, len(names) - 1)
        held = [place[name] for name in names[:hits]]
        for block in held:
            del free[block]
        held += [free.popitem(last=False)[0] for _ in names[hits:]]
        free |= dict(reversed(list(zip(held, names, strict=True))))
        found.append(hits * 16)
    return found


@examples(60)
@given(
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=6), min_size=1, max_size=25),
    st.sampled_from([9, 1 << 10]),
)
def test_one_at_a_time_is_a_plain_lru(prompts: list[list[int]], pages: int) -> None:
    """Outputs of one token: a request is gone when its prompt is. Each ends with a block of its own."""
    prompts = [[*prompt, 100 + i] for i, prompt in enumerate(prompts)]
    traffic = _traffic(prompts, [1] * len(prompts))
    replica = Replica(Toy(), VllmPolicy(1 << 12, 1), KvBudget(pages, 16), traffic)
    found = []
    for request in range(len(prompts)):
        replica.waiting.append(request)
        while not replica.idle:
            for _, _, before in replica.step(0.0).pieces:
                found.append(before)
    assert found == _plain(prompts, pages)


@examples(60)
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


@pytest.mark.parametrize(("mixes", "found"), [(True, 32), (False, 48)])
def test_decodes_of_a_step_take_their_pages_before_a_prompt_looks_for_its_own(mixes: bool, found: int) -> None:
    """Of six pages five are idle, and the decoding request opens one: the last of the prompt that was used longest ago.
    Where prompts have steps of their own, nothing decodes beside them."""
    traffic = _traffic([[1, 2, 3], [8, 9], [7], [1, 2, 3, 4]], [1, 1, 9, 1])
    replica = Replica(Toy(), VllmPolicy(1 << 12, 8, mixes_phases=mixes), KvBudget(6, 16), traffic)
    for request in range(3):
        replica.waiting.append(request)
        assert replica.step(0.0).pieces[0][0] == request
    replica.waiting.append(3)
    assert replica.step(0.0).pieces == [(3, 64 - found, found)]


def test_mooncakes_hashes_save_prompt_time(tmp_path: Path) -> None:
    rows = [
        {"timestamp": 500 * i, "input_length": 4096, "output_length": 16, "hash_ids": [1, 2, 3, 4, 5, 6, 7, 100 + i]}
        for i in range(20)
    ]
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    shared = read_trace(path)
    assert shared.shared is not None
    apart = read_trace(path)
    apart = Traffic(apart.arrival_s, apart.input_len, apart.output_len)
    server = Server.of("Llama-3.1-8B", "H200", Setup(), shared.longest)
    found, cold = serve(server, shared, interval=True).answer, serve(server, apart).answer
    names = ("prefix_found_share", "prefix_found_share_low", "prefix_found_share_high")
    assert [found[name] for name in names] == pytest.approx([7 / 8 * 19 / 20] * 3)  # however long steps take
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

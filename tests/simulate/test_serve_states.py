"""Recurrent states in the cache of prefixes: where they are kept, how far a hit reaches, and the room they take."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipewave.errors import BadInput
from pipewave.models import load
from pipewave.models.attention_spec import Recurrent
from pipewave.models.shard import state_bytes
from pipewave.simulate.kv_budget import KvBudget
from pipewave.simulate.policies import VllmPolicy
from pipewave.simulate.prefix_cache import StateCheckpoint
from pipewave.simulate.replica import Replica
from pipewave.simulate.server import Server
from pipewave.simulate.setup import Setup
from pipewave.simulate.shared_tokens import of_hashes
from pipewave.simulate.speculative import of as speculative_of
from pipewave.simulate.traffic import Traffic, synthetic
from pipewave.step.memory import GIB
from tests.sampled import examples, sampled
from tests.simulate.serving import serve

BLOCK = 16  # tokens of a hashed block here
MODES = ("blocks", "steps", "ends", "branches")
Path = tuple[int, ...]


class Toy:
    def seconds(self, decoding: int, cached: int, pieces: object) -> float:
        return 1.0


def _traffic(prompts: list[Path], output: int = 1) -> Traffic:
    """Prompts as paths in a tree: a block's hash stands for all that leads to it."""
    known: dict[Path, int] = {}
    hashes = [tuple(known.setdefault(p[: i + 1], len(known)) for i in range(len(p))) for p in prompts]
    lengths = np.array([len(p) * BLOCK for p in prompts])
    zeros = np.zeros(len(prompts))
    outputs = np.full(len(prompts), output)
    return Traffic(zeros, lengths, outputs, shared=of_hashes(hashes, lengths, outputs, BLOCK))


def _found(
    traffic: Traffic, kept: StateCheckpoint | None, tokens: int, *, caches: bool = True, pages: int = 1 << 20
) -> list[int]:
    """Tokens that each prompt finds, one after the other."""
    kv = KvBudget(pages, BLOCK, prefix_caching=caches, checkpoint=kept)
    replica, found = Replica(Toy(), VllmPolicy(tokens, 1), kv, traffic), {}
    for request in range(len(traffic)):
        replica.waiting.append(request)
        while not replica.idle:
            for one, _, before in replica.step(0.0).pieces:
                found.setdefault(one, before)
    return [found[request] for request in range(len(traffic))]


def _plain(prompts: list[Path], keeps: str, grain: int, budget: int) -> list[int]:
    """The same token by token with sets of whole beginnings, nothing ever given up."""
    cached: set[Path] = set()  # beginnings whose keys and values are there
    states: set[Path] = set()  # beginnings with a state
    found = []
    for path in prompts:
        tokens = tuple(block * BLOCK + i for block in path for i in range(BLOCK))
        whole = max((n for n in range(0, len(tokens), BLOCK) if n == 0 or tokens[:n] in cached), default=0)
        at = max((n for n in range(whole + 1) if n and tokens[:n] in states), default=0)
        found.append(at)
        branch = whole // grain * grain if whole > at else 0
        while at < len(tokens):
            to = min(at + budget, len(tokens))
            if keeps == "steps":
                last = len(tokens) // grain * grain
                to = (at + (to - at) // grain * grain) if to < last else last if at < last < to else to
            if keeps == "blocks":
                states |= {tokens[:n] for n in range(at + 1, to + 1) if n % grain == 0}
            elif keeps == "ends" or (keeps == "steps" and to % grain == 0):
                states.add(tokens[:to])
            elif keeps == "branches":
                place = branch if at < branch < to else at + (to - at) // grain * grain
                states |= {tokens[:place]} if place > at else set()
            at = to
        cached |= {tokens[:n] for n in range(BLOCK, len(tokens) + 1, BLOCK)}
    return found


paths = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=7).map(tuple), min_size=1, max_size=14)


@examples(150)
@given(paths, st.sampled_from(MODES), st.sampled_from([16, 32, 48]), st.sampled_from([48, 64, 112]))
def test_hits_are_a_plain_simulators(prompts: list[Path], keeps: str, grain: int, budget: int) -> None:
    """Prompts that end with blocks, where a trace says all that tokens do."""
    kept = StateCheckpoint(keeps, grain, pages=1)
    assert _found(_traffic(prompts), kept, budget) == _plain(prompts, keeps, grain, budget)


@examples(60)
@given(paths, st.sampled_from(MODES), st.integers(0, 40), st.booleans())
def test_a_hit_never_exceeds_that_of_keys_and_values(prompts: list[Path], keeps: str, room: int, own: bool) -> None:
    """Nor does it with little room, for pages or for states."""
    traffic = _traffic(prompts)
    kept = StateCheckpoint(keeps, 32, slots=room % 7 + 1) if own else StateCheckpoint(keeps, 32, pages=2)
    pages = 12 + room
    bounded, whole = _found(traffic, kept, 64, pages=pages), _found(traffic, None, 64, pages=1 << 20)
    assert all(mine <= theirs for mine, theirs in zip(bounded, whole, strict=True))
    assert _found(traffic, None, 64, caches=False) == [0] * len(prompts)


@examples(60)
@given(paths, st.sampled_from(MODES), st.integers(1, 3), st.integers(0, 30), st.integers(1, 40))
def test_pages_of_states_are_neither_lost_nor_made(
    prompts: list[Path], keeps: str, each: int, more: int, output: int
) -> None:
    """A running request holds its states' pages, and all is free in the end. In the step that admits a request, those
    that decode may open a page each beyond what is free, as without states."""
    traffic = _traffic(prompts, output)
    pages = 10 + each + more
    kv = KvBudget(pages, BLOCK, state_pages=each, checkpoint=StateCheckpoint(keeps, 32, pages=each))
    replica = Replica(Toy(), VllmPolicy(112, 8), kv, traffic)
    replica.waiting.extend(range(len(prompts)))
    done: list[int] = []
    while not replica.idle:
        step = replica.step(0.0)
        done += step.done
        held = sum(map(bool, replica.cache.users)) if replica.cache else 0
        assert pages - replica.free >= held + each * replica.running
        assert replica.free >= -replica.running
    assert sorted(done) == list(range(len(prompts)))
    assert replica.free == pages


def test_a_prompt_that_goes_on_uses_a_state_in_its_last_block() -> None:
    """A turn of 40 tokens ends inside its third block: a longer prompt with the first two goes on from it, another of
    the same length does not."""
    blocks = ((0, 1, 2), (0, 1, 3, 4), (0, 1, 5))
    kept = StateCheckpoint("ends", 1, pages=1)
    for second, found in ((1, 32), (2, 0)):
        lengths = np.array([40, (40, 56, 40)[second]])
        tree = of_hashes((blocks[0], blocks[second]), lengths, np.ones(2, int), BLOCK)
        two = Traffic(np.zeros(2), lengths, np.ones(2, int), shared=tree)
        assert _found(two, kept, 1024) == [0, found]


def test_the_state_pool_gives_up_what_was_used_longest_ago() -> None:
    """Two slots: of three prompts the first one's state is gone, its keys and values are not."""
    first, second, third = (1, 2, 3, 4), (5, 6, 7, 8), (9, 10, 11, 12)
    prompts = [first, second, third, (*third, 0), (*first, 0)]
    roomy, tight = StateCheckpoint("ends", 1, slots=6), StateCheckpoint("ends", 1, slots=2)
    assert _found(_traffic(prompts), roomy, 1024)[3:] == [64, 64]
    assert _found(_traffic(prompts), tight, 1024)[3:] == [64, 0]


@pytest.mark.parametrize(
    ("keeps", "stated", "parting"),
    [("blocks", 2112, 2112), ("steps", 2112, 0), ("ends", 3000, 0), ("branches", 2112, 2112)],
)
def test_a_stated_prefix_reaches_the_last_state(keeps: str, stated: int, parting: int) -> None:
    """3,000 tokens are cached. Where prompts part behind them, steps and ends keep only states of whole steps."""
    traffic = synthetic(4, input_len=4000, output_len=2)
    said, shared = traffic.with_prefix(0.75), traffic.with_prefix_tokens(3000)
    limits = VllmPolicy(8192, 8), KvBudget(1 << 20, 16, checkpoint=StateCheckpoint(keeps, 1056))
    assert Replica(Toy(), *limits, said).found == [stated] * 4
    assert Replica(Toy(), *limits, shared).found == [0, *[parting] * 3]
    small = VllmPolicy(2500, 8), limits[1]
    ends = {"ends": 2500}.get(keeps, 2112)
    assert Replica(Toy(), *small, shared).found == [0, *[ends] * 3]


def _server(model: str, engine: str, longest: int = 8192, **more: object) -> Server:
    return Server.of(model, "H200", Setup(engine=engine, tp=2, **more), longest)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("model", "tp", "tokens"),
    # Logs of vLLM: 528 with padding of 0.76 % for Qwen3.5-9B (github.com/vllm-project/vllm/pull/37467), whose state and
    # cache are those of the larger one with twice its heads of keys and values.
    # Qwen3-Next's, whose config names no type of state, is kept in 16 bits: 544 in its logs.
    [("Qwen3.5-35B-A3B", 1, 1056), ("Qwen3-Next-80B-A3B", 2, 544)],
)
def test_a_block_of_attention_holds_a_state(model: str, tp: int, tokens: int) -> None:
    server = Server.of(model, "H200", Setup(engine="vllm:0.22.1", tp=tp, prefix_cache=True), 8192)
    kept = server.kv.checkpoint
    assert kept is not None
    assert (kept.place, kept.tokens) == ("steps", tokens)
    recurrent = next(m for layer in load(model).layers for m in layer.mixers if isinstance(m, Recurrent))
    state = recurrent.state_bytes(tp, server.runner.deployment.state_width)
    assert tokens * 2 * 2 // tp * 256 * 2 / state == pytest.approx({1056: 1.0076, 544: 1.0149}[tokens], abs=1e-3)


@pytest.mark.parametrize(
    ("model", "engine", "asked", "keeps"),
    sampled(
        [
            ("Qwen3-Next-80B-A3B", "vllm:0.22.1", None, None),
            ("Qwen3-Next-80B-A3B", "vllm:0.22.1", True, "steps"),
            ("Qwen3-Next-80B-A3B", "vllm:0.12.0", True, None),
            ("Nemotron-H-56B", "vllm:0.12.0", True, "blocks"),
            ("Nemotron-H-56B", "vllm:0.11.0", True, None),
            ("Qwen3-Next-80B-A3B", "sglang:0.5.9", None, "ends"),
            ("Qwen3-Next-80B-A3B", "sglang:0.5.14", None, "branches"),
            ("Qwen3-Next-80B-A3B", "sglang:0.5.14", False, None),
            ("Qwen3-Next-80B-A3B", "trtllm:1.2.0", True, None),
            ("Qwen3-Next-80B-A3B", "trtllm:1.3.0", None, "blocks"),
        ],
        5,
    ),
)
def test_versions_keep_states_as_their_sources_say(
    model: str, engine: str, asked: bool | None, keeps: str | None
) -> None:
    server = _server(model, engine, 16384, prefix_cache=asked)
    assert (server.kv.checkpoint.place if server.kv.checkpoint else None) == keeps
    assert server.kv.prefix_caching == (keeps is not None)
    assert _server("Llama-3.1-8B", engine).kv.prefix_caching
    traffic = synthetic(8, input_len=16000, output_len=2, concurrency=1).with_prefix(0.9)
    answer = serve(server, traffic).answer
    assert (answer["prefix_found_share"] > 0) == (keeps is not None)
    assert any("recurrent state" in note for note in answer["notes"])


def test_sglang_waits_for_each_step_while_it_keeps_ends() -> None:
    """0.5.9's mamba radix cache switches the overlap schedule off; --disable-radix-cache switches it on again."""
    assert not _server("Qwen3-Next-80B-A3B", "sglang:0.5.9").runner.engine.scheduler.overlaps
    assert _server("Qwen3-Next-80B-A3B", "sglang:0.5.9", prefix_cache=False).runner.engine.scheduler.overlaps
    assert _server("Llama-3.1-8B", "sglang:0.5.9").runner.engine.scheduler.overlaps
    drafting = _server("Qwen3-Next-80B-A3B", "sglang:0.5.9", speculative=speculative_of("method=mtp,tokens=2"))
    assert drafting.kv.checkpoint is None  # no radix cache while it drafts


def test_states_take_their_room_whatever_a_requests_length() -> None:
    """One pool: a request's states are as many bytes as they are; a pool of SGLang's: 0.9 parts to 1, five a request."""
    vllm, sglang = _server("Qwen3-Next-80B-A3B", "vllm"), _server("Qwen3-Next-80B-A3B", "sglang:0.5.14")
    model, split = vllm.runner.deployment.model, vllm.runner.deployment.parallel
    state = state_bytes(model, split, 2)  # in 16 bits there, in 32 under SGLang
    page = (vllm.memory.kv * GIB) / vllm.kv.pages
    assert vllm.kv.state_pages == math.ceil(state / page)
    pool = sglang.memory.kv * 0.9 / 1.9 * GIB
    assert sglang.memory.state_pool * GIB == pytest.approx(pool, rel=1e-3)
    assert sglang.policy.max_requests == int(sglang.memory.state_pool * GIB / state_bytes(model, split)) // 5
    assert (
        _server("Qwen3-Next-80B-A3B", "sglang:0.5.14", prefix_cache=False).policy.max_requests
        > 4 * sglang.policy.max_requests
    )


def test_drafts_keep_a_state_after_every_token() -> None:
    """vLLM: one state a drafted token and one; SGLang: as many as it verifies, for every request that may run."""
    how = speculative_of("method=mtp,tokens=3,acceptance=0.7")
    plain, drafted = (_server("Qwen3-Next-80B-A3B", "vllm", speculative=each) for each in (None, how))
    page = [each.memory.kv * GIB / each.kv.pages for each in (plain, drafted)]
    assert drafted.kv.state_pages * page[1] == pytest.approx(4 * plain.kv.state_pages * page[0], rel=0.02)
    told: dict[str, object] = {"max_num_seqs": 1024}  # 48 where nothing is said
    one, more = (_server("Qwen3-Next-80B-A3B", "sglang:0.5.14", speculative=each, **told) for each in (None, how))
    shrunk = more.memory.state_pool / one.memory.state_pool
    assert more.policy.max_requests == pytest.approx(one.policy.max_requests * shrunk * 5 / 9, abs=1)
    assert more.kv.checkpoint is not None
    assert one.kv.checkpoint is not None
    assert more.kv.checkpoint.slots == pytest.approx(one.kv.checkpoint.slots * shrunk * 5 / 9, abs=1)
    looked_up = _server("Qwen3-Next-80B-A3B", "vllm", speculative=speculative_of("method=ngram,tokens=3"))
    assert looked_up.kv.state_pages == pytest.approx(4 * plain.kv.state_pages, abs=4)


def test_a_step_must_hold_a_block() -> None:
    with pytest.raises(BadInput, match="whole blocks of 544") as caught:
        _server("Qwen3-Next-80B-A3B", "vllm", prefix_cache=True, max_num_batched_tokens=512)
    assert caught.value.field == "max_num_batched_tokens"

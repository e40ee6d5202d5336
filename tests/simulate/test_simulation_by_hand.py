"""Parts of a simulated run that a pencil can work out: shared tokens, kept states, schedulers, drafts and queues."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pipewave.errors import BadInput, DoesNotFit, MissingField
from pipewave.simulate import kv_budget
from pipewave.simulate.arrival_files import Rows, _dates
from pipewave.simulate.drafting import Drafted, pays_until
from pipewave.simulate.engine_step import Step
from pipewave.simulate.frontend_queue import FrontendQueue, RequestInbox, lognormal_factors
from pipewave.simulate.kv_budget import KvBudget
from pipewave.simulate.policies import SglangPolicy, TrtllmPolicy, VllmPolicy
from pipewave.simulate.prefix_cache import CheckpointStore, LruPool, PrefixCache, StateCheckpoint
from pipewave.simulate.replica import Replica
from pipewave.simulate.shared_tokens import SharedTokens, of_hashes, of_sessions
from pipewave.simulate.simulation import StepLog
from pipewave.simulate.speculative import Speculative
from pipewave.simulate.speculative import of as speculative
from pipewave.simulate.step_grids import reader
from pipewave.simulate.traffic import Traffic
from pipewave.software.engine_parts import BRANCHES, EVERY_BLOCK, STEP_ENDS, STEP_ENDS_ON_BLOCK
from pipewave.software.front import Front
from pipewave.step.memory import GIB


def test_sessions_are_a_tree_of_prefixes_and_turns() -> None:
    found = of_sessions([0, 1, 0, 2], [(100, 10), (50, 5), (120, 7), (90, 1)], [32, 0, 32, 64], [1, 2, 3, 4])
    assert found.begins == (0, 32, 32, 0, 64) and found.ends == (32, 64, 127, 55, 91)
    assert found.paths == ((0, 2), (3,), (0, 2), (0, 1, 4)) and found.known == (110, 55, 127, 91)
    assert found.first(2).paths == ((0, 2), (3,))
    with pytest.raises(BadInput, match="row 2: prompt_tokens = 109"):
        of_sessions([0, 0], [(100, 10), (109, 1)], [0, 0], [1, 2])
    with pytest.raises(BadInput, match="row 1: shared_prefix = 101"):
        of_sessions([0], [(100, 10)], [101], [1])
    assert of_sessions([0, 0], [(100, 10), (110, 1)], [100, 0], [1, 2]).ends == (100, 111)


def test_blocks_of_a_request_are_named_by_segment_and_place() -> None:
    tree = SharedTokens(((0, 2), (1,), ()), (64, 48, 9), (0, 0, 32), (32, 48, 64), 16)
    assert tree.blocks(0, 4) == [(0, 0), (0, 1), (2, 2), (2, 3)] and tree.blocks(1, 1) == [(1, 0)]
    assert tree.blocks(2, 2) == [(~2, 0), (~2, 1)] and tree.blocks(0, 0) == []


@pytest.mark.parametrize(
    ("hashes", "prompts", "answers", "paths", "known"),
    [
        # The second prompt goes on from the first one's whole blocks: its third block is the first one's answer.
        ([[1, 2], [1, 2, 3]], [8, 12], [4, 4], ((0, 1), (0, 1)), (12, 12)),
        ([[1, 2], [1, 2, 3]], [8, 12], [2, 4], ((0, 1), (0, 1)), (10, 12)),  # as far as the answer goes
        ([[1, 2], [1, 2, 3], [1, 2, 4]], [8, 12, 12], [4, 4, 4], ((0,), (0, 1), (0, 2)), (8, 12, 12)),  # two go on
        ([[1, 2], [1, 2, 3]], [8, 11], [4, 4], ((0,), (0, 1)), (8, 11)),  # no whole block
        ([[1, 2], [1, 2, 3, 4, 5]], [8, 20], [9, 1], ((0, 1), (0, 1)), (17, 20)),  # until it reaches beyond the answer
        ([[1, 2], [7]], [8, 3], [4, 4], ((0,), (1,)), (8, 3)), ([[], [1]], [8, 4], [4, 4], ((), (0,)), (0, 4)),
    ],
)  # fmt: skip
def test_an_answer_is_what_one_prompt_goes_on_with(
    hashes: Any, prompts: list[int], answers: list[int], paths: Any, known: tuple[int, ...]
) -> None:
    found = of_hashes(hashes, np.array(prompts), np.array(answers), 4)
    assert (found.paths, found.known, found.block_tokens) == (paths, known, 4)


def test_places_at_which_states_are_kept() -> None:
    ends, on_block, every, branches = (StateCheckpoint(place, 16) for place in
                                       (STEP_ENDS, STEP_ENDS_ON_BLOCK, EVERY_BLOCK, BRANCHES))  # fmt: skip
    some = np.array([15, 16, 100])
    assert every.reached(some, 64).tolist() == branches.reached(some, 64).tolist() == [0, 16, 96]
    assert ends.reached(some, 64).tolist() == [0, 0, 64] and ends.reached(some).tolist() == [15, 16, 100]
    assert on_block.reached(some, 40).tolist() == [0, 0, 96] and on_block.reached(some).tolist() == [0, 16, 96]
    assert on_block.reached(some, 8).tolist() == [0, 16, 96]
    # The next piece ends on a multiple, and one on the prompt's last.
    assert [on_block.cut(*one) for one in ((0, 40, 100), (64, 40, 100), (96, 40, 100), (0, 15, 100), (80, 16, 96))] == [
        32, 32, 40, 0, 16]  # fmt: skip
    assert every.cut(0, 40, 100) == 40
    assert every.places(10, 50, 0) == [16, 32, 48] and every.places(16, 48, 0) == [32, 48]
    assert on_block.places(0, 48, 0) == [48] and on_block.places(0, 50, 0) == [] and ends.places(3, 50, 0) == [50]
    assert branches.places(10, 50, 30) == [30] and branches.places(10, 50, 50) == [42]
    assert branches.places(10, 20, 0) == [] and branches.places(10, 26, 10) == [26]


def test_the_least_recently_used_goes_first_states_whole() -> None:
    pool = LruPool()
    for thing, size in ((1, 3), ((0, 1), 4), (2, 2), (3, 0)):
        pool.put(thing, size)
    assert pool.size == 9 and 3 not in pool.sizes
    assert list(pool.cut(7)) == [(1, 2)] and pool.sizes[1] == 1
    assert list(pool.cut(6)) == [(1, 1)] and list(pool.cut(5)) == [((0, 1), 4)] and pool.size == 2
    pool.put(2, 5)
    pool.take(9)
    assert pool.size == 5 and list(pool.cut(5)) == []


def test_pages_and_blocks_must_divide() -> None:
    tree = of_sessions([0], [(64, 1)], [0], [1])
    for page in (8, 16, 32):
        PrefixCache(tree, page)
    with pytest.raises(BadInput, match="whole pages of 24"):
        PrefixCache(tree, 24)


def test_a_kept_state_is_used_by_longer_prompts_that_share_its_block() -> None:
    tree = of_hashes([[1, 2], [1, 2, 3], [1, 4]], np.array([8, 12, 8]), np.array([1, 1, 1]), 4)
    kept = CheckpointStore(StateCheckpoint(EVERY_BLOCK, 4, slots=2), tree)
    kept.passed(0, 0, 8, 8)
    assert [kept.reach(request, 12, found) for request, found in ((1, 12), (1, 7), (1, 3), (2, 8))] == [8, 4, 0, 4]
    assert kept.branches == {1: 0, 2: 8}
    kept.trim(1)
    assert kept.pool.size == 1 and kept.reach(1, 12, 12) == 4  # used last
    kept.trim(2)
    assert kept.reach(1, 12, 12) == 0


def engine(**more: Any) -> Any:
    told = {"waiting": [0, 1], "decoding": 3, "tokens": {0: 10, 1: 20}, "found": {0: 0, 1: 5}, "held_steps": 0,
            "running": 3, "tick": 0, "outputs_to_come": lambda request: 100, "kv": KvBudget(50, 16)}  # fmt: skip
    return SimpleNamespace(**{**told, **more})


def test_tensorrt_llm_waits_for_company() -> None:
    policy = TrtllmPolicy(100, 8, wait_steps=2, wait_share=0.5)
    one = engine()
    assert [policy._holds_prompts(one, 100) for _ in range(3)] == [True, True, False] and one.held_steps == 0
    assert policy._holds_prompts(engine(tokens={0: 10, 1: 36}), 100) and not policy._holds_prompts(
        engine(tokens={0: 10, 1: 37}), 100
    )  # half of a step's 100 tokens
    assert policy._holds_prompts(engine(tokens={0: 10, 1: 90}), 100)  # the second does not fit with the first
    assert not policy._holds_prompts(engine(decoding=0), 100) and not policy._holds_prompts(engine(waiting=[]), 100)
    assert policy._reserved_pages(engine(), 0) == 7 and policy._reserved_pages(engine(running=0), 0) == 0


def test_sglang_reserves_less_of_outputs_the_longer_it_decodes() -> None:
    policy = SglangPolicy(100, 8, max_prefill_tokens=40, output_reserve=(0.7, 0.1))
    assert [policy._reserved_pages(engine(tick=tick), 0) for tick in (0, 300, 600, 900)] == [5, 3, 1, 1]
    assert policy._reserved_pages(engine(running=0), 0) == 0
    step = Step(0.0, 0.0, 0, [(9, 24, 0)])
    assert not policy._may_start(engine(decoding=1), 1, 100, step)  # 1 + 24 + 20 − 5 are 40 already
    assert policy._may_start(engine(decoding=0), 1, 100, step)
    apart = SglangPolicy(100, 8, mixes_phases=False, max_prefill_tokens=40)
    assert apart._may_start(engine(decoding=9), 1, 100, step)


class Verifying:
    """Steps of 8 s for each request, and a second a prompt token; a table that is read."""

    factor, most_requests = 1e-6, 4
    pace = SimpleNamespace(decode=1.0)

    def seconds(self, decoding: int, cached: float, pieces: Any) -> float:
        return 8.0 * decoding + sum(tokens for tokens, _ in pieces)

    def group_seconds(self, ranks: Any) -> float:
        return max(self.seconds(*rank) for rank in ranks)

    def hidden_s(self, decoding: int, pieces: Any) -> float:
        return 0.5 * len(pieces)

    def watts(self, seconds: float, *_: Any) -> float:
        return seconds


def test_a_drafted_step_is_spread_over_its_tokens_and_prompts_cost_what_they_add() -> None:
    drafts = SimpleNamespace(seconds=lambda decoding, cached: 2.0 * decoding)
    made = Drafted(Verifying(), drafts, 2.5)  # type: ignore[arg-type]
    assert made.seconds(3, 90, ()) == 30 / 2.5 and made.seconds(0, 0, [(7, 0)]) == 7
    assert made.seconds(3, 90, [(7, 0)]) == 7 + 30 / 2.5
    assert made.group_seconds([(3, 90, ()), (1, 9, ())]) == 30 / 2.5
    assert made.group_seconds([(3, 90, [(7, 0)]), (1, 9, ())]) == pytest.approx(7 + 30 / 2.5)
    assert made.group_seconds([(0, 0, [(7, 0)]), (0, 0, ())]) == 7
    assert made.watts(9.0, 3, 90, (), 1) == 24  # the verification alone
    assert made.watts(9.0, 4, 90, [(7, 0)], 2) == pytest.approx(9 + 0.6 * 20 - 4)  # two requests a rank
    assert made.watts(9.0, 0, 0, [(7, 0)], 2) == 9 and made.hidden_s(3, [(7, 0)]) == 0.5
    plain = SimpleNamespace(seconds=lambda decoding, *_: 3.0 * decoding + 2.5, most_requests=9)
    assert pays_until(plain, made, 10) == 2  # 4 n against 3 n + 2.5
    assert pays_until(SimpleNamespace(seconds=lambda n, *_: n, most_requests=9), made, 10) == 0  # type: ignore[arg-type]


def test_drafts_as_words() -> None:
    found = speculative("method=mtp,tokens=3,acceptance=0.8/0.5")
    assert (found.tokens, found.accepted, found.verified) == (3, (0.8, 0.5, 0.5), 4)
    assert found.mean == pytest.approx(1 + 0.8 + 0.4 + 0.2) and found.spread == 0
    assert (speculative("mtp").tokens, speculative("ngram").tokens) == (1, 3)
    assert speculative({"method": "eagle3", "acceptance": [1.0]}).drafting(2).accepted == (1.0, 1.0)
    assert speculative("mtp,tokens=64").tokens == 64 and speculative("qwen3_next_mtp").method == "mtp"
    for wrong in ("mtp,tokens=65", "mtp,tokens=0", "mtp,acceptance=1.1", "mtp,acceptance=-0.1", "beam"):
        with pytest.raises(BadInput):
            speculative(wrong)
    assert Speculative("mtp", 2, (0.5, 0.5)).mean == 1.75


def test_requests_pass_a_front_end_one_after_another() -> None:
    front = FrontendQueue(Front(request_us=1000.0, token_us=10.0, transit_us=500.0, stream_us=100.0, think_us=2000.0,
                                workers=2, variation=0.0))  # fmt: skip
    assert front.enter(1.0, 100) == pytest.approx(1.0 + 1e-3 + 5e-4)  # 2 ms over two workers, then the transit
    assert front.enter(1.0, 100) == pytest.approx(1.0 + 2e-3 + 5e-4) and front.enter(9.0, 0) == pytest.approx(9.001)
    assert front.leave(5.0, 8) == pytest.approx(5.0 + 2e-4) and front.leave(5.0, 8) == pytest.approx(5.0 + 6e-4)
    front.stream([5.0, 6.0], 8)
    assert front.leave(6.0, 0) == pytest.approx(6.0004) and front.next_request(7.0) == pytest.approx(7.002)
    factors = np.array(lognormal_factors(0.5, 3))
    assert len(factors) == 4093 and factors.mean() == pytest.approx(1, abs=0.03)
    assert factors.std() == pytest.approx(0.5, abs=0.05) and lognormal_factors(0.0, 3) == [1.0]


def test_a_scheduler_looks_into_its_inbox_now_and_then() -> None:
    box = RequestInbox(interval=3)
    for at, request in ((1.0, 7), (2.0, 8), (9.0, 9)):
        box.put(at, request)
    assert box.unseen_steps == 0 and box.take(2.0, 0.5, idle=False) == [7, 8] and len(box) == 1
    assert box.unseen_steps == 3 and box.none_joins(8.0)
    box.ran(prompts=False)
    assert box.unseen_steps == 2 and box.take(9.0, 8.0, idle=False) == []
    box.skipped(2)
    assert box.unseen_steps == 0 and not box.none_joins(8.0)
    box.skipped(4)
    assert box.since == 1
    box.ran(prompts=True)
    assert box.since == 4 and box.take(9.0, 8.0, idle=False) == [9] and box.unseen_steps > 1 << 60
    ahead = RequestInbox(overlaps=True)
    ahead.put(5.0, 1)
    assert ahead.none_joins(4.0) and ahead.take(6.0, 4.0, idle=False) == []  # it came while the step before ran
    ahead.ran(prompts=False)
    assert ahead.take(7.0, 6.0, idle=False) == [1]
    ahead.put(8.0, 2)
    assert ahead.take(8.0, 6.0, idle=True) == [2]


def test_requests_that_fit_together_and_those_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    deployment: Any = None
    monkeypatch.setattr(kv_budget, "requests_in", lambda *_: 7.9)
    monkeypatch.setattr(kv_budget, "held_bytes", lambda _d, _m, count, *_: count * 2.0 * GIB)
    memory: Any = SimpleNamespace(kv=15.8)
    assert [kv_budget.requests_at_once(deployment, memory, batch, 100, 8) for batch in (5, 7, 100_000)] == [5, 7, 7]
    with pytest.raises(DoesNotFit, match=r"batch = 100001.*takes 200002.0 GiB a GPU, 15.8 GiB are free; at most 7"):
        kv_budget.requests_at_once(deployment, memory, 100_001, 100, 8)
    monkeypatch.setattr(kv_budget, "requests_in", lambda *_: 0.9)
    with pytest.raises(DoesNotFit, match=r"batch = 1: .* of 1 requests"):
        kv_budget.requests_at_once(deployment, memory, 5, 100, 8)


def test_pages_in_the_hosts_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_budget, "cache_bytes", lambda _, tokens: 4096.0 * tokens)
    parallel, gpu = SimpleNamespace(pp=2), SimpleNamespace(pcie_gbps=50.0)
    runner: Any = SimpleNamespace(deployment=SimpleNamespace(parallel=parallel), gpu=gpu)
    found = kv_budget.offloaded(KvBudget(10, 16), runner, 1.0)
    assert (found.host_pages, found.host_load_s) == (8192, pytest.approx(4096 / 40e9))
    assert kv_budget.offloaded(KvBudget(10, 16), runner, 0.0).host_pages == 0
    for wrong in (-1.0, 65_537.0):
        with pytest.raises(BadInput):
            kv_budget.offloaded(KvBudget(10, 16), runner, wrong)


def test_rows_that_wait_for_answers() -> None:
    kind: Any = SimpleNamespace(session="of", turn="turn", think="think")
    columns = {"of": ["a", "b", "a", "a"], "turn": [0, 0, 1, 2], "think": [None, None, 2.0, None]}
    rows, times = Rows(columns, kind, 512), np.array([0.0, 1.0, math.nan, 9.0])
    assert rows.sessions()[0] == [0, 1, 0, 0]  # type: ignore[index]
    before, think = rows.waits(times, waits=False)
    assert before.tolist() == [-1, -1, 0, -1] and think.tolist() == [0, 0, 2, 0]
    every, _ = rows.waits(times, waits=True)
    assert every.tolist() == [-1, -1, 0, 2]
    with pytest.raises(BadInput, match="row 3: turn 0 of its session comes twice"):
        Rows(columns | {"turn": [0, 0, 0, 2]}, kind, 512).waits(times, waits=False)
    with pytest.raises(MissingField, match="row 1: has no time"):
        rows.waits(np.array([math.nan, 1.0, 2.0, 3.0]), waits=False)
    assert _dates("at", ["2023-11-16 18:15:47.68", "2023-11-16 18:15:46.6800000"]).tolist() == [1, 0]


def test_steps_that_began_in_a_window() -> None:
    log = StepLog()
    log.add(0, [1.0, 2.0], [0.5, 0.25], 3)
    log.add(1, [3.0], [1.0], 5, preempted=2)
    found = {name: values.tolist() for name, values in log.within(2.0, 3.5).items()}
    assert found == {"engine": [0, 1], "seconds": [0.25, 1.0], "decoding": [3, 5], "preempted": [0, 2]}
    assert log.within(2.0, 3.0)["engine"].tolist() == [0] and len(log.within()["engine"]) == 3


class Toy:
    """Steps of a second, and a tenth more for each token that is held."""

    def seconds(self, decoding: int, cached: int, pieces: Any) -> float:
        return 1.0 + 0.1 * cached

    def decoder(self, decoding: int) -> Any:
        return reader([0.0, 1000.0], [1.0, 101.0])


def replica(pages: int, *requests: tuple[int, int], **policy: Any) -> Replica:
    prompts, outputs = (np.array(column) for column in zip(*requests, strict=True))
    told = {"max_batched_tokens": 64, "max_requests": 8} | policy
    made = Replica(Toy(), VllmPolicy(**told), KvBudget(pages, 16), Traffic(np.zeros(len(requests)), prompts, outputs))
    made.waiting.extend(range(len(requests)))
    return made


def test_an_engine_step_by_step() -> None:
    """Prompts of 20 and 31 tokens begin together; the first is done after three tokens, the second opens a page first."""
    one = replica(9, (20, 3), (31, 6))
    first = one.step(0.0)
    assert (first.pieces, first.first, first.decoding, first.seconds) == ([(0, 20, 0), (1, 31, 0)], [0, 1], 0, 1.0)
    assert (one.running, one.decoding, one.cached, one.free, one.owed, one.load) == (2, 2, 51, 5, 7, 2)
    second = one.step(1.0)
    assert (second.decoding, second.cached, second.seconds) == (2, 53, pytest.approx(6.3)) and one.free == 5
    assert one.quiet_steps(9) == 0  # the first is done with the next
    third = one.step(7.3)
    assert third.done == [0] and one.free == 6  # its two pages are back, and the second took one
    assert (one.decoding, one.cached, one.owed, one.quiet_steps(9), one.quiet_steps(1)) == (1, 33, 3, 2, 1)
    ends = one.decode_until(0.0, 100.0, 9)
    assert ends == pytest.approx([1 + 3.4, 2 + 3.4 + 3.5]) and one.cached == 35
    (before, after) = one.decoded(0.0, ends)
    assert (before.cached, after.cached, after.start_s, before.pages) == (34, 35, ends[0], 3)
    last = one.decode_step(ends[-1])
    assert last is not None and last.done == [1] and last.seconds == pytest.approx(4.6) and one.idle and one.free == 9


def test_the_newest_request_makes_room_and_is_computed_again() -> None:
    one = replica(3, (16, 9), (15, 9), max_batched_tokens=31)
    one.step(0.0)
    assert one.free == 1
    second = one.step(1.0)  # the first opens its second page
    assert second.preempted == 0 and one.free == 0
    third = one.step(2.0)  # the second request would open one
    assert third.preempted == 1 and third.decoding == 1 and list(one.waiting) == [1]
    assert (one.tokens[1], one.left[1], one.free, one.owed) == (17, 6, 1, 6)
    with pytest.raises(DoesNotFit, match="a request of 66 tokens"):
        replica(4, (60, 7))

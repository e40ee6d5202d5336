"""Sessions of the laboratory, against a made-up engine that answers a token a step and holds a prefix cache."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest

from lab.vllm_engine.drive import Driver, RunningEngine
from lab.vllm_engine.sessions import LOADS, REQUEST, Blocks, Load, Sessions, answered, brief, drawn

STEP_S, PAGE = 0.01, 16
LOAD = Load("test", 5, 2.0, (2, 4), 32, (10, 40), (5, 20), (1, 6), 0.5)


@dataclass
class FakeEngine:
    """A token of every request a step; pages of all prompts and answers are cached for ever."""

    now: float = 0.0
    live: dict[str, list[Any]] = field(default_factory=dict)
    prompts: dict[str, list[int]] = field(default_factory=dict)
    cached: set[tuple[int, ...]] = field(default_factory=set)

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def add_request(self, name: str, prompt: dict[str, Any], tokens: int) -> str:
        text = prompt["prompt_token_ids"]
        pages = (len(text) - 1) // PAGE
        found = next(n for n in range(pages, -1, -1) if not n or tuple(text[: n * PAGE]) in self.cached)
        self.live[name], self.prompts[name] = [list(text), tokens, found * PAGE], text
        return name

    def has_unfinished_requests(self) -> bool:
        return bool(self.live)

    def update_from_output(self, scheduled: Any, output: Any) -> None:
        """What the scheduler of vLLM is told of a step."""

    def step(self) -> list[SimpleNamespace]:
        self.now += STEP_S
        scheduled = SimpleNamespace(num_scheduled_tokens=dict.fromkeys(self.live, 1))
        self.update_from_output(scheduled, None)
        made = []
        for name, one in list(self.live.items()):
            text, left, found = one
            text.append(7)
            one[1] = left - 1
            made.append(SimpleNamespace(request_id=name, finished=left == 1, num_cached_tokens=found,
                                        outputs=[SimpleNamespace(token_ids=[7])]))  # fmt: skip
            if left == 1:
                self.cached |= {tuple(text[:n]) for n in range(PAGE, len(text), PAGE)}
                del self.live[name]
        return made


def driver_of(fake: FakeEngine) -> Driver:
    parts = RunningEngine(fake, fake, lambda tokens: tokens, 1000, 1 << 20, 8192, 40960)
    return Driver(parts, fake.clock)


@pytest.fixture
def fake() -> FakeEngine:
    return FakeEngine()


def test_turns_wait_for_answers_and_begin_with_what_was_said(fake: FakeEngine) -> None:
    sessions = Sessions(driver_of(fake), lambda tokens: tokens, LOAD)
    sessions.run(1e9, fake.sleep)
    told = [dict(zip(REQUEST, request, strict=True)) for request in sessions.requests]
    assert len(told) == sum(len(turns) for _, turns in drawn(LOAD))
    by_turn = {(one["session"], one["turn"]): one for one in told}
    for (session, turn), one in by_turn.items():
        assert one["sent_s"] <= one["added_s"] < one["first_s"] <= one["done_s"]
        assert one["done_s"] - one["first_s"] == pytest.approx((one["output"] - 1) * STEP_S)
        if turn:
            before = by_turn[session, turn - 1]
            assert one["sent_s"] == pytest.approx(before["done_s"] + one["think_s"], abs=1e-5)
            earlier = fake.prompts[f"test.{session}.{turn - 1}"]
            assert fake.prompts[f"test.{session}.{turn}"][: before["prompt"] + before["output"]] == [
                *earlier, *[7] * before["output"]]  # fmt: skip
            # all whole pages that were computed before, but not the one of the prompt's last token
            assert one["cached"] == min(before["prompt"] + before["output"] - 1, one["prompt"] - 1) // PAGE * PAGE
    assert sum(tokens for _, tokens, _ in sessions.steps) == sum(one["output"] for one in told)


def test_no_turn_is_sent_after_the_deadline(fake: FakeEngine) -> None:
    sessions = Sessions(driver_of(fake), lambda tokens: tokens, LOAD)
    sessions.run(1.0, fake.sleep)
    assert 0 < len(sessions.requests) < sum(len(turns) for _, turns in drawn(LOAD))
    assert max(request[3] for request in sessions.requests) <= 1.0


def test_loads_that_differ_in_their_cache_alone_are_alike() -> None:
    tight, whole = LOADS[0], next(load for load in LOADS if load.name == "documents")
    assert replace(tight, name="documents", kv_tokens=None) == whole
    assert drawn(tight) == drawn(whole)


def test_row_of_a_load_is_summed_up_in_one_line(fake: FakeEngine) -> None:
    row = answered(driver_of(fake), lambda tokens: tokens, replace(LOAD, rate=1e9, think_s=0.0), 1e9)
    assert f"test: {len(row['requests'])} turns" in brief(row)
    assert "TPOT 10.00 ms" in brief(row)


def test_blocks_are_held_back_and_given_back() -> None:
    free = list(range(100))
    pool = SimpleNamespace(
        get_num_free_blocks=lambda: len(free),
        get_new_blocks=lambda count: [free.pop() for _ in range(count)],
        free_blocks=free.extend,
    )
    blocks = Blocks(pool, 16)
    assert blocks.leave(400) == 400
    blocks.give_back()
    assert blocks.leave(None) == 1600

"""Steps of SGLang: the gate, the notes of batches and the rows made of them, against a made-up scheduler."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from lab.sglang_engine import plan, rows
from lab.sglang_engine.plan import Arrival, Staircase
from lab.sglang_engine.scheduler import Gate, Notes, expected, request_name, wrap

CHUNK = 4096


class Clock:
    """Time that only the made-up scheduler moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def step_s(tokens: int, context: float) -> float:
    return 1e-3 + 1e-5 * tokens + 1e-7 * context


@dataclass
class Request:
    rid: str
    prompt: int
    new: int
    computed: int = 0
    made: int = 0


@dataclass
class FakeScheduler:
    """Prompts first, in chunks; then all decode together, one token a step."""

    clock: Clock
    held: list[Request] = field(default_factory=list)
    count: int = 0

    def process_input_requests(self, arrived: list[Request]) -> None:
        self.held += arrived

    def run_batch(self, batch: SimpleNamespace) -> SimpleNamespace:
        self.count += 1
        batch.forward_iter = self.count
        return batch

    def process_batch_result(self, batch: SimpleNamespace, result: object) -> None:
        self.clock.now += step_s(batch.extend_num_tokens or len(batch.reqs), batch.seq_lens_cpu.mean())

    def drain(self) -> None:
        while self.held:
            batch = self._next()
            self.process_batch_result(batch, self.run_batch(batch))
            self.held = [one for one in self.held if one.made < one.new]

    def _next(self) -> SimpleNamespace:
        left, taking = CHUNK, []
        for one in self.held:
            now = min(left, one.prompt - one.computed)
            if now:
                one.computed, left = one.computed + now, left - now
                one.made += one.computed == one.prompt
                taking.append(one)
        decoding = not taking
        for one in self.held if decoding else ():
            one.made += 1
        chosen = taking or self.held
        lengths = np.array([one.computed + one.made * decoding for one in chosen])
        mode = SimpleNamespace(is_decode=lambda: decoding)
        return SimpleNamespace(
            forward_mode=mode, reqs=chosen, extend_num_tokens=0 if decoding else CHUNK - left, seq_lens_cpu=lengths
        )


@pytest.fixture
def engine(tmp_path: Path) -> tuple[FakeScheduler, Notes, rows.NotesFile]:
    clock = Clock()
    notes = Notes(tmp_path / "steps.jsonl", clock)
    wrapped = type("Wrapped", (FakeScheduler,), {})
    wrap(wrapped, notes, Gate())
    return wrapped(clock), notes, rows.NotesFile(tmp_path / "steps.jsonl")


def serve(engine: tuple[FakeScheduler, Notes, rows.NotesFile], lengths: list[int], new: list[int]) -> list[rows.Row]:
    """The batches in which requests that come one by one are served together."""
    scheduler, _, file = engine
    for index, (length, tokens) in enumerate(zip(lengths, new, strict=True)):
        scheduler.process_input_requests([Request(request_name(1, index, len(lengths)), length, tokens)])
    scheduler.drain()
    scheduler.clock.now += 1.0
    scheduler.process_input_requests([])
    return file.new()


def test_requests_of_a_point_are_held_until_all_are_there() -> None:
    gate = Gate()
    names = [request_name(7, index, 3) for index in range(3)]
    assert [expected(name) for name in names] == [3, 3, 3] and expected("abc") == expected("a-b-c-d") == 1
    control = SimpleNamespace()
    assert gate.passed([SimpleNamespace(rid=names[0]), control]) == [control]
    assert gate.passed([SimpleNamespace(rid=names[1])]) == []
    assert [one.rid for one in gate.passed([SimpleNamespace(rid=names[2])])] == names
    assert gate.passed([SimpleNamespace(rid="other")])[0].rid == "other"


def test_prefill_row_is_the_time_of_its_chunks(engine: tuple[FakeScheduler, Notes, rows.NotesFile]) -> None:
    runs = [serve(engine, [2048, 2048, 2048], [1, 1, 1]) for _ in range(3)]
    row = rows.prefill_row(Arrival(3, 2048), runs, [1.0, 2.0, 4.0])
    assert row["chunk_tokens"] == [4096, 2048]
    assert row["step_ms"] == pytest.approx(sum(row["chunk_ms"]), abs=1e-3) and row["n"] == 2
    assert row["chunk_ms"][0] == pytest.approx(1e3 * step_s(4096, 2048), rel=1e-3)
    assert row["generate_ms"] == 3.0


def test_a_prefill_with_tokens_missing_is_no_row(engine: tuple[FakeScheduler, Notes, rows.NotesFile]) -> None:
    runs = [serve(engine, [512], [1]) for _ in range(2)]
    with pytest.raises(RuntimeError, match="1024 wanted"):
        rows.prefill_row(Arrival(1, 1024), runs, [1.0, 1.0])


def test_a_staircase_gives_a_row_a_batch_size(engine: tuple[FakeScheduler, Notes, rows.NotesFile]) -> None:
    stairs = Staircase(1024, (8, 4, 1))
    batches = serve(engine, [1024] * 8, stairs.new_tokens())
    texts = [[number] * tokens for number, tokens in enumerate(stairs.new_tokens())]
    found = rows.decode_rows(stairs, batches, texts)
    assert [row["batch"] for row in found] == [8, 4, 1] == [row["distinct_tokens"] for row in found]
    for stage, row in enumerate(found):
        assert row["n"] >= rows.FEWEST_STEPS
        assert row["step_ms"] == pytest.approx(1e3 * step_s(row["batch"], row["mean_context"]), rel=1e-2)
        assert stage * plan.STAGE_STEPS < row["mean_context"] - 1024 <= (stage + 1) * plan.STAGE_STEPS


def test_staircases_fit_the_cache() -> None:
    for stairs in plan.staircases(300_000):
        assert stairs.batches[0] * (stairs.context + max(stairs.new_tokens())) < 300_000
    assert [one.context for one in plan.staircases(1_000)] == []
    assert sorted(Staircase(10, (4, 2, 1)).new_tokens()) == [37, 37, 73, 109]

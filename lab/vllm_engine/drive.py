"""Step an engine by hand and know, of every step, which scheduled batch it completed and when.

vLLM schedules ahead: a call of `step()` launches the next batch and then waits for the one before. The batch that a
call completed is therefore read where the scheduler takes in its output, and a step's time is the time between two
completions, which is what a user sees between two tokens.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MOST_IDLE_STEPS = 10_000


@dataclass(frozen=True, slots=True)
class Step:
    """A call of `step()`: the batch it completed (no tokens: none) and the clock when it came back."""

    ended_s: float
    tokens: int
    requests: int
    outputs: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class RunningEngine:
    """What is needed of a running engine. `engine` steps; `sampling(n)` are parameters for n new tokens."""

    engine: Any
    scheduler: Any
    sampling: Callable[[int], Any]
    vocab: int
    kv_tokens: int
    max_batched_tokens: int
    max_model_len: int


class Driver:
    """Adds requests of random tokens and steps the engine."""

    def __init__(self, engine: RunningEngine, clock: Callable[[], float] = time.perf_counter) -> None:
        self.limits = engine
        self.clock = clock
        self._engine = engine.engine
        self._scheduler = engine.scheduler
        self._names = (f"step-{number}" for number in itertools.count())
        self._completed: Mapping[str, int] = {}
        self._take_in = engine.scheduler.update_from_output
        engine.scheduler.update_from_output = self._watched

    def _watched(self, scheduled: Any, output: Any) -> Any:
        self._completed = scheduled.num_scheduled_tokens
        return self._take_in(scheduled, output)

    def add(self, prompts: Sequence[list[int]], new_tokens: int, *, seeded: bool = False) -> None:
        """Queue prompts; seeded ones count as computed but for their last token, as after a remote prefill."""
        for prompt in prompts:
            tokens = {"type": "token", "prompt_token_ids": prompt}
            name = self._engine.add_request(next(self._names), tokens, self.limits.sampling(new_tokens))
            if seeded:
                self._scheduler.requests[name].num_computed_tokens = len(prompt) - 1

    def step(self) -> Step:
        """One step of the engine."""
        self._completed = {}
        outputs = tuple(self._engine.step())
        ended = self.clock()
        return Step(ended, sum(self._completed.values()), len(self._completed), outputs)

    def drain(self) -> list[Step]:
        """Step until no request is left; the steps that completed a batch."""
        steps: list[Step] = []
        idle = 0
        while self._engine.has_unfinished_requests():
            step = self.step()
            idle = 0 if step.tokens else idle + 1
            if idle > MOST_IDLE_STEPS:
                raise RuntimeError("the engine schedules nothing although requests are left")
            if step.tokens:
                steps.append(step)
        return steps

    def abandon(self) -> None:
        """Drop all requests, after a failure."""
        self._engine.abort_request(list(self._scheduler.requests), internal=True)
        self.drain()

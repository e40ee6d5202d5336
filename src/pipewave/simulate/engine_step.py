"""One step of an engine, who says what it holds, and who how long it takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


class StepTimer(Protocol):
    """Predicts how long a step takes.

    It may have two more methods. `decoder(decoding)`: reads the seconds of a step in which so many requests decode and
    nothing else runs, by the tokens they hold together; such steps are then run in stretches.
    `hidden_s(decoding, pieces)`: seconds of a step with prompts that a step running before it hides.
    """

    def seconds(self, decoding: int, cached: int, pieces: Sequence[tuple[int, int]], /) -> float:
        """Of a step of requests that hold `cached` tokens together, and prompt pieces (tokens, those before)."""


class Untimed:
    """A timer of steps of which only the order counts, or which somebody else times."""

    def seconds(self, *batch: object) -> float:
        """No time."""
        return 0.0


@dataclass(slots=True)
class Step:
    """One engine step."""

    start_s: float
    seconds: float
    decoding: int  # requests
    pieces: list[tuple[int, int, int]]  # prompt pieces: request, tokens, tokens before them
    first: list[int] = field(default_factory=list)  # requests whose prompt ended
    done: list[int] = field(default_factory=list)
    preempted: int = 0
    cached: int = 0  # tokens that the decoding requests hold
    waiting: int = 0  # requests left in the queue
    pages: int = 0  # of the cache, in use


@dataclass(frozen=True, slots=True)
class BatchPolicy:
    """Limits of a scheduler; what it puts into a step is its engine's own (`policies`)."""

    max_batched_tokens: int  # tokens of a step
    max_requests: int  # requests that run at once
    mixes_phases: bool = True  # decode tokens and prompts share a step; else steps with prompts decode nothing
    chunked_prefill: bool = True  # a prompt may be cut over steps
    overlaps: bool = False  # a step is scheduled while the one before runs, so new requests are seen one step later
    recv_interval: int = 1  # decode steps between two looks at new requests
    compile_s: float = 0.0  # a step waits this long for a kernel if no step had as many tokens before
    wait_steps: int = 0  # decode steps that prompts are held back at most until more come
    prefill_wait_steps: int = 0  # steps that prompts are held back until every data-parallel rank has one

    def next_batch(self, engine: Any, step: Step) -> int:
        """Put prompt pieces of a `Replica` into `step`; returns how many of its requests decode in it."""
        raise NotImplementedError

"""One step of an engine, and who says how long it takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol


class StepTimer(Protocol):
    """Predicts how long a step takes.

    It may have two more methods. `decoder(decoding)`: reads the seconds of a step in which so many requests decode and
    nothing else runs, by the tokens they hold together; such steps are then run in stretches.
    `hidden_s(decoding, pieces)`: seconds of a step with prompts that a step running before it hides.
    """

    def seconds(self, decoding: int, cached: int, pieces: Sequence[tuple[int, int]], /) -> float:
        """Of a step of requests that hold `cached` tokens together, and prompt pieces (tokens, those before)."""


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

"""What an engine asks of step times, whoever predicts them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable


class Timed(Protocol):
    """What tells how long a step takes."""

    def seconds(self, decoding: int, cached: int, pieces: Sequence[tuple[int, int]], /) -> float:
        """Seconds of a step of decoding requests that hold `cached` tokens together, and prompt pieces."""
        ...


@runtime_checkable
class Paced(Timed, Protocol):
    """What tells it for all steps of so many decoding requests at once."""

    def decoder(self, decoding: int, /) -> Callable[[float], float]:
        """Seconds of such a step by the tokens that the requests hold together."""
        ...

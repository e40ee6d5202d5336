"""Lists of integers as people write them."""

from __future__ import annotations

from pipewave.calls.fields import LARGEST_LIST
from pipewave.errors import BadInput


def integers(text: str) -> tuple[int, ...]:
    """`1,2,3500*8` as integers."""
    try:
        parts = [(int(number), int(times or 1)) for number, _, times in (p.partition("*") for p in text.split(","))]
    except ValueError as error:
        raise BadInput(f"{text!r}: must be integers separated by commas, such as 128,4096 or 3500*8") from error
    if sum(times for _, times in parts) > LARGEST_LIST:
        raise BadInput(f"{text!r}: must be at most {LARGEST_LIST:,} integers")
    return tuple(number for number, times in parts for _ in range(times))

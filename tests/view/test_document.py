"""An interval is said in the unit of the answer that it belongs to."""

from __future__ import annotations

import pytest

from pipewave.models import load
from pipewave.view import document as doc


@pytest.mark.parametrize(
    ("ms", "said", "between"),
    [
        (8_000.0, "8000 ms", "90 % between 4000 and 12,000 ms"),
        (20_370.0, "20.37 s", "90 % between 10.19 and 30.55 s"),
    ],
)
def test_ends_have_the_unit_of_their_middle(ms: float, said: str, between: str) -> None:
    answer = {"e2e_ms": ms, "e2e_ms_low": ms / 2, "e2e_ms_high": 1.5 * ms}
    assert doc.ms(answer["e2e_ms"]) == said
    assert doc.interval(answer, "e2e_ms", "ms") == between


def test_what_was_not_asked_is_said_outright() -> None:
    """That an engine would refuse such requests, or runs fewer at once, is no detail."""
    outright, details = doc.notes_and_command(
        {"notes": ["a detail", *length_notes(), "the others wait their turn; so"]}
    )
    assert isinstance(outright, doc.Notes) and isinstance(details, doc.Notes)
    assert (outright.detail, details.items) == (False, ("a detail",)) and len(outright.items) == 2
    assert [block.items for block in doc.notes_and_command({"notes": ["a detail"]})] == [("a detail",)]  # type: ignore[union-attr]


def length_notes() -> tuple[str, ...]:
    return load("Qwen3-8B").length_notes(10**6)

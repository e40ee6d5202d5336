"""An interval is said in the unit of the answer that it belongs to."""

from __future__ import annotations

import pytest

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

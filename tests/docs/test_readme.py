"""The README's figures are those of the committed results, and it fits on two screens."""

from __future__ import annotations

from docs.tools.readme import README, rows, written


def test_the_table_is_what_the_committed_results_say() -> None:
    text = README.read_text(encoding="utf-8")
    assert written(text) == text, "run python -m docs.tools.readme --write"
    assert len(list(rows())) > 5


def test_it_fits_on_two_screens() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 100

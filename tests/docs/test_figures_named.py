"""No figure of the README and the pages stands without a source, and those of committed results are recomputed."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs.tools import figures_named
from docs.tools.figures_named import Piece, exists, ledger, pieces, recomputed, source, unnamed

ROOT = Path(__file__).parents[2]
ENTRIES = ledger()["figures"]
RECOMPUTED = [one for one in ENTRIES if "json" in one]


def text_of(page: str) -> str:
    path = ROOT / page if page == "README.md" else ROOT / "docs" / page
    return " ".join(path.read_text(encoding="utf-8").split())


def test_every_figure_names_its_source() -> None:
    left = [f"{one.page}:{one.line}: {one.text[:80]}" for one in unnamed()]
    assert not left, "name the command beside them, or list them in docs/figures.yaml"


@pytest.mark.parametrize("entry", RECOMPUTED, ids=lambda entry: f"{entry['page']}: {entry['text'][:30]}")
def test_a_listed_figure_is_what_its_result_says(entry: dict[str, str]) -> None:
    assert recomputed(entry) in text_of(entry["page"])


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: f"{entry['page']}: {entry['text'][:30]}")
def test_what_is_listed_is_on_its_page_and_has_a_result_or_a_reason(entry: dict[str, str]) -> None:
    assert entry["text"] in text_of(entry["page"])
    assert ("json" in entry) != ("reason" in entry)


def test_pages_that_a_command_writes_exist_and_so_does_the_command() -> None:
    for page, command in ledger()["generated"].items():
        assert (ROOT / "docs" / page).exists()
        assert exists(command.split()[2])


def test_a_figure_without_a_source_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One\n\nIt is 3.2 % better.\n\n# Two\n\nIt is 4 % better (`python -m qa.monotone`).\n\n"
                    "# Three\n\n| a | b |\n|---|---|\n| x | 5.1 |\n\n# Four\n\nSee `python -m bench.not_there`: 7 %.\n")  # fmt: skip
    known = {"generated": {}, "figures": []}
    assert [one.line for one in pieces(page) if not source(one, known)] == [3, 11, 17]


def test_a_wrong_figure_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = RECOMPUTED[0]
    assert recomputed(entry | {"value": "(336, 1.23)"}) not in text_of(entry["page"])
    monkeypatch.setattr(figures_named, "ledger", lambda: {"generated": {}, "figures": []})
    assert unnamed()


def test_pieces_are_paragraphs_outside_of_code() -> None:
    found = list(pieces(ROOT / "docs" / "trace.md"))
    assert all(isinstance(piece, Piece) and "```" not in piece.text for piece in found)

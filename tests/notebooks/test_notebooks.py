"""The notebooks run from top to bottom, and what they were committed with is what they say."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs.tools.compare import differences
from docs.tools.session import ROOT

nbformat = pytest.importorskip("nbformat")
pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")
pytest.importorskip("matplotlib")
pytest.importorskip("pandas")

BOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
MOST_BYTES = 300_000


def texts(book: object) -> dict[str, list[str]]:
    """What each cell printed or answered, by the cell's id."""
    cells = book.cells  # type: ignore[attr-defined]
    return {cell.id: [line for out in cell.get("outputs", []) for line in _text(out)] for cell in cells}


def _text(output: dict[str, object]) -> list[str]:
    if output["output_type"] == "stream":
        return str(output["text"]).splitlines()
    data = output.get("data", {})
    assert isinstance(data, dict)
    return [] if "image/png" in data else str(data.get("text/plain", "")).splitlines()


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::RuntimeWarning", "ignore::UserWarning")
@pytest.mark.parametrize("path", BOOKS, ids=lambda path: path.stem)
def test_a_notebook_prints_what_it_was_committed_with(path: Path) -> None:
    from docs.tools.notebooks import run

    committed, now = texts(nbformat.read(path, as_version=4)), texts(run(path))
    wrong = {cell: found for cell, lines in committed.items() if (found := differences(lines, now[cell]))}
    assert not wrong, f"run make docs-update, then read the change: {wrong}"


@pytest.mark.parametrize("path", BOOKS, ids=lambda path: path.stem)
def test_notebooks_are_committed_with_outputs_and_small(path: Path) -> None:
    book = nbformat.read(path, as_version=4)
    outputs = [output for cell in book.cells for output in cell.get("outputs", [])]
    assert not any(output["output_type"] == "error" for output in outputs)
    assert sum("image/png" in output.get("data", {}) for output in outputs) >= 3
    assert path.stat().st_size < MOST_BYTES


def test_both_notebooks_are_there() -> None:
    assert {path.stem for path in BOOKS} == {"choose_hardware", "calibrate_and_tune"}

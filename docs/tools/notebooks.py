"""Run the notebooks and keep their outputs: `python -m docs.tools.notebooks`."""

from __future__ import annotations

import os
from pathlib import Path

import nbformat
from nbclient import NotebookClient

from docs.tools.session import ROOT

FOLDER = ROOT / "notebooks"
TIMEOUT_S = 300


def run(path: Path) -> nbformat.NotebookNode:
    """A notebook run from top to bottom; CellExecutionError where a cell fails."""
    book = nbformat.read(path, as_version=4)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    client = NotebookClient(book, timeout=TIMEOUT_S, kernel_name="python3", resources={"metadata": {"path": FOLDER}})
    client.execute()
    for cell in book.cells:
        cell.metadata.pop("execution", None)  # times of day, which differ with every run
    book.metadata.language_info = {"name": "python"}  # and so does the patch release of Python
    return book


def main() -> None:
    """Run every notebook in place."""
    for path in sorted(FOLDER.glob("*.ipynb")):
        nbformat.write(run(path), path)


if __name__ == "__main__":
    main()

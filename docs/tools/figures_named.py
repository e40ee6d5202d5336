"""Where figures of the pages come from: `python -m docs.tools.figures_named` lists those without.

A figure is a number with a unit of what was measured (%, µs, ms, times) in a paragraph, or a number in a table. It has
a source when it stands

* on a page, or in a part of one, that a command writes (`generated` in `docs/figures.yaml`, or an included file),
* in a section that shows the output of a command (pages are run by a test), or that names the command, file or test
  behind it, which must exist,
* in `figures` of `docs/figures.yaml`, with a committed result that it is recomputed from, or the reason why it is no
  result (a definition, a limit, a published number with its address).
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
LEDGER = ROOT / "docs" / "figures.yaml"
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
CODE = re.compile(r"`[^`]*`")
LINK = re.compile(r"\]\([^)]*\)")
FIGURE = re.compile(r"\d[\d.,]*(?: to [\d.,]+| and [\d.,]+)? ?(?:%|µs\b|ms\b|times\b|tokens/s)")
FOLDERS = r"(?:bench|corpus|data|docs|lab|paper|qa|src|studies|tests|train)"
FILES = rf"{FOLDERS}/[\w./-]+\.\w+|{FOLDERS}/[\w/-]+|test_\w+\.py"
NAMED = re.compile(rf"python -m ([\w.]+)|({FILES})")


@dataclass(frozen=True, slots=True)
class Piece:
    """A paragraph or table that holds figures, and the section it stands in."""

    page: str
    line: int
    text: str
    section: str


def ledger() -> dict[str, Any]:
    """`docs/figures.yaml`."""
    found: dict[str, Any] = yaml.safe_load(LEDGER.read_text(encoding="utf-8"))
    return found


def pieces(page: Path) -> Iterator[Piece]:
    """Every paragraph and table of a page that holds figures."""
    lines = page.read_text(encoding="utf-8").splitlines()
    starts = [0, *(at for at, line in enumerate(lines) if line.startswith("#")), len(lines)]
    for start, end in pairwise(starts):
        section, fenced, block = "\n".join(lines[start:end]), False, list[tuple[int, str]]()
        for at in range(start, end):
            fenced ^= lines[at].lstrip().startswith("```")
            inside = fenced or lines[at].lstrip().startswith("```")
            if lines[at].strip() and not inside:
                block.append((at, lines[at]))
            if block and (not lines[at].strip() or inside or at == end - 1):
                yield from _piece(page, block, section)
                block = []


def _piece(page: Path, block: list[tuple[int, str]], section: str) -> Iterator[Piece]:
    text = "\n".join(line for _, line in block)
    plain = LINK.sub("]", CODE.sub("", text))
    table = block[0][1].startswith("|")
    if FIGURE.search(plain) or (table and re.search(r"\d", plain)):
        yield Piece(page.name, block[0][0] + 1, text, section)


def source(piece: Piece, known: dict[str, Any]) -> str:
    """What a piece rests on; empty where it names nothing."""
    if piece.page in known["generated"]:
        return str(known["generated"][piece.page])
    text = " ".join(piece.text.split())
    listed = next((one for one in known["figures"] if one["page"] == piece.page and one["text"] in text), None)
    if listed:
        return str(listed)
    if "```console" in piece.section or "```pycon" in piece.section or "--8<--" in piece.section:
        return "shown output"
    return next((name for name in named(piece.section) if exists(name)), "")


def named(section: str) -> Iterator[str]:
    """Commands, files and tests that a section names."""
    for module, path in NAMED.findall(section):
        yield module or path


def exists(name: str) -> bool:
    """Whether there is such a module, file or test."""
    if "/" in name:
        return (ROOT / name).exists() or bool(list((ROOT / name).parent.glob(f"{(ROOT / name).name}*")))
    if name.endswith(".py"):
        return bool(list((ROOT / "tests").rglob(name)))
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def recomputed(entry: dict[str, Any]) -> str:
    """The text of a figure as its committed result gives it."""
    found: Any = json.loads((ROOT / entry["json"]).read_text(encoding="utf-8"))
    names = {"found": found, "sum": sum, "max": max, "min": min, "len": len, "__builtins__": {}}
    values = eval(entry["value"], names)  # expressions of our own ledger
    return str(entry["shown"]).format(*(values if isinstance(values, tuple) else (values,)))


def unnamed() -> list[Piece]:
    """Pieces that name no source."""
    known = ledger()
    return [piece for page in PAGES for piece in pieces(page) if not source(piece, known)]


if __name__ == "__main__":
    for piece in unnamed():
        print(f"{piece.page}:{piece.line}: {' '.join(piece.text.split())[:160]}")
    sys.exit(1 if unnamed() else 0)

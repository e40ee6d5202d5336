"""A document for a terminal: tables as wide as it is, one sentence of confidence, notes on request."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from textwrap import wrap
from typing import Any

from pipewave.view.document import Block, Chart, Code, Document, Facts, Notes, Table, is_number, number

UNSIZED = 160  # columns where no terminal says how many
NARROWEST = 12  # letters that a wrapped column keeps
BOLD = ("\033[1m", "\033[0m")


def write(document: Document, *, verbose: bool = False) -> str:
    """The whole answer. `verbose`: with its details, and every note in full."""
    head = [_bold(document.title), document.subtitle if verbose and document.subtitle not in document.title else ""]
    kept = (one for one in document.blocks if verbose or not (isinstance(one, Chart) or one.detail))
    shown = ("\n".join(filter(None, _block(block))) for block in kept)
    parts = ["\n".join(filter(None, (*head, *document.headline))), *shown]
    notes = () if verbose else document.notes
    more = f"{len(notes)} note{'s'[: len(notes) != 1]}: --verbose" if notes else ""
    sure = "; ".join(part for part in (document.confidence, more) if part)
    parts.append(f"confidence: {sure}" if sure else "")
    return "\n\n".join(part for part in parts if part) + "\n"


def _block(block: Block) -> Iterator[str]:
    if isinstance(block, Table):
        yield table(block)
        yield block.note
    elif isinstance(block, Facts):
        shown = [fact for fact in block.facts if fact.value]
        width = max((len(fact.name) for fact in shown), default=0) + 2
        values = max((len(fact.value) for fact in shown if fact.detail), default=0) + 2
        yield from (f"{fact.name:{width}}{fact.value:{values}}{fact.detail}".rstrip() for fact in shown)
    elif isinstance(block, Code):
        yield f"{block.title.lower()}:{' ' if len(block.text.splitlines()) == 1 else chr(10)}{block.text}"
    elif isinstance(block, Notes):
        yield from (f"note: {item}" for item in dict.fromkeys(block.items))


def _bold(text: str) -> str:
    return text.join(BOLD) if text and sys.stdout.isatty() else text


def width() -> int:
    """Columns of the terminal."""
    try:
        return int(os.environ.get("COLUMNS") or (os.get_terminal_size().columns if sys.stdout.isatty() else UNSIZED))
    except (OSError, ValueError):
        return UNSIZED


def rows_of(rows: Sequence[Mapping[str, Any]], title: str = "", droppable: Sequence[str] = ()) -> str:
    """Rows as a table under its title; what a row lacks is left empty."""
    names = tuple(dict.fromkeys(name for row in rows for name in row))
    cells = tuple(tuple(row.get(name) for name in names) for row in rows)
    return table(Table(title, names, cells, "", tuple(droppable)))


def table(found: Table) -> str:
    """A table: droppable columns go where the terminal is narrow, then texts are wrapped."""
    cells = [[number(value) for value in row] for row in found.rows]
    kept = list(range(len(found.columns)))
    widths = [max(map(len, (name, *(row[i] for row in cells)))) for i, name in enumerate(found.columns)]
    right = [all(is_number(row[i]) for row in found.rows) and bool(found.rows) for i in kept]
    for name in found.droppable:
        if name in found.columns and _sum(widths, kept) > width():
            kept.remove(found.columns.index(name))
    while (over := _sum(widths, kept) - width()) > 0:
        widest = max((i for i in kept if not right[i]), key=widths.__getitem__, default=None)
        if widest is None or widths[widest] <= NARROWEST:
            break
        widths[widest] = max(widths[widest] - over, NARROWEST)
    lines = [_bold(found.title)] if found.title else []
    lines.append(_line([found.columns[i] for i in kept], [widths[i] for i in kept], [right[i] for i in kept]))
    lines.append("─" * _sum(widths, kept))
    for row in cells:
        wrapped = [wrap(row[i], widths[i]) or [""] if len(row[i]) > widths[i] else [row[i]] for i in kept]
        for at in range(max(map(len, wrapped), default=0)):
            texts = [part[at] if at < len(part) else "" for part in wrapped]
            lines.append(_line(texts, [widths[i] for i in kept], [right[i] for i in kept]))
    return "\n".join(lines)


def _sum(widths: Sequence[int], kept: Sequence[int]) -> int:
    return sum(widths[i] + 2 for i in kept) - 2


def _line(texts: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    parts = (f"{text:>{size}}" if side else f"{text:{size}}"
             for text, size, side in zip(texts, widths, right, strict=True))  # fmt: skip
    return "  ".join(parts).rstrip()

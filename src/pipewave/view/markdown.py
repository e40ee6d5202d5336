"""A document as Markdown: the same facts and tables; charts are left to their tables."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape

from pipewave.view.document import Block, Chart, Code, Document, Facts, Notes, Table, number

_SPECIAL = re.compile(r"([\\`*_\[\]|#!~$])")


def write(document: Document) -> str:
    """The whole file."""
    parts = [f"# {text(document.title)}", text(document.subtitle)]
    parts += ["\n".join(f"* **{text(line)}**" for line in document.headline)]
    parts += [text(f"Confidence: {document.confidence}.")] if document.confidence else []
    parts += [line for block in document.blocks for line in _block(block)]
    return "\n\n".join(part for part in parts if part) + "\n"


def text(value: str) -> str:
    """Text that means itself: markup is escaped, lines are joined.

    Characters of HTML become entities, since not every renderer honours a backslash before a tag.
    """
    return _SPECIAL.sub(r"\\\1", escape(" ".join(value.split()), quote=False))


def _block(block: Block) -> Iterator[str]:
    if isinstance(block, Facts):
        yield "\n".join(f"* **{text(f.name)}**: {text(f.value)}{f' ({text(f.detail)})' if f.detail else ''}"
                        for f in block.facts)  # fmt: skip
    elif isinstance(block, Table):
        yield from (f"## {text(block.title)}" if block.title else "", _table(block), text(block.note))
    elif isinstance(block, Chart):
        yield from (f"## {text(block.title)}", text(block.note))
    elif isinstance(block, Code):
        fence = "`" * max(3, 1 + max(map(len, re.findall("`+", block.text)), default=0))
        yield from (f"## {text(block.title)}", f"{fence}sh\n{block.text}\n{fence}")
    elif isinstance(block, Notes):
        yield "\n".join(f"* {text(item)}" for item in block.items)


def _table(table: Table) -> str:
    lines = [
        [text(name) for name in table.columns],
        ["---"] * len(table.columns),
        *([text(number(v)) for v in row] for row in table.rows),
    ]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)

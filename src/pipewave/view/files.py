"""A document as a file to keep or to send: HTML or Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape
from pathlib import Path

from pipewave.files import packaged
from pipewave.view.document import Block, Chart, Code, Document, Facts, Notes, Table, is_number, number

STYLE = Path(__file__).with_name("style.css")
MANY = 13  # columns that fit a page in letters of the usual size
POLICY = "default-src 'none'; style-src 'unsafe-inline'"  # a report can load nothing and run nothing
_SPECIAL = re.compile(r"([\\`*_\[\]|#!~$])")


def html(document: Document) -> str:
    """One HTML file: no script, no external resource, light and dark, and fit for paper."""
    style = packaged.text(STYLE)
    body = "".join(_element(one) for one in document.blocks)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(document.title)}</title><style>{style}</style></head><body>"
        f"<header><h1>{escape(document.title)}</h1><p>{escape(document.subtitle)}</p>"
        f"{''.join(f'<p><strong>{escape(line)}</strong></p>' for line in document.headline)}"
        f"{_note(document.confidence and 'Confidence: ' + document.confidence + '.')}</header>"
        f"<main>{body}</main><footer>Made by pipewave. Times are predictions unless they say measured.</footer>"
        "</body></html>\n"
    )


def _element(one: Block) -> str:
    if isinstance(one, Facts):
        texts = (map(escape, (fact.value, fact.name, fact.detail)) for fact in one.facts)
        facts = (f"<div><b>{value}</b><span>{name}</span><small>{more}</small></div>" for value, name, more in texts)
        return f'<section class="facts">{"".join(facts)}</section>'
    if isinstance(one, Table):
        return f"<section>{_heading(one.title)}{_table(one)}{_note(one.note)}</section>"
    if isinstance(one, Chart):
        return f'<section class="chart">{_heading(one.title)}{one.svg}{_note(one.note)}</section>'
    if isinstance(one, Code):
        return f"<section>{_heading(one.title)}<pre><code>{escape(one.text)}</code></pre></section>"
    return f"<section><ul>{''.join(f'<li>{escape(item)}</li>' for item in one.items)}</ul></section>"


def _heading(title: str) -> str:
    return f"<h2>{escape(title)}</h2>" if title else ""


def _note(note: str) -> str:
    return f'<p class="note">{escape(note)}</p>' if note.strip() else ""


def _table(table: Table) -> str:
    right = [all(is_number(row[i]) for row in table.rows) for i in range(len(table.columns))]
    heads = "".join(_cell("th", name, right[i]) for i, name in enumerate(table.columns))
    cells = (("".join(_cell("td", number(value), right[i]) for i, value in enumerate(row))) for row in table.rows)
    rows = "".join(f"<tr>{row}</tr>" for row in cells)
    many = " many" if len(table.columns) > MANY else ""
    return f'<div class="wide{many}"><table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>'


def _cell(kind: str, text: str, right: bool) -> str:
    return f'<{kind} class="r">{escape(text)}</{kind}>' if right else f"<{kind}>{escape(text)}</{kind}>"


def markdown(document: Document) -> str:
    """Markdown: the same facts and tables; charts are left to their tables."""
    parts = [f"# {_text(document.title)}", _text(document.subtitle)]
    parts += ["\n".join(f"* **{_text(line)}**" for line in document.headline)]
    parts += [_text(f"Confidence: {document.confidence}.")] if document.confidence else []
    parts += [line for block in document.blocks for line in _paragraphs(block)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _text(value: str) -> str:
    """Text that means itself: markup is escaped, lines are joined.

    Characters of HTML become entities, since not every renderer honours a backslash before a tag.
    """
    return _SPECIAL.sub(r"\\\1", escape(" ".join(value.split()), quote=False))


def _paragraphs(block: Block) -> Iterator[str]:
    if isinstance(block, Facts):
        yield "\n".join(f"* **{_text(f.name)}**: {_text(f.value)}{f' ({_text(f.detail)})' if f.detail else ''}"
                        for f in block.facts)  # fmt: skip
    elif isinstance(block, Table):
        yield from (f"## {_text(block.title)}" if block.title else "", _lines(block), _text(block.note))
    elif isinstance(block, Chart):
        yield from (f"## {_text(block.title)}", _text(block.note))
    elif isinstance(block, Code):
        fence = "`" * max(3, 1 + max(map(len, re.findall("`+", block.text)), default=0))
        yield from (f"## {_text(block.title)}", f"{fence}sh\n{block.text}\n{fence}")
    elif isinstance(block, Notes):
        yield "\n".join(f"* {_text(item)}" for item in block.items)


def _lines(table: Table) -> str:
    rows = ([_text(number(value)) for value in row] for row in table.rows)
    lines = [map(_text, table.columns), ["---"] * len(table.columns), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)

"""A document as one HTML file: no script, no external resource, light and dark, and fit for paper."""

from __future__ import annotations

from html import escape
from pathlib import Path

from pipewave.files import packaged
from pipewave.view.document import Block, Chart, Code, Document, Facts, Table, is_number, number

STYLE = Path(__file__).with_name("style.css")
MANY = 13  # columns that fit a page in letters of the usual size
POLICY = "default-src 'none'; style-src 'unsafe-inline'"  # a report can load nothing and run nothing


def write(document: Document) -> str:
    """The whole file."""
    style = packaged.text(STYLE)
    body = "".join(block(one) for one in document.blocks)
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


def block(one: Block) -> str:
    """One block as an element."""
    if isinstance(one, Facts):
        texts = (map(escape, (fact.value, fact.name, fact.detail)) for fact in one.facts)
        facts = (
            f"<div><b>{value}</b><span>{name}</span><small>{detail}</small></div>" for value, name, detail in texts
        )
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
    rows = "".join(
        "<tr>" + "".join(_cell("td", number(value), right[i]) for i, value in enumerate(row)) + "</tr>"
        for row in table.rows
    )
    many = " many" if len(table.columns) > MANY else ""
    return f'<div class="wide{many}"><table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>'


def _cell(kind: str, text: str, right: bool) -> str:
    return f'<{kind} class="r">{escape(text)}</{kind}>' if right else f"<{kind}>{escape(text)}</{kind}>"

"""Answers for people and for programs: one list of rows as a table, as JSON or as CSV."""

from __future__ import annotations

import csv
import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

FORMATS = ("table", "json", "csv")
BLOCKS = " ▏▎▍▌▋▊▉█"


def show(rows: Sequence[Mapping[str, Any]], form: str, *, title: str = "", schema: str = "rows") -> None:
    """Print rows of equal keys in the chosen form; JSON carries `schema_version`."""
    if form == "json":
        print(json.dumps({"schema_version": 1, schema: [dict(row) for row in rows]}))
    elif form == "csv":
        writer = csv.DictWriter(sys.stdout, fieldnames=list(rows[0]) if rows else [])
        writer.writeheader()
        writer.writerows({name: _cell(value) for name, value in row.items()} for row in rows)
    else:
        table(rows, title=title)


def table(rows: Sequence[Mapping[str, Any]], *, title: str = "") -> None:
    """Print rows as a table, numbers to the right."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name in rows[0] if rows else []:
        number = _numeric([row[name] for row in rows])
        grid.add_column(name, justify="right" if number else "left", no_wrap=number)
    for row in rows:
        grid.add_row(*(text(value) for value in row.values()))
    told = sys.stdout.isatty() or "COLUMNS" in os.environ
    console = Console(width=None if told else 160, markup=False, highlight=False)
    if title:  # above the table and not of it, so that it may be wider; a Text, for its brackets are no markup
        console.print(Text(title, style="bold"), soft_wrap=True)
    console.print(grid)


def _cell(value: Any) -> Any:
    return "; ".join(map(str, value)) if isinstance(value, (list, tuple)) else value


def _numeric(values: Sequence[Any]) -> bool:
    given = [value for value in values if value is not None]
    return bool(given) and all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in given)


def text(value: Any) -> str:
    """A value as people read it: four significant digits, grouped thousands."""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"
    return "" if value is None else str(value)


def bar(share: float, width: int = 12) -> str:
    """A bar that fills `share` of `width` characters, in eighths."""
    eighths = round(min(max(share, 0.0), 1.0) * width * 8)
    full, part = divmod(eighths, 8)
    return BLOCKS[8] * full + (BLOCKS[part] if part else "")


def check_format(form: str) -> str:
    """The format itself, or BadInput."""
    from pipewave.errors import BadInput

    if form not in FORMATS:
        raise BadInput(f"--format {form}: must be one of {', '.join(FORMATS)}", field="format")
    return form

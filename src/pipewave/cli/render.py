"""Answers for people and for programs: one list of rows as a table, as JSON or as CSV."""

from __future__ import annotations

import csv
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from pipewave.files.json_text import dumps

FORMATS = ("table", "json", "csv")
NAME_WIDTH = 24  # letters of a row's name that a narrow terminal shows
BLOCKS = " ▏▎▍▌▋▊▉█"


def show(
    rows: Sequence[Mapping[str, Any]],
    form: str,
    *,
    title: str = "",
    schema: str = "rows",
    droppable: Sequence[str] = (),
) -> None:
    """Print rows of equal keys in the chosen form; JSON carries `schema_version`. `droppable`: see `table`."""
    if form == "json":
        print(dumps({"schema_version": 1, schema: [dict(row) for row in rows]}))
    elif form == "csv":
        writer = csv.DictWriter(sys.stdout, fieldnames=list(rows[0]) if rows else [])
        writer.writeheader()
        writer.writerows({name: _cell(value) for name, value in row.items()} for row in rows)
    else:
        table(rows, title=title, droppable=droppable)


def table(rows: Sequence[Mapping[str, Any]], *, title: str = "", droppable: Sequence[str] = ()) -> None:
    """Print rows as a table, numbers to the right; a narrow terminal goes without `droppable` columns, in order."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    sized = sys.stdout.isatty() or "COLUMNS" in os.environ
    console = Console(width=None if sized else 160, markup=False, highlight=False)
    grid = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    names = _fitting(rows, console.width, droppable)
    narrow = sum(_width(rows, name) + 2 for name in names) > console.width
    for place, name in enumerate(names):
        number = _numeric([row[name] for row in rows])
        width = min(NAME_WIDTH, _width(rows, name)) if narrow and not place else None
        grid.add_column(name, justify="right" if number else "left", no_wrap=number or bool(width), width=width)
    for row in rows:
        grid.add_row(*(text(row[name]) for name in names))
    if title:  # above the table and not of it, so that it may be wider; a Text, for its brackets are no markup
        console.print(Text(title, style="bold"), soft_wrap=True)
    console.print(grid)


def facts(named: Mapping[str, Any]) -> None:
    """Print one fact a line."""
    shown = {name: value for name, value in named.items() if value not in ([], None)}
    width = max(28, *map(len, shown))
    for name, value in shown.items():
        print(f"{name:{width}} {value:,}" if isinstance(value, int) else f"{name:{width}} {text(value)}")


def _fitting(rows: Sequence[Mapping[str, Any]], width: int, droppable: Sequence[str]) -> list[str]:
    """Names of the columns that fit side by side once enough of the droppable ones are left out."""
    names = list(rows[0]) if rows else []
    wide = {name: _width(rows, name) + 2 for name in names}
    wide |= {name: min(wide[name], NAME_WIDTH + 2) for name in names[:1]}
    for name in droppable:
        if name in names and sum(wide[each] for each in names) > width:
            names.remove(name)
    return names


def _width(rows: Sequence[Mapping[str, Any]], name: str) -> int:
    return max(len(name), *(len(text(row[name])) for row in rows))


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


def ends(low: float, high: float) -> str:
    """The two ends of an interval in one cell."""
    return f"{text(low)} – {text(high)}"


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

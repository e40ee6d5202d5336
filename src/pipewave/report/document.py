"""What a report holds, whatever it is written as."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Fact:
    """A number that matters, with what it is and how sure."""

    name: str
    value: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """The numbers first read."""

    facts: tuple[Fact, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under named columns; numbers are written by `number`, to the right."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Chart:
    """A drawing as SVG. What it shows is also in a table or a fact, for those who cannot see it."""

    title: str
    svg: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Code:
    """Text to copy."""

    title: str
    text: str


@dataclass(frozen=True, slots=True)
class Notes:
    """What a reader must know before relying on the numbers."""

    items: tuple[str, ...]


Block = Facts | Table | Chart | Code | Notes


@dataclass(frozen=True, slots=True)
class Document:
    """A whole report."""

    title: str
    subtitle: str
    blocks: tuple[Block, ...]


def number(value: Any) -> str:
    """A value as people read it: four significant digits, grouped thousands, nothing for what is absent."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: ""}[value]
    if isinstance(value, int):
        return f"{value:,}"
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"


def between(low: float, high: float, unit: str) -> str:
    """A 90 % interval in words."""
    return f"90 % between {number(low)} and {number(high)} {unit}"


def percent(share: float) -> str:
    """A share in per cent."""
    return f"{100 * share:.1f} %"


def ms(value: float) -> str:
    """Milliseconds, or seconds where they are many."""
    return f"{number(value / 1e3)} s" if value >= 1e4 else f"{number(float(value))} ms"


def words(name: str) -> str:
    """A field name as words."""
    return name.replace("_", " ")


def table_of(title: str, rows: Sequence[dict[str, Any]], columns: dict[str, str], note: str = "") -> Table:
    """Chosen fields of rows under readable names; columns that no row fills are left out."""
    kept = {field: name for field, name in columns.items() if any(row.get(field) not in (None, "") for row in rows)}
    return Table(title, tuple(kept.values()), tuple(tuple(row.get(field) for field in kept) for row in rows), note)

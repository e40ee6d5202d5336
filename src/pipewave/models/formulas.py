"""Parts of models as formulas over the fields of a config: rows of `data/model_parts.json`.

A formula is arithmetic in Python's words. A name in it is what the reader knows (`hidden`), else a term of the row or
of its section's `common` row, else a field of the config, of the type of the default that `fields` gives it (null: it
must be there), counts within `ranges`; fields in `outer` are those of the config around it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from itertools import pairwise
from typing import Any

from pipewave.files import packaged
from pipewave.files.formulas import Terms
from pipewave.models.config_fields import Fields

FILE = packaged.ROOT / "data" / "model_parts.json"
WIDEST = 1 << 20
FUNCTIONS: Mapping[str, Any] = {
    "max": max,
    "int": int,
    "len": len,
    "round": round,
    "number": lambda value: isinstance(value, (int, float)),
    "whole": lambda value: isinstance(value, int) and not isinstance(value, bool) and value > 0,
    "products": lambda values: sum(one * other for one, other in pairwise(values)),  # of neighbours
}


class Part(Terms):
    """The numbers of one part by name, each worked out when it is first asked for; `row` holds what else is said."""

    def __init__(self, section: str, kind: str, fields: Fields, outer: Fields | None = None, **known: Any) -> None:
        common, rows = _section(section)
        self.row: Mapping[str, Any] = rows.get(kind, {})
        self.fields, self.outer = fields, outer or Fields({})
        self.defaults: Mapping[str, Any] = {**common["fields"], **self.row.get("fields", {})}
        self.ranges: Mapping[str, Any] = {**common.get("ranges", {}), **self.row.get("ranges", {})}
        functions = dict(FUNCTIONS, given=self.given, raw=fields.get, inside=self.inside)
        functions |= {"has": fields.has, "optional": fields.optional, "positive": fields.number}
        super().__init__({**common["terms"], **self.row.get("terms", {})}, **functions, **known)

    def __missing__(self, name: str) -> Any:
        if name in self.formulas:
            return super().__missing__(name)
        around = self.row.get("outer", {})
        fields, default = (self.outer, around[name]) if name in around else (self.fields, self.defaults[name])
        self[name] = _read(fields, name, self.of(default), *self.ranges.get(name, ()))
        return self[name]

    def given(self, name: str) -> bool:
        """Whether the config states a field."""
        return self.fields.get(name) is not None

    def inside(self, section: str, name: str, default: Any) -> Any:
        """A field of a nested object, or the default."""
        return _read(Fields(self.fields.section(section)), name, default)


@cache
def _section(section: str) -> tuple[Mapping[str, Any], Mapping[str, Mapping[str, Any]]]:
    found = packaged.shared(FILE)[section]
    return found["common"], {kind: row for row in found["rows"] for kind in row["kinds"]}


def kinds(section: str) -> tuple[str, ...]:
    """The kinds that a section has rows of."""
    return tuple(_section(section)[1])


def _read(fields: Fields, name: str, default: Any, low: int = 1, high: int = WIDEST) -> Any:
    """A field of the type that its default has; counts in a range."""
    if isinstance(default, bool):
        return fields.flag(name, default)
    if isinstance(default, float):
        return fields.number(name) or default
    if isinstance(default, str):
        return fields.text(name, default)
    if isinstance(default, list):
        return fields.ints(name)
    return fields.integer(name, *([] if default is None else [default]), low=low, high=high)

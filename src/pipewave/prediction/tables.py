"""Calls from tables: a dict of arrays or a DataFrame, one row a call, scalars standing for every row.

A case of the contract is such a table of one row: where a field's value is itself a list, a flat list of numbers is it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeGuard, runtime_checkable

from pipewave.calls.families import Call, from_dict
from pipewave.errors import BadInput
from pipewave.prediction.arrays import TableBatch, uniform


@runtime_checkable
class Frame(Protocol):
    """What is needed of a DataFrame, pandas or polars alike."""

    @property
    def columns(self) -> Any:
        """Column names."""

    def __getitem__(self, name: Any) -> Any: ...


Table = Mapping[str, Any] | Frame
LISTS = ("q_lens", "kv_lens", "routing")  # fields whose value for one call may be a list


def batch(table: Table) -> TableBatch | None:
    """The table as arrays of one batch, where its rows differ in numbers only."""
    return uniform({name: table[name] for name in names_of(table)})


def calls(table: Table) -> list[Call]:
    """The calls of a table; columns are the fields of the contract, `kernel` among them.

    Raises BadInput when columns differ in length, and names the row of a bad value.
    """
    columns = {name: _one(name, values_of(table[name])) for name in names_of(table)}
    rows = _length(columns)
    return [_call(i, {name: _at(column, i) for name, column in columns.items()}) for i in range(rows)]


def is_table(given: Any) -> TypeGuard[Table]:
    """Whether something has columns by name."""
    return isinstance(given, Mapping) or (hasattr(given, "columns") and hasattr(given, "__getitem__"))


def names_of(table: Table) -> list[str]:
    """Names of the columns."""
    return list(table) if isinstance(table, Mapping) else [str(name) for name in table.columns]


def _call(row: int, case: dict[str, Any]) -> Call:
    try:
        return from_dict({name: value for name, value in case.items() if not _absent(value)})
    except BadInput as error:
        raise type(error)(f"row {row}: {error.message}", field=error.field) from error


def values_of(column: Any) -> Any:
    """A column as a list, or the scalar itself."""
    if isinstance(column, str) or not hasattr(column, "__len__"):
        return column
    return column.tolist() if hasattr(column, "tolist") else list(column)


def _one(name: str, column: Any) -> Any:
    """A list of numbers where lists are the values is one value, for every row: a tuple from here on."""
    flat = isinstance(column, list) and bool(column) and not any(hasattr(value, "__len__") for value in column)
    return tuple(column) if name in LISTS and flat else column


def _length(columns: Mapping[str, Any]) -> int:
    lengths = {name: len(column) for name, column in columns.items() if isinstance(column, list)}
    if len(set(lengths.values())) > 1:
        name, length = min(lengths.items(), key=lambda item: item[1])
        raise BadInput(f"column {name!r} has {length} rows, others have {max(lengths.values())}", field=name)
    return next(iter(lengths.values()), 1)


def _at(column: Any, row: int) -> Any:
    return column[row] if isinstance(column, list) else column


def _absent(value: Any) -> bool:
    return value is None or (isinstance(value, float) and value != value)

"""Calls from tables: a dict of arrays or a DataFrame, one row a call, scalars standing for every row.

Rows of one kernel under one context are answered as arrays: no object is made of a row. A case of the contract is
such a table of one row: where the value of a field is itself a list, a flat list of numbers is it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipewave.calls.families import Call, from_dict
from pipewave.calls.fields import Rule, rules
from pipewave.errors import BadInput, PipewaveError
from pipewave.kernels import family_of
from pipewave.kernels.base import Columns, Family
from pipewave.physics.demand import Array
from pipewave.prediction.columns import numeric_fields
from pipewave.prediction.threads import parts_of

CHUNK_ROWS = 8_192  # features of a chunk stay in the caches


LISTS = ("q_lens", "kv_lens", "routing")  # fields whose value for one call may be a list


def calls(table: Mapping[str, Any]) -> list[Call]:
    """The calls of a table; columns are the fields of the contract, `kernel` among them.

    Raises BadInput when columns differ in length, and names the row of a bad value.
    """
    columns = {name: _one(name, values_of(column)) for name, column in table.items()}
    lengths = {name: len(column) for name, column in columns.items() if isinstance(column, list)}
    if len(set(lengths.values())) > 1:
        name, length = min(lengths.items(), key=lambda item: item[1])
        raise BadInput(f"column {name!r} has {length} rows, others have {max(lengths.values())}", field=name)
    rows = range(next(iter(lengths.values()), 1))
    return [_call(i, {name: one[i] if name in lengths else one for name, one in columns.items()}) for i in rows]


def _call(row: int, case: Mapping[str, Any]) -> Call:
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


def _absent(value: Any) -> bool:
    return value is None or (isinstance(value, float) and value != value)


@dataclass(frozen=True, slots=True)
class TableBatch:
    """Rows of one family that differ in numbers only. `case`: the first row, for what they share."""

    family: Family
    case: Mapping[str, Any]
    columns: Mapping[str, Array]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def parts(self) -> Iterator[Columns]:
        """Columns of parts of the rows."""
        for first, last in parts_of(len(self), CHUNK_ROWS):
            yield {name: column[first:last] for name, column in self.columns.items()}


def uniform(named: Mapping[str, Any]) -> TableBatch | None:
    """The columns of a table as one batch, or None where rows must be looked at one by one: that is no verdict.

    A column is an array, a list or a scalar that stands for every row.
    """
    try:
        arrays = {name: _array(column) for name, column in named.items() if _is_column(column)}
        rows = {array.shape for array in arrays.values()}
        if len(rows) != 1 or (shape := rows.pop()) in ((0,), (1,)) or len(shape) != 1:
            return None
        first = {name: arrays[name].item(0) if name in arrays else given for name, given in named.items()}
        case = from_dict(first).to_dict()
    except (PipewaveError, ValueError):  # lists of different lengths, a bad first row
        return None
    family = family_of(case["kernel"])
    numbers = numeric_fields(family)
    if not _alike(family, {name: value for name, value in case.items() if name not in numbers}):
        return None
    if not all(_fits(rules(family.call).get(name), name in numbers, column) for name, column in arrays.items()):
        return None
    columns = {name: arrays.get(name, np.full(shape, case.get(name) or 0)).astype(np.float64) for name in numbers}
    return TableBatch(family, case, columns)


def _is_column(column: Any) -> bool:
    return not isinstance(column, str) and hasattr(column, "__len__")


def _array(column: Any) -> NDArray[Any]:
    """The column as it is: types that a list mixes are not made one (true is no 1)."""
    mixed = isinstance(column, (list, tuple)) and len(set(map(type, column))) > 1
    return np.asarray(column, dtype=object if mixed else None)


def _alike(family: Family, shared: Mapping[str, Any]) -> bool:
    """Whether what rows share settles their variant, and no field constrains another."""
    if family.ragged or "check" in family.call.__dict__:
        return False
    try:
        return family.variant is None or bool(family.variant(shared))
    except KeyError:  # it looks at a number
        return False


def _fits(rule: Rule | None, number: bool, column: NDArray[Any]) -> bool:
    """Whether a column of a number obeys its rule, or another one says the same in every row."""
    if not number or rule is None:
        return bool((column == column[0]).all())
    if column.dtype.kind not in ("iu" if rule.kind == "int" else "iuf"):
        return False
    return bool(rule.low <= column.min() and column.max() <= rule.high)

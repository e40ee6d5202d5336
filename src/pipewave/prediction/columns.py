"""Many calls as columns: calls that share a context are grouped and their numbers become arrays, one row a call.

A table is a dict of arrays, scalars standing for every row; no object is made of a row where rows differ in numbers
alone. A case of the contract is such a table of one row: where the value of a field is itself a list, a flat list of
numbers is it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipewave.calls.families import Call, from_dict
from pipewave.calls.fields import SHARED, FieldsOf, Rule, defaults, rules
from pipewave.errors import BadInput, PipewaveError
from pipewave.kernels import family_of
from pipewave.kernels.base import Columns, Family, Ragged
from pipewave.physics.demand import Array
from pipewave.prediction.threads import parts_of

CHUNK_ROWS = 8_192  # features of a chunk stay in the caches
LISTS = ("q_lens", "kv_lens", "routing")  # fields whose value for one call may be a list


@cache
def numeric_fields(family: Family) -> tuple[str, ...]:
    """Fields of the family that become plain columns."""
    others = {*family.options, *family.ragged, *SHARED}
    return tuple(name for name in rules(family.call) if name not in others)


def group_key(family: Family, case: Mapping[str, Any]) -> tuple[Any, ...]:
    """What calls must share to be analysed in one batch: type, software, options and the family's own variant."""
    shared = _shared(family)
    values = tuple(map(case.get, shared.names, shared.defaults))
    return (*values, family.variant(case)) if family.variant else values


def group_key_of(family: Family, call: Call, stack: str | None, impl: str | None) -> tuple[Any, ...]:
    """The same of a call; `stack` and `impl` where it names none."""
    key = _shared(family).of_call(call)
    if stack or impl or family.same:
        options = family.same(key[3:]) if family.same else key[3:]
        key = (key[0], key[1] or stack, key[2] or impl, *options)
    return (*key, family.variant(FieldsOf(call))) if family.variant else key


class Shared(NamedTuple):
    """The fields that calls of a batch share, their defaults, and what a call holds of them."""

    names: tuple[str, ...]
    defaults: tuple[Any, ...]
    of_call: Callable[[Call], tuple[Any, ...]]


@cache
def _shared(family: Family) -> Shared:
    default, names = defaults(family.call), (*SHARED, *family.options)
    return Shared(names, tuple(map(default.get, names)), attrgetter(*names))


def options_of(family: Family, key: Sequence[Any]) -> tuple[tuple[str, Any], ...]:
    """The options of a group key as pairs for `Context.options`."""
    names = (*family.options, "variant") if family.variant else family.options
    return tuple(zip(names, key[len(SHARED) :], strict=True))


def columns(family: Family, cases: Sequence[Mapping[str, Any]]) -> Columns:
    """Arrays over `cases`, which must be valid; absent or null numbers become 0, lists become Ragged."""
    default = defaults(family.call)
    numbers = {name: given(name, cases, default.get(name)) for name in numeric_fields(family)}
    return _arrays(numbers, {name: [case[name] for case in cases] for name in family.ragged})


def given(name: str, cases: Sequence[Mapping[str, Any]], default: Any = None) -> list[Any]:
    """What each case says of a field."""
    try:
        return list(map(itemgetter(name), cases))
    except KeyError:
        return [case.get(name, default) for case in cases]


def columns_of(family: Family, calls: Sequence[Call]) -> Columns:
    """The same over calls."""
    numbers = {name: list(map(attrgetter(name), calls)) for name in numeric_fields(family)}
    return _arrays(numbers, {name: list(map(attrgetter(name), calls)) for name in family.ragged})


def _arrays(numbers: Mapping[str, Sequence[Any]], lists: Mapping[str, Sequence[Sequence[int]]]) -> Columns:
    plain: dict[str, Any] = {name: _numbers(values) for name, values in numbers.items()}
    return plain | {name: ragged(rows) for name, rows in lists.items()}


def _numbers(values: Sequence[Any]) -> Array:
    found = np.array(values, dtype=np.float64)
    found[np.isnan(found)] = 0.0  # a null
    return found


def ragged(lists: Iterable[Sequence[int]]) -> Ragged:
    """Lists end to end with their offsets."""
    rows = list(lists)
    offsets = np.concatenate(([0], np.cumsum(list(map(len, rows)), dtype=np.intp)))
    values = np.fromiter(chain.from_iterable(rows), dtype=np.float64, count=int(offsets[-1]))
    return Ragged(values, offsets)


def calls_of(table: Mapping[str, Any]) -> list[Call]:
    """The calls of a table of the contract's fields. BadInput names the column that is short or the bad row."""
    named = {name: _one(name, values_of(column)) for name, column in table.items()}
    lengths = {name: len(column) for name, column in named.items() if isinstance(column, list)}
    if len(set(lengths.values())) > 1:
        name, length = min(lengths.items(), key=lambda item: item[1])
        raise BadInput(f"column {name!r} has {length} rows, others have {max(lengths.values())}", field=name)
    rows = range(next(iter(lengths.values()), 1))
    return [_call(i, {name: one[i] if name in lengths else one for name, one in named.items()}) for i in rows]


def _call(row: int, case: Mapping[str, Any]) -> Call:
    try:
        return from_dict({name: value for name, value in case.items() if not absent(value)})
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


def absent(value: Any) -> bool:
    """Whether a row of a column holds nothing: None, NaN, or the NA of pandas."""
    return value is None or (isinstance(value, float) and value != value) or type(value).__name__ == "NAType"


@dataclass(frozen=True, slots=True)
class TableBatch:
    """Rows of one family that differ in numbers only."""

    family: Family
    case: Mapping[str, Any]  # the first row, for what they share
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
        lists = {name: one for name, one in named.items() if not isinstance(one, str) and hasattr(one, "__len__")}
        arrays = {name: _array(column) for name, column in lists.items()}
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

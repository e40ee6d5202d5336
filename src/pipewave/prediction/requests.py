"""What is asked of `predict`, split by where it is asked for: lists and tables may name a GPU and a protocol a row.

As in the batch contract, what a row names comes before what the call of `predict` names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeGuard, runtime_checkable

import numpy as np

from pipewave.calls.families import CLASSES, ENVELOPE, Call, from_dict
from pipewave.calls.fields import rules
from pipewave.errors import BadInput, MissingField, PipewaveError, UnknownField, did_you_mean
from pipewave.gpus import GPU, find
from pipewave.prediction.columns import absent, values_of
from pipewave.software import stacks

USUAL_PROTOCOL = "cold"


@runtime_checkable
class Frame(Protocol):
    """What is needed of a DataFrame, pandas or polars alike."""

    @property
    def columns(self) -> Any:
        """Column names."""

    def __getitem__(self, name: Any) -> Any: ...


Table = Mapping[str, Any] | Frame


class Part(NamedTuple):
    """Rows asked for in one place: their numbers among all, and the calls or the columns that they are."""

    gpu: GPU
    protocol: str
    rows: Sequence[int] | slice
    calls: Sequence[Call] | Mapping[str, Any]


def where(gpu: Any, protocol: Any) -> tuple[GPU, str]:
    """A GPU and a protocol by name. Raises MissingField without a GPU, UnknownGPU, BadInput."""
    if gpu is None:
        raise MissingField("missing field 'gpu': name a GPU in the case, or one for all cases", field="gpu")
    return find(gpu), check_protocol(USUAL_PROTOCOL if protocol is None else protocol)


def check_protocol(protocol: Any) -> str:
    """The protocol itself, or BadInput."""
    if not isinstance(protocol, str) or protocol not in stacks.PROTOCOLS:
        known = ", ".join(stacks.PROTOCOLS)
        hint = did_you_mean(str(protocol), stacks.PROTOCOLS)
        raise BadInput(f"protocol = {protocol!r}: must be one of {known};{hint}".rstrip(";"), field="protocol")
    return protocol


def check_name(field: str, value: Any) -> None:
    """Raise BadInput unless a stack or an implementation is text or nothing."""
    if value is not None and (not isinstance(value, str) or not value):
        raise BadInput(f"{field} = {value!r}: must be a non-empty string", field=field)


def parts(rows: Sequence[Any] | Table, gpu: Any, protocol: Any) -> list[Part]:
    """Everything that is asked for, by place. Raises BadInput for what is neither a list of calls nor a table."""
    if is_table(rows):
        return list(_of_table(rows, gpu, protocol))
    if isinstance(rows, Sequence) and not isinstance(rows, str | bytes):
        return list(_of_list(rows, gpu, protocol))
    raise BadInput(
        f"calls = {rows!r:.80}: must be a call, a list of calls, a dict of columns or a DataFrame", field=None
    )


def _of_list(items: Sequence[Any], gpu: Any, protocol: Any) -> Iterator[Part]:
    if items and all(issubclass(each, Call) for each in set(map(type, items))):  # calls name no place
        yield Part(*where(gpu, protocol), slice(None), items)
        return
    places: dict[tuple[GPU, str], tuple[list[int], list[Call]]] = {}
    for i, item in enumerate(items):
        own = [item.get(name) if isinstance(item, Mapping) else None for name in ("gpu", "protocol")]
        place = where(gpu if own[0] is None else own[0], protocol if own[1] is None else own[1])
        rows, calls = places.setdefault(place, ([], []))
        rows.append(i)
        calls.append(_call(i, item))
    for place, (rows, calls) in places.items():
        yield Part(*place, rows, calls)


def _call(i: int, item: Any) -> Call:
    if isinstance(item, Call):
        return item
    if not isinstance(item, Mapping):
        raise BadInput(f"calls[{i}] = {item!r:.80}: must be a call or a dict of its fields", field=None)
    try:
        return from_dict(item)
    except PipewaveError as error:
        raise type(error)(f"calls[{i}]: {error.message}", field=error.field) from error


def _of_table(table: Table, gpu: Any, protocol: Any) -> Iterator[Part]:
    """One part where the table names one place, else one a place."""
    columns = {name: table[name] for name in fields_of(table) if name != "id"}
    gpus, protocols = (values_of(columns.pop(name, None)) for name in ("gpu", "protocol"))
    if not isinstance(gpus, list) and not isinstance(protocols, list):
        at = where(gpu if gpus is None else gpus, protocol if protocols is None else protocols)
        yield Part(*at, slice(None), columns)
        return
    size = max(len(named) for named in (gpus, protocols) if isinstance(named, list))
    places: dict[tuple[Any, Any], list[int]] = {}
    for i, key in enumerate(zip(_spread(gpus, gpu, size), _spread(protocols, protocol, size), strict=True)):
        places.setdefault(key, []).append(i)
    for key, rows in places.items():
        yield Part(*where(*key), rows, {name: _taken(column, rows) for name, column in columns.items()})


def _spread(named: Any, otherwise: Any, size: int) -> list[Any]:
    values = named if isinstance(named, list) else [named] * size
    if len(values) != size:
        raise BadInput(f"column 'gpu' or 'protocol' has {len(values)} rows, the other {size}", field="gpu")
    wrong = [value for value in values if not (absent(value) or isinstance(value, str | GPU))]
    if wrong:
        raise BadInput(f"column 'gpu' or 'protocol' holds {wrong[0]!r:.80}: must be a name", field="gpu")
    return [otherwise if absent(value) else value for value in values]


def _taken(column: Any, rows: Sequence[int]) -> Any:
    """Some rows of a column; a scalar stands for every row."""
    values = values_of(column)
    if not isinstance(values, list):
        return column
    return column[list(rows)] if isinstance(column, np.ndarray) else [values[i] for i in rows]


def is_table(given: Any) -> TypeGuard[Table]:
    """Whether something has columns by name."""
    return isinstance(given, Mapping) or (hasattr(given, "columns") and hasattr(given, "__getitem__"))


def _names_of(table: Table) -> list[str]:
    """Names of the columns."""
    return list(table) if isinstance(table, Mapping) else [str(name) for name in table.columns]


def fields_of(table: Table) -> list[str]:
    """Columns that are fields of the contract. A DataFrame may hold others, which are no misspelt fields.

    Raises UnknownField for a column of a dict that is no field, and for one of a DataFrame that looks like one.
    """
    names = _names_of(table)
    if isinstance(table, Mapping):
        return names
    known = {name for cls in CLASSES.values() for name in rules(cls)} | ENVELOPE
    for name in names:
        if name not in known and (hint := did_you_mean(name, known, 0.8)):
            raise UnknownField(f"unknown column {name!r};{hint}", field=name)
    return [name for name in names if name in known]


def carried(table: Any) -> dict[str, Any]:
    """Columns of a DataFrame that are no fields: they come back beside the answers."""
    if isinstance(table, Mapping) or not is_table(table):
        return {}
    mine = set(fields_of(table)) - {"id"}
    return {name: table[name] for name in _names_of(table) if name not in mine}

"""Many calls as columns: group calls that share a context, turn their numbers into arrays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipewave.calls.fields import defaults, rules
from pipewave.kernels.base import Columns, Family, Ragged

SHARED = ("dtype", "stack", "impl")  # fields that go to the context of every family


@cache
def numeric_fields(family: Family) -> tuple[str, ...]:
    """Fields of the family that become plain columns."""
    others = {*family.options, *family.ragged, *SHARED}
    return tuple(name for name in rules(family.call) if name not in others)


def group_key(family: Family, case: Mapping[str, Any]) -> tuple[Any, ...]:
    """What calls must share to be analysed in one batch: type, software, options and the family's own variant."""
    shared = [case.get(name, otherwise) for name, otherwise in _shared(family)]
    return (*shared, family.variant(case)) if family.variant else tuple(shared)


@cache
def _shared(family: Family) -> tuple[tuple[str, Any], ...]:
    """Names and defaults of the fields that calls of a batch share."""
    default = defaults(family.call)
    return tuple((name, default.get(name)) for name in (*SHARED, *family.options))


def options_of(family: Family, key: Sequence[Any]) -> tuple[tuple[str, Any], ...]:
    """The options of a group key as pairs for `Context.options`."""
    names = (*family.options, "variant") if family.variant else family.options
    return tuple(zip(names, key[len(SHARED) :], strict=True))


def columns(family: Family, cases: Sequence[Mapping[str, Any]]) -> Columns:
    """Arrays over `cases`, which must be valid; absent or null numbers become 0, lists become Ragged."""
    default = defaults(family.call)
    out: dict[str, Any] = {}
    for name in numeric_fields(family):
        otherwise = default.get(name)
        out[name] = np.array([case.get(name, otherwise) or 0 for case in cases], dtype=np.float64)
    for name in family.ragged:
        out[name] = ragged([case[name] for case in cases])
    return out


def ragged(lists: Iterable[Sequence[int]]) -> Ragged:
    """Lists end to end with their offsets."""
    rows = list(lists)
    offsets = np.concatenate(([0], np.cumsum([len(row) for row in rows])))
    values = np.fromiter(chain.from_iterable(rows), dtype=np.float64, count=int(offsets[-1]))
    return Ragged(values, offsets)


def taken(cols: Columns, rows: NDArray[np.intp]) -> dict[str, Any]:
    """The columns of some calls, by their numbers."""
    return {name: _taken(col, rows) if isinstance(col, Ragged) else col[rows] for name, col in cols.items()}


def _taken(col: Ragged, rows: NDArray[np.intp]) -> Ragged:
    lengths = col.lengths[rows]
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    within = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
    return Ragged(col.values[np.repeat(col.offsets[rows], lengths) + within], offsets)

"""Many calls as columns: group calls that share a context, turn their numbers into arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from itertools import chain
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

import numpy as np

from pipewave.calls.families import Call
from pipewave.calls.fields import SHARED, FieldsOf, defaults, rules
from pipewave.kernels.base import Columns, Family, Ragged
from pipewave.physics.demand import Array


@cache
def numeric_fields(family: Family) -> tuple[str, ...]:
    """Fields of the family that become plain columns."""
    others = {*family.options, *family.ragged, *SHARED}
    return tuple(name for name in rules(family.call) if name not in others)


def group_key(family: Family, case: Mapping[str, Any]) -> tuple[Any, ...]:
    """What calls must share to be analysed in one batch: type, software, options and the family's own variant."""
    shared = _shared(family)
    try:
        values = shared.of(case)
    except KeyError:  # a field that stands at its default
        values = shared.of({**shared.defaults, **case})
    return (*values, family.variant(case)) if family.variant else values


def group_key_of(family: Family, call: Call, stack: str | None, impl: str | None) -> tuple[Any, ...]:
    """The same of a call; `stack` and `impl` where it names none."""
    dtype, own_stack, own_impl, *options = _shared(family).of_call(call)
    key = (dtype, own_stack or stack, own_impl or impl, *(family.same(tuple(options)) if family.same else options))
    return (*key, family.variant(FieldsOf(call))) if family.variant else key


class Shared(NamedTuple):
    """The fields that calls of a batch share: of a case that names them all, of a call, and with their defaults."""

    of: Callable[[Mapping[str, Any]], tuple[Any, ...]]
    of_call: Callable[[Call], tuple[Any, ...]]
    defaults: Mapping[str, Any]


@cache
def _shared(family: Family) -> Shared:
    default, names = defaults(family.call), (*SHARED, *family.options)
    return Shared(itemgetter(*names), attrgetter(*names), {name: default.get(name) for name in names})


def options_of(family: Family, key: Sequence[Any]) -> tuple[tuple[str, Any], ...]:
    """The options of a group key as pairs for `Context.options`."""
    names = (*family.options, "variant") if family.variant else family.options
    return tuple(zip(names, key[len(SHARED) :], strict=True))


def columns(family: Family, cases: Sequence[Mapping[str, Any]]) -> Columns:
    """Arrays over `cases`, which must be valid; absent or null numbers become 0, lists become Ragged."""
    default = defaults(family.call)
    numbers = {name: [case.get(name, default.get(name)) for case in cases] for name in numeric_fields(family)}
    return _arrays(numbers, {name: [case[name] for case in cases] for name in family.ragged})


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

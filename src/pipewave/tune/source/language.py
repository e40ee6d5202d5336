"""Functions of the Triton language as far as they tell extents, addresses, bytes and FLOPs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pipewave.tune.source.traced import Traced, chosen, greatest, least, next_power_of_2
from pipewave.tune.source.values import Address, Tile, Unknown, broadcast, combined, elements, is_number, shape_of

NUMBERS: Mapping[str, Callable[..., Any]] = {
    "cdiv": lambda x, div: -(-x // div),
    "next_power_of_2": next_power_of_2, "minimum": least, "maximum": greatest, "min": least, "max": greatest,
    "abs": abs, "int": lambda x: x if isinstance(x, Traced) else int(x),
    "float": lambda x: x if isinstance(x, Traced) else float(x), "bool": bool,
    "exp2": lambda x: 2.0**x, "sqrt": lambda x: math.sqrt(x) if x >= 0 else math.nan, "log2": math.log2, "len": len,
}  # fmt: skip
SAME = frozenset(
    (
        "multiple_of",
        "max_contiguous",
        "max_constancy",
        "assume",
        "to",
        "cast",
        "broadcast_to_self",
        "flip",
        "sort",
        "softmax",
    )
)
REDUCTIONS = frozenset(("sum", "max", "min", "argmax", "argmin", "xor_sum", "reduce", "reduce_or"))
CARRIED = frozenset(("cumsum", "cumprod", "associative_scan"))


def extent(number: Any) -> Any:
    """A number as the extent of a tile, still traced where it is."""
    return number if isinstance(number, Traced) else int(number)


def arange(start: Any, end: Any) -> Any:
    """A row of consecutive numbers."""
    return Tile((extent(end - start),)) if is_number(start) and is_number(end) else Unknown("the extent of an arange")


def full(shape: Any, *_: Any, **__: Any) -> Any:
    """A tile filled with one value."""
    extents = shape if isinstance(shape, tuple | list) else (shape,)
    if all(map(is_number, extents)):
        return Tile(tuple(map(extent, extents)))
    return Unknown("the extent of a tile")


def dot(a: Any, b: Any) -> tuple[Any, float]:
    """The product of two tiles, and its FLOPs."""
    one, other = shape_of(a), shape_of(b)
    if one is None or other is None or len(one) < 2 or len(other) < 2:
        return Unknown("operands of a dot"), 0.0
    return Tile((*one[:-1], other[-1])), 2 * elements(one) * other[-1]


def reduced(value: Any, axis: Any) -> Any:
    """A tile without one axis; without any where none is named."""
    shape = shape_of(value)
    if shape is None:
        return value
    if not is_number(axis):
        return Tile(())
    at = int(axis) % max(len(shape), 1)
    return Tile(shape[:at] + shape[at + 1 :])


def expanded(value: Any, axis: int) -> Any:
    """A tile with one axis more, of extent 1."""
    shape = shape_of(value)
    if shape is None:
        return value
    at = axis % (len(shape) + 1)
    return _reshaped(value, (*shape[:at], 1, *shape[at:]))


def reshaped(value: Any, shape: Any) -> Any:
    """A tile of another extent."""
    extents = tuple(shape) if isinstance(shape, tuple | list) else (shape,)
    if all(map(is_number, extents)):
        return _reshaped(value, tuple(map(extent, extents)))
    return Unknown("the extent of a reshaped tile")


def transposed(value: Any, order: Any = None) -> Any:
    """A tile with its axes in another order, reversed where none is named."""
    shape = shape_of(value)
    if shape is None:
        return value
    if isinstance(order, tuple | list) and len(order) == len(shape):
        return _reshaped(value, tuple(shape[int(axis)] for axis in order))
    return _reshaped(value, tuple(reversed(shape)))


def _reshaped(value: Any, shape: tuple[int, ...]) -> Any:
    return Address(value.base, shape) if isinstance(value, Address) else Tile(shape)


def subscripted(value: Any, index: Any) -> Any:
    """`x[:, None]` of a tile, an entry of a tuple."""
    if isinstance(value, tuple | list):
        return value[int(index)] if is_number(index) and -len(value) <= index < len(value) else Unknown("an entry")
    shape = shape_of(value)
    if shape is None:
        return value
    wanted, rest, out = index if isinstance(index, tuple) else (index,), list(shape), []
    for part in wanted:
        if part is None:
            out.append(1)
        elif rest:
            out.append(rest.pop(0))
    return _reshaped(value, (*out, *rest))


def block(base: Any, block_shape: Any) -> Any:
    """What a block pointer or a tensor descriptor stands for: a tile of addresses."""
    extents = tuple(block_shape) if isinstance(block_shape, tuple | list) else ()
    if isinstance(base, Address) and extents and all(map(is_number, extents)):
        return Address(base.base, tuple(map(extent, extents)))
    return Unknown("a block pointer")


def number(name: str, values: Sequence[Any]) -> Any:
    """A function of numbers; element-wise on tiles."""
    if values and all(is_number(value) for value in values):
        try:
            return NUMBERS[name](*values)
        except (ArithmeticError, ValueError, TypeError) as problem:
            return Unknown(f"{name}: {problem}")
    return combined(*values)


def where(condition: Any, yes: Any, no: Any) -> Any:
    """One of two values."""
    if isinstance(condition, Traced) and is_number(yes) and is_number(no):
        return chosen(condition, yes, no)
    if is_number(condition):
        return yes if condition else no
    known = shape_of(yes), shape_of(no), shape_of(condition)
    shape: tuple[int, ...] = ()
    for each in known:
        shape = broadcast(shape, each or ())
    return Tile(shape) if shape else Unknown("a choice between values")

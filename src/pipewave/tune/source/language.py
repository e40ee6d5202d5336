"""What names stand for while a kernel's source is read for one block, and the functions of the Triton language on them.

Plain Python numbers, strings, tuples and lists stand for themselves. Functions are followed as far as they tell
extents, addresses, bytes and FLOPs.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import takewhile
from pathlib import Path
from typing import Any

from pipewave.files import packaged
from pipewave.tune.source.traced import Traced, cdiv, chosen, greatest, least, next_power_of_2, same

Shape = tuple[int, ...]
NUMBERS: Mapping[str, Callable[..., Any]] = {
    "cdiv": cdiv, "next_power_of_2": next_power_of_2,
    "minimum": least, "maximum": greatest, "min": least, "max": greatest,
    "abs": abs, "int": lambda x: x if isinstance(x, Traced) else int(x),
    "float": lambda x: x if isinstance(x, Traced) else float(x), "bool": bool,
    "exp2": lambda x: 2.0**x, "sqrt": lambda x: math.sqrt(x) if x >= 0 else math.nan, "log2": math.log2,
}  # fmt: skip
FUNCTIONS = packaged.document(Path(__file__).with_name("language.json"))
SAME, REDUCTIONS, AXIS = frozenset(FUNCTIONS["same"]), frozenset(FUNCTIONS["reductions"]), ["axis"]
PARAMETERS: Mapping[str, list[str]] = FUNCTIONS["parameters"] | {name: ["input", "axis"] for name in REDUCTIONS}


@dataclass(frozen=True, slots=True)
class Tile:
    """A block of values of known extent whose contents nobody knows."""

    shape: Shape


@dataclass(frozen=True, slots=True)
class Address:
    """One address, or a tile of them, into the tensor that argument `base` points to."""

    base: str
    shape: Shape = ()


@dataclass(frozen=True, slots=True)
class Unknown:
    """A value that the source alone does not tell, and why: it was loaded, or computed in a way not followed."""

    why: str


@dataclass(frozen=True, slots=True)
class Tensor:
    """A pointer argument as the launch gave it: elements and bytes of each; elements are None where it does not say."""

    elements: int | None
    element_bytes: int


def is_known(value: Any) -> bool:
    """Whether a value is known."""
    return isinstance(value, int | float | bool | Traced)


def shape_of(value: Any) -> Shape | None:
    """Extent of a value: () for one number, None where it is unknown."""
    return value.shape if isinstance(value, Tile | Address) else () if is_known(value) else None


def broadcast(one: Shape, other: Shape) -> Shape:
    """The common extent of two tiles; where extents clash the larger counts: such a source does not compile."""
    width = max(len(one), len(other))
    padded = [(1,) * (width - len(shape)) + shape for shape in (one, other)]
    return tuple(a if same(b, 1) else b if same(a, 1) else greatest(a, b) for a, b in zip(*padded, strict=True))


def combined(*values: Any) -> Any:
    """What element-wise work on these makes: a tile of their common extent, addresses where one is a pointer."""
    unknown = [value for value in values if isinstance(value, Unknown)]
    shape: Shape = reduce(broadcast, (shape_of(value) or () for value in values), ())
    bases = [value.base for value in values if isinstance(value, Address)]
    if bases:
        return Address(bases[0], shape)
    return unknown[0] if unknown and not shape else Tile(shape)


def elements(shape: Shape) -> int:
    """Entries of a tile."""
    return math.prod(shape)


@dataclass(slots=True)
class Counts:
    """What one block does. `loops`: turns of each loop by line; `trips`: turns of innermost loops, all together."""

    read: dict[str, Any] = field(default_factory=dict)  # bytes by argument
    written: dict[str, Any] = field(default_factory=dict)
    flops: Any = 0
    trips: Any = 0
    loops: dict[int, float] = field(default_factory=dict)
    spans: dict[int, Any] = field(default_factory=dict)  # from the start to the end of a loop, by line
    unknown: dict[str, int] = field(default_factory=dict)  # why → line
    numbers: dict[str, int] = field(default_factory=dict)  # how many single numbers are loaded from an argument


@dataclass(slots=True)
class Block:
    """Where a block stands: its program ids and the grid; `functions` gives the source of a kernel function by name."""

    ids: tuple[Any, ...]
    grid: tuple[Any, ...]
    tensors: Mapping[str, Tensor]
    functions: Callable[[str], tuple[ast.FunctionDef, Mapping[str, Any]] | None]
    constants: Mapping[str, Any]
    counts: Counts = field(default_factory=Counts)
    weight: Any = 1
    depth: int = 0
    taken_for: Mapping[str, Sequence[Any]] = field(default_factory=dict)  # numbers loaded from an argument

    def moved(self, into: dict[str, float], address: Address) -> None:
        """Count the bytes of a tile of addresses that is read or written."""
        tensor = self.tensors.get(address.base)
        size = elements(address.shape) * (tensor.element_bytes if tensor else 2)
        into[address.base] = into.get(address.base, 0) + self.weight * size

    def looped(self, line: int, turns: Any) -> None:
        """Count the turns of a loop."""
        self.counts.loops[line] = self.counts.loops.get(line, 0) + self.weight * turns

    def number(self, base: str) -> Any:
        """A number that is loaded, as far as the reading assumes it."""
        before, known = self.counts.numbers.get(base, 0), self.taken_for.get(base, ())
        self.counts.numbers[base] = before + 1
        return known[before] if before < len(known) else Unknown(f"a value loaded from {base}")

    def tell(self, why: str, line: int) -> None:
        """Note what the source does not tell."""
        self.counts.unknown.setdefault(why, line)


def _tile(extents: Any, what: str, base: str | None = None) -> Any:
    """A tile of these extents, still traced where they are; of addresses where there is a base."""
    shape = extents if isinstance(extents, tuple | list) else (extents,)
    if not all(map(is_known, shape)):
        return Unknown(f"the extent of {what}")
    whole: tuple[Any, ...] = tuple(one if isinstance(one, Traced) else int(one) for one in shape)
    return Tile(whole) if base is None else Address(base, whole)


def _reshaped(value: Any, shape: tuple[Any, ...]) -> Any:
    return Address(value.base, shape) if isinstance(value, Address) else Tile(shape)


def transposed(value: Any, order: Any = None) -> Any:
    """A tile with its axes in another order, reversed where none is named."""
    shape = shape_of(value)
    if shape is None:
        return value
    if isinstance(order, tuple | list) and len(order) == len(shape):
        return _reshaped(value, tuple(shape[int(axis)] for axis in order))
    return _reshaped(value, tuple(reversed(shape)))


def subscripted(value: Any, index: Any) -> Any:
    """`x[:, None]` of a tile, an entry of a tuple."""
    if isinstance(value, tuple | list):
        return value[int(index)] if is_known(index) and -len(value) <= index < len(value) else Unknown("an entry")
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


def _reduced(value: Any, axis: Any) -> Any:
    """A tile without one axis; without any where none is named."""
    shape = shape_of(value)
    if shape is None:
        return value
    if not is_known(axis):
        return Tile(())
    at = int(axis) % max(len(shape), 1)
    return Tile(shape[:at] + shape[at + 1 :])


def _number(name: str, values: Sequence[Any]) -> Any:
    """A function of numbers; element-wise on tiles."""
    if values and all(map(is_known, values)):
        try:
            return NUMBERS[name](*values)
        except (ArithmeticError, ValueError, TypeError) as problem:
            return Unknown(f"{name}: {problem}")
    return combined(*values)


class LanguageCalls:
    """One method a function that counts something or whose extent is not that of its operands."""

    block: Block

    def _language(self, name: str, given: list[Any], named: dict[str, Any], line: int) -> Any:
        """A function of the language."""
        needed = PARAMETERS.get(name, [])
        placed = [*given, *(named[each] for each in takewhile(named.__contains__, needed[len(given) :]))]
        if handler := getattr(self, f"_call_{name}", None):
            enough = len(placed) >= len(needed) or needed == AXIS
            return handler(placed) if enough else Unknown(f"operands of a {name}")
        values = [*given, *named.values()]
        first = (placed or values or [Unknown(name)])[0]
        if name in NUMBERS and not (name in REDUCTIONS and isinstance(first, Tile)):
            return _number(name, values)
        if name in REDUCTIONS:
            return _reduced(first, placed[1] if len(placed) > 1 else None)
        if name in SAME:
            return first
        if any(isinstance(value, Tile | Address) for value in given or values):
            return combined(*(given or values))
        return Unknown(f"the function {name} (line {line})")

    def _call_program_id(self, given: list[Any]) -> Any:
        axis = int(given[-1]) if given else 0
        return self.block.ids[axis] if axis < len(self.block.ids) else 0

    def _call_num_programs(self, given: list[Any]) -> Any:
        axis = int(given[-1]) if given else 0
        return self.block.grid[axis] if axis < len(self.block.grid) else 1

    def _call_arange(self, given: list[Any]) -> Any:
        known = all(map(is_known, given[-2:]))
        return _tile(given[-1] - given[-2], "an arange") if known else Unknown("the extent of an arange")

    def _call_zeros(self, given: list[Any]) -> Any:
        return _tile(given[0], "a tile")

    _call_full = _call_zeros

    def _call_zeros_like(self, given: list[Any]) -> Any:
        return combined(given[0])

    def _call_where(self, given: list[Any]) -> Any:
        condition, yes, no = given[-3:]
        if isinstance(condition, Traced) and is_known(yes) and is_known(no):
            return chosen(condition, yes, no)
        if is_known(condition):
            return yes if condition else no
        tile = combined(*(Tile(shape_of(each) or ()) for each in (yes, no, condition)))
        return tile if tile.shape else Unknown("a choice between values")

    def _call_dot(self, given: list[Any]) -> Any:
        one, other = map(shape_of, given[:2])
        if one is None or other is None or len(one) < 2 or len(other) < 2:
            return Unknown("operands of a dot")
        self.block.counts.flops += self.block.weight * (2 * elements(one) * other[-1])
        return Tile((*one[:-1], other[-1]))

    def _call_dot_scaled(self, given: list[Any]) -> Any:
        return self._call_dot([given[0], given[3]])

    def _call_trans(self, given: list[Any]) -> Any:
        rest = given[1:]
        return transposed(given[0], rest[0] if len(rest) == 1 else rest or None)

    _call_permute = _call_trans

    def _call_expand_dims(self, given: list[Any]) -> Any:
        shape = shape_of(given[0])
        if shape is None:
            return given[0]
        at = int(given[-1]) % (len(shape) + 1)
        return _reshaped(given[0], (*shape[:at], 1, *shape[at:]))

    def _call_reshape(self, given: list[Any]) -> Any:
        base = given[0].base if isinstance(given[0], Address) else None
        return _tile(given[1] if len(given) == 2 else tuple(given[1:]), "a reshaped tile", base)

    _call_view = _call_broadcast_to = _call_reshape

    def _call_make_block_ptr(self, given: list[Any], place: int = 4) -> Any:
        base, extents = given[0], given[place]
        if not isinstance(base, Address) or not isinstance(extents, tuple | list) or not extents:
            return Unknown("a block pointer")
        return _tile(extents, "a block pointer", base.base)

    def _call_make_tensor_descriptor(self, given: list[Any]) -> Any:
        return self._call_make_block_ptr(given, 3)

    def _call_load(self, given: list[Any]) -> Any:
        address = given[0]
        if not isinstance(address, Address):
            self.block.tell("an address that is not followed", 0)
            return Unknown("a value loaded from an unknown address")
        self.block.moved(self.block.counts.read, address)
        return Tile(address.shape) if address.shape else self.block.number(address.base)

    def _call_store(self, given: list[Any]) -> Any:
        if isinstance(address := given[0], Address):
            value = shape_of(given[-1])
            wide = address if address.shape or not value else Address(address.base, value)
            self.block.moved(self.block.counts.written, wide)

    def _call_atomic_add(self, given: list[Any]) -> Any:
        self._call_store(given[:2])
        return self._call_load(given[:1])

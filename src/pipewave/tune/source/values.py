"""What a name stands for while a kernel's source is read for one block, and what is counted of that block.

Plain Python numbers, strings, tuples and lists stand for themselves.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pipewave.tune.source.traced import Traced, greatest, same

Shape = tuple[int, ...]


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


def is_number(value: Any) -> bool:
    """Whether a value is known."""
    return isinstance(value, int | float | bool | Traced)


def shape_of(value: Any) -> Shape | None:
    """Extent of a value: () for one number, None where it is unknown."""
    if isinstance(value, Tile | Address):
        return value.shape
    return () if is_number(value) else None


def broadcast(one: Shape, other: Shape) -> Shape:
    """The common extent of two tiles; where extents clash the larger counts: such a source does not compile."""
    width = max(len(one), len(other))
    padded = [(1,) * (width - len(shape)) + shape for shape in (one, other)]
    return tuple(a if same(b, 1) else b if same(a, 1) else greatest(a, b) for a, b in zip(*padded, strict=True))


def combined(*values: Any) -> Any:
    """What element-wise work on these makes: a tile of their common extent, addresses where one is a pointer."""
    unknown = [value for value in values if isinstance(value, Unknown)]
    shape: Shape = ()
    for value in values:
        shape = broadcast(shape, shape_of(value) or ())
    bases = [value.base for value in values if isinstance(value, Address)]
    if bases:
        return Address(bases[0], shape)
    if unknown and not shape:
        return unknown[0]
    return Tile(shape)


def elements(shape: Shape) -> int:
    """Entries of a tile."""
    count = 1
    for extent in shape:
        count *= extent
    return count


@dataclass(slots=True)
class Counts:
    """What one block does. `loops`: turns of each loop by line; `trips`: turns of innermost loops, all together."""

    read: dict[str, float] = field(default_factory=dict)  # bytes by argument
    written: dict[str, float] = field(default_factory=dict)
    flops: Any = 0
    trips: Any = 0
    loops: dict[int, float] = field(default_factory=dict)
    unknown: dict[str, int] = field(default_factory=dict)  # why → line


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

    def moved(self, into: dict[str, float], address: Address) -> None:
        """Count the bytes of a tile of addresses that is read or written."""
        tensor = self.tensors.get(address.base)
        size = elements(address.shape) * (tensor.element_bytes if tensor else 2)
        into[address.base] = into.get(address.base, 0) + self.weight * size

    def looped(self, line: int, turns: Any) -> None:
        """Count the turns of a loop."""
        self.counts.loops[line] = self.counts.loops.get(line, 0) + self.weight * turns

    def tell(self, why: str, line: int) -> None:
        """Note what the source does not tell."""
        self.counts.unknown.setdefault(why, line)

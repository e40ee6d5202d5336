"""Where a block of a launch stands, and what is counted of it."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pipewave.tune.source.values import Address, Tensor, elements


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

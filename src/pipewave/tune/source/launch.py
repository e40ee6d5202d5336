"""A launch of any Triton kernel as counts: blocks, loop trips, bytes and FLOPs, from source, arguments and grid.

Blocks are read one by one (`interpreter`) for a sample of program ids, so that what differs between blocks, the rows of
a causal mask or the tail of a persistent loop, comes out as a mean and a longest.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from pipewave.errors import BadInput
from pipewave.tune.source.expressions import name_of
from pipewave.tune.source.interpreter import Reader, bound
from pipewave.tune.source.traced import Traced
from pipewave.tune.source.values import Address, Block, Counts, Tensor, Unknown

MOST_BLOCKS = 40  # read of a launch; more where fewer would not end at the last
Grid = Sequence[int] | Callable[[Mapping[str, Any]], Sequence[int]]


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch. `trips`, `flops`, bytes are of the mean block; `longest` is the most trips of one block.

    `moved`: bytes that all blocks ask for together; `least`: bytes of the tensors they touch, each once, None where an
    argument does not say its size. `loops`: mean turns by line. `unknown`: what the source does not tell, and where.
    """

    blocks: int
    trips: float
    longest: float
    read_bytes: float
    written_bytes: float
    flops: float
    least: float | None
    loops: Mapping[int, float]
    unknown: Mapping[str, int]

    @property
    def moved(self) -> float:
        """Bytes that all blocks ask for."""
        return self.blocks * (self.read_bytes + self.written_bytes)


def count(kernel: Any, grid: Grid, arguments: Mapping[str, Any], config: Mapping[str, Any]) -> Launch:
    """Count a launch of `kernel` (a `triton.jit` function) with its arguments by name, under one configuration.

    `grid` is what stands in brackets at the launch. Raises BadInput where the source cannot be read or the grid is no
    grid.
    """
    given = {**arguments, **config}
    size = _grid(grid, given)
    code, constants = source(kernel)
    tensors = {name: tensor for name, value in given.items() if (tensor := tensor_of(value)) is not None}
    names = bound(code, (), {name: seen(name, value) for name, value in given.items()})
    read = [reading_of(code, constants, names, tensors, ids, size) for ids in _sample(size)]
    return _launch(read, int(np.prod(size)), tensors)


def _grid(grid: Grid, given: Mapping[str, Any]) -> tuple[int, ...]:
    found = grid(given) if callable(grid) else grid
    size = tuple(int(extent) for extent in (found if isinstance(found, Sequence) else (found,)))
    if not 1 <= len(size) <= 3 or min(size) < 0:
        raise BadInput(f"grid = {size}: must be one to three numbers of blocks", field="grid")
    return size


@lru_cache(maxsize=512)
def source(kernel: Any) -> tuple[ast.FunctionDef, Mapping[str, Any]]:
    """Syntax tree and global names of a kernel function. BadInput where it has no source."""
    function = getattr(kernel, "fn", kernel)
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError) as problem:
        raise BadInput(f"{getattr(kernel, '__name__', kernel)!r}: its source cannot be read ({problem})",
                       field="kernel") from problem  # fmt: skip
    found = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    if not found:
        raise BadInput(f"{getattr(kernel, '__name__', kernel)!r} is no function", field="kernel")
    return found[0], _globals(function)


def _globals(function: Any) -> Mapping[str, Any]:
    closed = inspect.getclosurevars(function).nonlocals if getattr(function, "__closure__", None) else {}
    return {**getattr(function, "__globals__", {}), **closed}


def reading_of(
    code: ast.FunctionDef, constants: Mapping[str, Any], names: Mapping[str, Any],
    tensors: Mapping[str, Tensor], ids: tuple[Any, ...], grid: tuple[Any, ...],
) -> Counts:  # fmt: skip
    """Counts of the block at one place of the grid."""

    def functions(name: str) -> tuple[ast.FunctionDef, Mapping[str, Any]] | None:
        return _function(name, block.constants)

    block = Block(ids, grid, tensors, functions, constants)
    Reader(block, dict(names)).run(code.body)
    return block.counts


def _function(name: str, constants: Mapping[str, Any]) -> tuple[ast.FunctionDef, Mapping[str, Any]] | None:
    found = _named(name, constants)
    return None if found is None else source(found)


def called_of(node: ast.Call, constants: Mapping[str, Any]) -> Any:
    """The kernel function that a call names, None for functions of the language and of Python."""
    return _named(name_of(node.func), constants)


def _named(name: str, constants: Mapping[str, Any]) -> Any:
    first, *rest = name.split(".")
    found: Any = constants.get(first)
    for part in rest:
        found = getattr(found, part, None)
    is_kernel = hasattr(found, "fn") and callable(getattr(found, "fn", None)) and not _is_language(found)
    return found if is_kernel else None


def _is_language(function: Any) -> bool:
    module = getattr(getattr(function, "fn", function), "__module__", "") or ""
    return module.startswith("triton.")


def seen(name: str, value: Any) -> Any:
    """An argument as the source sees it."""
    if hasattr(value, "block_shape") and hasattr(value, "base"):
        return Address(name, tuple(int(extent) for extent in value.block_shape))
    if tensor_of(value) is not None:
        return Address(name)
    plain = isinstance(value, int | float | bool | str | tuple | list | Traced) or value is None
    return value if plain else Unknown(f"the argument {name}")


def tensor_of(value: Any) -> Tensor | None:
    """Extent of a tensor argument, of a descriptor's tensor, or None for anything else."""
    value = getattr(value, "base", value) if hasattr(value, "block_shape") else value
    if not (hasattr(value, "data_ptr") and hasattr(value, "element_size")):
        return None
    elements = int(value.numel()) if hasattr(value, "numel") else None
    return Tensor(elements, int(value.element_size()))


def _sample(grid: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Program ids spread over the grid, first and last among them; fixed, so that counts repeat."""
    total = int(np.prod(grid))
    if total <= MOST_BLOCKS:
        numbers = np.arange(total)
    else:
        inner = np.random.default_rng(0).integers(1, total - 1, MOST_BLOCKS - 2)
        numbers = np.concatenate(([0, total - 1], inner))
    axes = [numbers // int(np.prod(grid[:at])) % size for at, size in enumerate(grid)]
    return [tuple(int(axis[i]) for axis in axes) for i in range(len(numbers))]


def _launch(read: Sequence[Counts], blocks: int, tensors: Mapping[str, Tensor]) -> Launch:
    if not read:
        return Launch(0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, {}, {})
    lines = {line for counts in read for line in counts.loops}
    unknown = {why: line for counts in read for why, line in counts.unknown.items()}
    trips = [float(counts.trips) for counts in read]
    return Launch(
        blocks=blocks,
        trips=float(np.mean(trips)),
        longest=float(max(trips)),
        read_bytes=float(np.mean([sum(counts.read.values()) for counts in read])),
        written_bytes=float(np.mean([sum(counts.written.values()) for counts in read])),
        flops=float(np.mean([counts.flops for counts in read])),
        least=_least(read, blocks, tensors),
        loops={line: float(np.mean([counts.loops.get(line, 0.0) for counts in read])) for line in sorted(lines)},
        unknown=unknown,
    )


def _least(read: Sequence[Counts], blocks: int, tensors: Mapping[str, Tensor]) -> float | None:
    """Bytes of each tensor that is touched, no more than the blocks ask of it."""
    total = 0.0
    for into in ("read", "written"):
        for name in {name for counts in read for name in getattr(counts, into)}:
            tensor = tensors.get(name)
            if tensor is None or tensor.elements is None:
                return None
            asked = blocks * float(np.mean([getattr(counts, into).get(name, 0.0) for counts in read]))
            total += min(asked, float(tensor.elements * tensor.element_bytes))
    return total

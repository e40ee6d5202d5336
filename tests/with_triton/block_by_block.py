"""A launch counted block by block, numbers as they are: what formulas over all sizes are held against."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipewave.errors import BadInput
from pipewave.tune.source.interpreter import bound
from pipewave.tune.source.language import Counts, Tensor
from pipewave.tune.source.launch_work import reading_of, seen, source, tensor_of

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

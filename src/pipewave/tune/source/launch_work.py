"""What a launch does, read for one block that stands for all: turns of its loops, bytes and FLOPs, as traced numbers.

Three blocks are read where blocks take other turns. Loops over lengths that lie on the device (a cache of requests) end
when all blocks together have read the largest tensor once.
"""

from __future__ import annotations

import ast
import inspect
import math
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import chain
from types import MappingProxyType
from typing import Any

from pipewave.errors import BadInput
from pipewave.tune.source.grid_dependence import SHARES, GridDependence
from pipewave.tune.source.interpreter import BOUNDS, Reader, bound
from pipewave.tune.source.language import Address, Block, Counts, Tensor, Unknown
from pipewave.tune.source.traced import Trace, Traced, greatest, least, plain

PLACE = "place:"  # a block's program id: stands for all blocks, so that it is no input of a launch
LONG = 2**20  # a length whose tiles and parts are all full
ORDERS = 1, -1  # in which two loaded numbers are a start and an end
EVEN = 0.9  # of the first block's bytes, for all blocks to share a length
# Of a block: turns by ("loop", line), bytes by ("read" or "written", argument), and ("all", what is added up).
Work = dict[tuple[str, Any], Any]
TakenFor = Mapping[str, Sequence[Any]]  # numbers that are loaded, by argument, in order


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
    closed = inspect.getclosurevars(function).nonlocals if getattr(function, "__closure__", None) else {}
    return found[0], {**getattr(function, "__globals__", {}), **closed}


def kernel_function(name: str, constants: Mapping[str, Any]) -> Any:
    """The kernel function of a dotted name, None for functions of the language and of Python."""
    first, *rest = name.split(".")
    found: Any = constants.get(first)
    for part in rest:
        found = getattr(found, part, None)
    function = getattr(found, "fn", None)
    is_language = (getattr(function, "__module__", "") or "").startswith("triton.")
    return found if callable(function) and not is_language else None


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


def reading_of(
    code: ast.FunctionDef, constants: Mapping[str, Any], names: Mapping[str, Any],
    tensors: Mapping[str, Tensor], ids: tuple[Any, ...], grid: tuple[Any, ...],
    taken_for: TakenFor = MappingProxyType({}),
) -> Counts:  # fmt: skip
    """Counts of the block at one place of the grid. `taken_for`: what single numbers are that are loaded."""

    def functions(name: str) -> tuple[ast.FunctionDef, Mapping[str, Any]] | None:
        found = kernel_function(name, block.constants)
        return None if found is None else source(found)

    block = Block(ids, grid, tensors, functions, constants, taken_for=taken_for)
    Reader(block, dict(names)).run(code.body)
    return block.counts


@dataclass(frozen=True, slots=True)
class LaunchReader:
    """A launch whose blocks are read: its source, what names stand for at the start, its tensors and its grid."""

    code: ast.FunctionDef
    constants: Mapping[str, Any]
    start: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    size: tuple[Any, ...]
    trace: Trace

    @classmethod
    def of(cls, kernel: Any, given: Mapping[str, Any], tensors: Mapping[str, Tensor], size: tuple[Any, ...],
           trace: Trace) -> LaunchReader:  # fmt: skip
        """Of a kernel function and its arguments by name."""
        code, constants = source(kernel)
        start = bound(code, (), {name: seen(name, value) for name, value in given.items()})
        return cls(code, constants, start, tensors, size, trace)

    @property
    def whole(self) -> dict[str, Any]:
        """Bytes of each tensor whose extent is known."""
        return {name: each.elements * each.element_bytes for name, each in self.tensors.items()
                if each.elements is not None}  # fmt: skip

    def block(self, ids: tuple[Any, ...], taken_for: TakenFor = MappingProxyType({})) -> Counts:
        """Counts of the block at a place, as `reading_of` has them."""
        return reading_of(self.code, self.constants, self.start, self.tensors, ids, self.size, taken_for)

    def corner(self, which: int) -> tuple[Any, ...]:
        """The first, middle or last place on every axis."""
        return tuple((0, extent // 2, extent - 1)[which] for extent in self.size)

    def _ids(self) -> tuple[Traced, ...]:
        """The place of a block in the middle, which stands for all."""
        return tuple(self.trace.symbol(f"{PLACE}{axis}", plain(extent) // 2) for axis, extent in enumerate(self.size))

    def outputs(self) -> tuple[list[Any], dict[int, Any], dict[str, int]]:
        """`formula.OUTPUTS` of the launch, turns of its loops by line, and what is unknown."""
        read, places = self._standing_for_all()
        unknown = {why: line for each in read for why, line in each.unknown.items()}
        size, work = self.size, self._mean(read, places)
        lines = {line for why, line in unknown.items() if why.startswith(BOUNDS)}
        if len(lines) == 1:
            size, work = self._by_length(read[0], lines.pop()) or (size, work)
        blocks = math.prod(size)
        asked = [(name, blocks * value) for (into, name), value in work.items() if into in ("read", "written")]
        moved, whole = sum(value for _, value in asked), self.whole
        least_bytes = sum(least(value, whole[name]) if name in whole else value for name, value in asked)
        trips, longest, flops = (work["all", name] for name in ("trips", "longest", "flops"))
        loops = {line: turns for (into, line), turns in work.items() if into == "loop"}
        return [blocks, trips, longest, least_bytes, moved, blocks * flops], loops, unknown

    def _standing_for_all(self) -> tuple[list[Counts], GridDependence]:
        """Counts of a block in the middle of the grid, of its first, middle and last ones where they take other turns;
        and how counts depend on a block's place.
        """
        ids = self._ids()
        read = [self.block(ids)]
        extents = {one.terms[0][0]: extent for one, extent in zip(ids, self.size, strict=True)}
        places = GridDependence(self.trace, extents)
        if any(places.depends(node) for node, _ in self.trace.guards):
            read = [self.block(self.corner(which)) for which in range(3)]
            self.trace.guards = {guard: None for guard in self.trace.guards if not places.depends(guard[0])}
        return read, places

    def _mean(self, read: Sequence[Counts], places: GridDependence) -> Work:
        """What a block does in the mean."""
        every = [_work(each) for each in read]
        names = list(dict.fromkeys(name for each in every for name in each))
        values = [[each.get(name, 0) for name in names] for each in every]
        if len(read) == 1:
            mean, most = places.averaged(values[0])
        else:
            mean = [sum(share * value for share, value in zip(SHARES, those, strict=True))
                    for those in zip(*values, strict=True)]  # fmt: skip
            most = [greatest(*those) for those in zip(*values, strict=True)]
        longest = most[names.index(("all", "trips"))]
        return {**dict(zip(names, mean, strict=True)), ("all", "longest"): longest}

    def _by_length(self, once: Counts, line: int) -> tuple[tuple[Any, ...], Work] | None:
        """The grid of blocks that work, and the work of each, where one loaded length a request bounds the loop and
        blocks along no or one axis share it in even parts; None elsewhere. Of loaded numbers it is the one that comes
        out the shortest; others count the parts.
        """
        guards, axes = dict(self.trace.guards), self._shared_along(once.numbers)
        extent, names = self.size[axes[0]] if axes else 1, once.numbers if len(axes) < 2 else ()
        orders = ORDERS[: max(once.numbers.values(), default=0)]  # one where nothing is loaded twice
        ways = (partial(_taken, once.numbers, name, extent, turned) for name in names for turned in orders)
        found = [each for taken in ways for each in self._length(taken, once)]
        self.trace.guards = guards  # the turns of these readings are no launch's
        if not found:
            return None
        length, taken, long = min(found, key=lambda way: float(plain(way[0])))
        full = self.block(self.corner(0), taken(length))
        if line not in full.spans:
            return None
        parts = least(extent, -(-extent * length * long.spans[line] // (LONG * full.spans[line])))
        last = self.block(tuple(parts - 1 if axis in axes else 0 for axis in range(len(self.size))), taken(length))
        work, rest = _work(full), _work(last)
        mean = {of: value + (rest.get(of, 0) - value) / parts for of, value in work.items()}
        mean["all", "longest"] = full.trips
        return tuple(parts if axis in axes else each for axis, each in enumerate(self.size)), mean

    def _shared_along(self, loaded: Mapping[str, int]) -> list[int]:
        """Axes of the grid along which blocks do other parts of a length."""
        ids = self._ids()
        read = [self.block(ids, _taken(loaded, "", LONG, turned, LONG)).read for turned in ORDERS]
        terms = [moved.terms for each in read for moved in each.values() if isinstance(moved, Traced)]
        nodes = [node for node, _ in (*self.trace.guards, *chain.from_iterable(terms))]
        return [axis for axis, one in enumerate(ids)
                if any(map(GridDependence(self.trace, {one.terms[0][0]: 1}).depends, nodes))]  # fmt: skip

    def _length(self, taken: Callable[[Any], TakenFor], once: Counts) -> Iterator[tuple[Any, Any, Counts]]:
        """The length at which blocks that share it have read the largest tensor once; a block's work at a long one."""
        first, last = (self.block(self.corner(which), taken(LONG)) for which in (0, 2))
        grown = [name for name in self.whole if plain(first.read.get(name, 0)) > plain(once.read.get(name, 0))]
        if grown and not any(why.startswith(BOUNDS) for why in (*first.unknown, *last.unknown)):
            name = max(grown, key=lambda one: float(plain(self.whole[one])))
            if EVEN <= plain(last.read.get(name, 0)) / plain(first.read[name]) <= 1 / EVEN:
                length = LONG * self.whole[name] // (math.prod(self.size) * first.read[name])
                yield greatest(length, 1), taken, first


def _taken(loaded: Mapping[str, int], one: str, parts: Any, turned: int, length: Any) -> TakenFor:
    """What loaded numbers are: one is the length, others count its parts. Of two from a list of starts one is 0."""
    return {name: (0, length if name == one else parts)[-count:][::turned] for name, count in loaded.items()}


def _work(counts: Counts) -> Work:
    """What a block does; the longest is itself."""
    summed = {"trips": counts.trips, "longest": counts.trips, "flops": counts.flops}
    return {("loop", line): turns for line, turns in counts.loops.items()} | {
        (into, name): amount for into, of in (("all", summed), ("read", counts.read), ("written", counts.written))
        for name, amount in of.items()}  # fmt: skip

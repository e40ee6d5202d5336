"""A launch of any kernel as formulas over its numbers: read once, worked out in a microsecond for every later size.

The kernel is read at the sizes of one launch with numbers that remember (`traced`).
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from types import CellType, FunctionType, MappingProxyType, ModuleType, SimpleNamespace
from typing import Any

from pipewave.errors import BadInput
from pipewave.tune.source.emitted import compiled
from pipewave.tune.source.language import Tensor
from pipewave.tune.source.launch_work import LaunchReader, source, tensor_of
from pipewave.tune.source.traced import Trace, Traced, cdiv, greatest, least, plain

NUMEL, GRID = "numel:", "grid:"  # inputs that are not arguments: elements of a tensor, numbers a grid function encloses
TRIP_BYTES = 8192  # that a block without a loop moves: counted as a trip, so that its size is seen
SMALLEST_SIZE = 16  # of a constant of the binary: what is less may be a flag or one of a few ways to work
OUTPUTS = ("blocks", "trips", "longest", "least_bytes", "moved_bytes", "flops")  # of a launch; trips of a block
Inputs = Mapping[str, Any]
Heuristics = Mapping[str, Callable[[Mapping[str, Any]], Any]]


def unwrapped(fn: Any) -> tuple[Any, dict[str, Any]]:
    """The `triton.jit` function under all `triton.heuristics`, and these by the argument that they work out."""
    heuristics: dict[str, Any] = {}
    while hasattr(fn, "values") and hasattr(fn, "fn"):
        heuristics |= fn.values
        fn = fn.fn
    return fn, heuristics


@dataclass(frozen=True, slots=True)
class Formula:
    """`one(*inputs)`: the `OUTPUTS` of a launch, None where it takes another turn; `many`: arrays in, arrays out."""

    inputs: tuple[str, ...]
    one: Callable[..., tuple[Any, ...] | None]
    many: Callable[..., tuple[Any, ...]]
    unknown: Mapping[str, int]
    traced: tuple[Trace, tuple[Any, ...]]
    loops: Mapping[int, float] = field(default_factory=dict)  # mean turns by line, at the launch that was read


def is_size(name: str, value: Any, constants: Collection[str]) -> bool:
    """Whether an argument is a size: an integer; among constants of a binary one that is too large for a flag."""
    return type(value) is int and (name not in constants or value >= SMALLEST_SIZE)


def inputs_of(grid: Any, named: Mapping[str, Any], constants: Collection[str]) -> dict[str, Any]:
    """The numbers of a launch by name: its integers, the elements of its tensors, what its grid encloses."""
    found: dict[str, Any] = {}
    for name, value in named.items():
        if is_size(name, value, constants):
            found[name] = value
        elif (tensor := tensor_of(value)) is not None and tensor.elements is not None:
            found[NUMEL + name] = tensor.elements
    return found | enclosed(grid)


def enclosed(grid: Any) -> dict[str, Any]:
    """Integers that a grid function encloses, in closures, defaults and shapes of tensors; or a grid written out."""
    if not callable(grid):
        extents = grid if isinstance(grid, tuple | list) else (grid,)
        return {f"{GRID}{at}": int(extent) for at, extent in enumerate(extents)}
    found: dict[str, Any] = {}
    for name, value in held(grid).items():
        if type(value) is int:
            found[GRID + name] = value
        elif tensor_of(value) is not None:
            found |= {f"{GRID}{name}.{axis}": int(extent) for axis, extent in enumerate(value.shape)}
    return found


def held(grid: Any) -> dict[str, Any]:
    """Everything that a grid function encloses, by name."""
    code = getattr(grid, "__code__", None)
    if code is None:
        return {}
    cells = zip(code.co_freevars, grid.__closure__ or (), strict=False)
    defaults = grid.__defaults__ or ()
    last = code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount]
    return {name: cell.cell_contents for name, cell in cells} | dict(zip(last, defaults, strict=True))


def follows(grid: Any) -> bool:
    """Whether a grid can be traced: a function of what it is given, of numbers and of tensors; or written out."""
    if not callable(grid):
        return True
    plain_values = int | float | str | ModuleType | None
    return hasattr(grid, "__code__") and all(
        isinstance(value, plain_values) or callable(value) or tensor_of(value) is not None
        for value in held(grid).values()
    )


class _Extents:
    """A tensor that a grid encloses, as far as its extents go."""

    def __init__(self, extents: tuple[Any, ...], of: Any) -> None:
        self.shape, self._of = extents, of

    def size(self, axis: int | None = None) -> Any:
        return self.shape if axis is None else self.shape[axis]

    def numel(self) -> Any:
        return prod(self.shape)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._of, name)


def formula(
    kernel: Any, grid: Any, named: Mapping[str, Any], config: Mapping[str, Any], constants: Collection[str] = (),
    trips: Any = None, heuristics: Heuristics = MappingProxyType({}),
) -> Formula:  # fmt: skip
    """Read a launch of `kernel` with its arguments by name under one configuration.

    `constants`: arguments that are part of the binary; `trips`: loop trips of a block where the source does not tell
    them: their mean, (mean, longest), or a function of the arguments by name; `heuristics`: arguments that are worked
    out from the others, as `triton.heuristics` has it. BadInput where the source cannot be read.
    """
    trace = Trace()
    numbers: Inputs = {name: trace.symbol(name, value) for name, value in inputs_of(grid, named, constants).items()}
    given = {name: numbers.get(name, value) for name, value in named.items()} | dict(config)
    given |= {name: _worked_out(of, given) for name, of in heuristics.items()}
    if callable(grid):
        found = _traced(grid, numbers)(given)
        size = tuple(found) if isinstance(found, tuple | list) else (found,)
    else:
        size = tuple(numbers[name] for name in enclosed(grid))
    tensors = {name: Tensor(numbers.get(NUMEL + name, each.elements), each.element_bytes)
               for name, value in named.items() if (each := tensor_of(value)) is not None}  # fmt: skip
    outputs, loops, unknown = LaunchReader.of(kernel, given, tensors, size, trace).outputs()
    if trips is not None:
        stated = trips({**numbers, **given}) if callable(trips) else trips
        outputs[1:3] = stated if isinstance(stated, tuple) else (stated, stated)
    elif not isinstance(outputs[1], Traced) and not outputs[1]:
        outputs[1] = outputs[2] = outputs[4] / outputs[0] / TRIP_BYTES
    turns = {line: float(plain(value)) for line, value in loops.items()}
    return Formula(*compiled(trace, outputs), unknown, (trace, tuple(outputs)), turns)


def _worked_out(of: Callable[[Mapping[str, Any]], Any], given: Mapping[str, Any]) -> Any:
    """What a heuristic gives; as for this launch alone where it cannot follow traced numbers."""
    try:
        return of(given)
    except Exception:  # noqa: BLE001  a function of the user's raises what it likes; with numbers it may not
        return of({name: plain(value) for name, value in given.items()})


def _traced(grid: Any, numbers: Mapping[str, Any]) -> Callable[[Mapping[str, Any]], Any]:
    """A grid function that encloses traced numbers, and rounds up as Triton does."""
    code = getattr(grid, "__code__", None)
    if code is None or not follows(grid):
        return grid  # type: ignore[no-any-return]
    instead = {name: _Extents(tuple(numbers[f"{GRID}{name}.{axis}"] for axis in range(len(value.shape))), value)
               if tensor_of(value) is not None else cdiv if _is_cdiv(value) else numbers.get(GRID + name, value)
               for name, value in held(grid).items()}  # fmt: skip
    cells = tuple(CellType(instead[name]) for name in code.co_freevars)
    defaults = code.co_varnames[code.co_argcount - len(grid.__defaults__ or ()) : code.co_argcount]
    triton = {**getattr(grid.__globals__.get("triton"), "__dict__", {}), "cdiv": cdiv}
    names = {**grid.__globals__, "min": least, "max": greatest, "triton": SimpleNamespace(**triton)}
    names |= {name: cdiv for name, value in grid.__globals__.items() if _is_cdiv(value)}
    return FunctionType(code, names, grid.__name__, tuple(instead[name] for name in defaults), cells)


def _is_cdiv(value: Any) -> bool:
    return getattr(value, "__name__", "") in ("cdiv", "ceil_div")


def constants_of(kernel: Any) -> tuple[str, ...]:
    """Arguments of a kernel function that are part of its binary, as its source marks them. BadInput without source."""
    code, _ = source(kernel)
    every = (*code.args.posonlyargs, *code.args.args, *code.args.kwonlyargs)
    return tuple(one.arg for one in every if one.annotation is not None and "constexpr" in ast.unparse(one.annotation))


def values_of(inputs: Sequence[str], numbers: Inputs) -> list[Any]:
    """The inputs of a formula, in its order. BadInput where a launch lacks one."""
    missing = next((name for name in inputs if name not in numbers), None)
    if missing is not None:
        raise BadInput(f"the launch does not say {missing!r}", field=missing)
    return [plain(numbers[name]) for name in inputs]

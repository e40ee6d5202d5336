"""Places in a program that launch a kernel: how to take the kind and the sizes of a launch from its arguments, fast.

A place passes the same arguments by position and by name each time, so that a function written for it picks what is
needed without a loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pipewave.tune.source.formula import GRID, NUMEL
from pipewave.tune.source.launch import tensor_of
from pipewave.tune.user_kernels.kernel import KernelDescription

MOST_KNOWN = 1 << 16  # launches remembered at a place
Picker = Callable[[Sequence[Any], Any, Any], Any]  # (args, kwargs, grid) → a tuple of what is picked


def site_of(args: Sequence[Any], kwargs: Any, grid: Any) -> tuple[Any, ...]:
    """What tells places apart."""
    code = getattr(grid, "__code__", None)
    return len(args), id(code) if code is not None else type(grid), *kwargs


class Place:
    """What was chosen at one place in a program, by everything a choice depends on there: one look for a launch known.

    `inputs`: the sizes that a choice depends on, the same for all kinds of launches that come by; `pick` gives None for
    a launch of another place; `kinds`: of what is picked, so much tells the kind of a launch, the rest are its sizes.
    """

    __slots__ = ("inputs", "kinds", "known", "pick")

    def __init__(
        self, of: KernelDescription, args: Sequence[Any], kwargs: Any, grid: Any, inputs: Sequence[str]
    ) -> None:
        self.inputs = tuple(inputs)
        parts = _kind_parts(of, args, kwargs)
        self.kinds = len(parts)
        self.pick = _picker([*parts, *(_input(of, args, grid, name) for name in self.inputs)], (args, kwargs, grid))
        self.known: dict[tuple[Any, ...], int] = {}

    def remember(self, key: tuple[Any, ...], config: int) -> int:
        """Keep a choice."""
        if len(self.known) >= MOST_KNOWN:
            self.known.clear()
        self.known[key] = config
        return config


def named(of: KernelDescription, args: Sequence[Any], kwargs: Any) -> dict[str, Any]:
    """Arguments by name."""
    return {**dict(zip(of.arg_names, args, strict=False)), **kwargs}


def kind_picker(of: KernelDescription, args: Sequence[Any], kwargs: Any) -> Picker:
    """Picks what a launch's kind depends on: types of tensors, constants, which arguments there are."""
    return _picker(_kind_parts(of, args, kwargs))


def _kind_parts(of: KernelDescription, args: Sequence[Any], kwargs: Any) -> list[str]:
    parts = []
    for name, value in named(of, args, kwargs).items():
        where = _where(of, args, name)
        if name in of.constants or isinstance(value, bool | str):
            parts.append(where)
        elif value is None or hasattr(value, "dtype"):  # the same place may pass a tensor or none
            parts.append(f"dtype({where}, 'dtype', None)")
        elif not isinstance(value, int | float):
            parts.append(f"type({where})")
    return parts


def size_picker(of: KernelDescription, args: Sequence[Any], grid: Any, inputs: Sequence[str]) -> Picker:
    """Picks the inputs of a launch, in order."""
    return _picker([_input(of, args, grid, name) for name in inputs])


def _input(of: KernelDescription, args: Sequence[Any], grid: Any, name: str) -> str:
    if name.startswith(NUMEL):
        where = _where(of, args, name.removeprefix(NUMEL))
        return f"numel({where})" if not _has_numel(of, args, name) else f"{where}.numel()"
    if not name.startswith(GRID):
        return _where(of, args, name)
    part = name.removeprefix(GRID)
    if callable(grid):
        name, _, axis = part.partition(".")
        return _enclosed(grid, name) + (f".shape[{axis}]" if axis else "")
    return f"int(g[{part}])" if isinstance(grid, tuple | list) else "int(g)"


def _enclosed(grid: Any, name: str) -> str:
    code = grid.__code__
    if name in code.co_freevars:
        return f"g.__closure__[{code.co_freevars.index(name)}].cell_contents"
    return f"g.__defaults__[{code.co_varnames.index(name) - code.co_argcount}]"


def _has_numel(of: KernelDescription, args: Sequence[Any], name: str) -> bool:
    at = of.arg_names.index(name.removeprefix(NUMEL))
    return at < len(args) and hasattr(args[at], "numel")


def _where(of: KernelDescription, args: Sequence[Any], name: str) -> str:
    at = of.arg_names.index(name) if name in of.arg_names else len(args)
    return f"a[{at}]" if at < len(args) else f"k[{name!r}]"


def _numel(value: Any) -> int:
    tensor = tensor_of(value)
    return 0 if tensor is None or tensor.elements is None else tensor.elements


def _picker(parts: Sequence[str], at: tuple[Sequence[Any], Any, Any] | None = None) -> Picker:
    """A function of the arguments; `at`: a launch of the only place that it answers for. The text holds positions and
    names of parameters, nothing of the user's values.
    """
    space: dict[str, Any] = {"__builtins__": {}, "numel": _numel, "int": int, "type": type, "dtype": getattr}
    other = ""
    if at is not None:
        args, kwargs, grid = at
        space |= {"len": len, "names": tuple(kwargs), "grid": getattr(grid, "__code__", type(grid))}
        same_grid = "dtype(g, '__code__', None)" if hasattr(grid, "__code__") else "type(g)"
        by_name = "(*k,) != names" if kwargs else "k"
        other = f"if {same_grid} is not grid or len(a) != {len(args)} or {by_name}: return None\n    "
    exec(f"def pick(a, k, g):\n    {other}return ({''.join(part + ', ' for part in parts)})", space)
    picker: Picker = space["pick"]
    return picker

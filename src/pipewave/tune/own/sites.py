"""Places in a program that launch a kernel: how to take the kind and the sizes of a launch from its arguments, fast.

A place passes the same arguments by position and by name each time, so that a function written for it picks what is
needed without a loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pipewave.tune.own.described import Described
from pipewave.tune.reading.formula import GRID, NUMEL
from pipewave.tune.reading.launch import tensor_of

Picker = Callable[[Sequence[Any], Any, Any], tuple[Any, ...]]  # (args, kwargs, grid) → what is picked


def site_of(args: Sequence[Any], kwargs: Any, grid: Any) -> tuple[Any, ...]:
    """What tells places apart."""
    code = getattr(grid, "__code__", None)
    return len(args), id(code) if code is not None else type(grid), *kwargs


def named(of: Described, args: Sequence[Any], kwargs: Any) -> dict[str, Any]:
    """Arguments by name."""
    return {**dict(zip(of.arg_names, args, strict=False)), **kwargs}


def kind_picker(of: Described, args: Sequence[Any], kwargs: Any) -> Picker:
    """Picks what a launch's kind depends on: types of tensors, constants, which arguments there are."""
    parts = []
    for name, value in named(of, args, kwargs).items():
        where = _where(of, args, name)
        if name in of.constants or isinstance(value, bool | str):
            parts.append(where)
        elif tensor_of(value) is not None:
            parts.append(f"{where}.dtype" if hasattr(value, "dtype") else f"type({where})")
        elif not isinstance(value, int | float):
            parts.append(f"{where} is None")
    return _picker(parts)


def size_picker(of: Described, args: Sequence[Any], grid: Any, inputs: Sequence[str]) -> Picker:
    """Picks the inputs of a launch, in order."""
    return _picker([_input(of, args, grid, name) for name in inputs])


def _input(of: Described, args: Sequence[Any], grid: Any, name: str) -> str:
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


def _has_numel(of: Described, args: Sequence[Any], name: str) -> bool:
    at = of.arg_names.index(name.removeprefix(NUMEL))
    return at < len(args) and hasattr(args[at], "numel")


def _where(of: Described, args: Sequence[Any], name: str) -> str:
    at = of.arg_names.index(name) if name in of.arg_names else len(args)
    return f"a[{at}]" if at < len(args) else f"k[{name!r}]"


def _numel(value: Any) -> int:
    tensor = tensor_of(value)
    return 0 if tensor is None or tensor.elements is None else tensor.elements


def _picker(parts: Sequence[str]) -> Picker:
    """A function of the arguments. The text holds positions and names of parameters, nothing of the user's values."""
    space: dict[str, Any] = {"__builtins__": {}, "numel": _numel, "int": int, "type": type}
    exec(f"def pick(a, k, g):\n    return ({''.join(part + ', ' for part in parts)})", space)
    picker: Picker = space["pick"]
    return picker

"""Places in a program that launch a kernel: how to take the kind and the sizes of a launch from its arguments, fast.

A place passes the same arguments by position and by name each time, so that a function written for it picks what is
needed without a loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pipewave.tune.chooser import Chooser, Memo
from pipewave.tune.source.formula import GRID, NUMEL, SMALLEST_SIZE, is_size
from pipewave.tune.source.launch_work import tensor_of
from pipewave.tune.user_kernels.kernel import NUMBERS, KernelDescription


class Place:
    """What was chosen at one place in a program, by everything a choice depends on there: one look for a launch known.

    `inputs`: the sizes that a choice depends on, the same for all kinds of launches that come by; `pick` gives None for
    a launch of another place; `kinds`: of what is picked, so much tells the kind of a launch, the rest are its sizes;
    `choosers` of each kind, None where one configuration serves all of a kind.
    """

    __slots__ = ("choosers", "inputs", "kinds", "known", "pick")

    def __init__(
        self, of: KernelDescription, args: Sequence[Any], kwargs: Any, grid: Any, inputs: Sequence[str]
    ) -> None:
        self.inputs = tuple(inputs)
        parts = _kind_parts(of, args, kwargs)
        self.kinds = len(parts)
        self.pick = _picker([*parts, *(_input(of, args, grid, name) for name in self.inputs)], args, kwargs, grid)
        self.known: Memo[int] = Memo()
        self.choosers: dict[tuple[Any, ...], Chooser | None] = {}

    def picked(self, args: Sequence[Any], kwargs: Any, grid: Any) -> Any:
        """What is picked of a launch; None where it is of another place, or of a kind that none came by of."""
        try:
            launch = self.pick(args, kwargs, grid)
        except (AttributeError, KeyError, IndexError, TypeError):  # a tensor is missing, for example
            return None
        return launch if launch is not None and launch[: self.kinds] in self.choosers else None


class CallSites:
    """The places of a program; where kinds of launches that depend on other sizes come by one, it counts as several."""

    def __init__(self, of: KernelDescription) -> None:
        self.of = of
        self.forget()

    def forget(self) -> None:
        """Drop what leads to choosers: they have been replaced."""
        self._places: dict[Any, list[Place]] = {}
        self._last: Place | None = None  # of the last launch: most programs launch a kernel from one

    def at(self, args: Sequence[Any], kwargs: Any, grid: Any) -> tuple[Place | None, Any]:
        """The place of a launch, and what is picked of it there; (None, None) where there is no place."""
        last = self._last
        launch = None if last is None else last.picked(args, kwargs, grid)
        if launch is not None:
            return last, launch
        for place in self._places.get(_site(args, kwargs, grid), ()):
            launch = place.picked(args, kwargs, grid)
            if launch is not None:
                self._last = place
                return place, launch
        return None, None

    def enter(self, chooser: Chooser | None, args: Sequence[Any], kwargs: Any, grid: Any, index: int) -> None:
        """Remember a choice, if it will stay so, and how to come to it fast from this place in the program. Without a
        chooser it is that of all launches of a kind: nothing is known of these, and nothing will be measured.
        """
        site = _site(args, kwargs, grid)
        places = self._places.setdefault(site, [])
        inputs = () if chooser is None else chooser.inputs
        place = next((one for one in places if one.inputs == inputs), None)
        if place is None:
            place = Place(self.of, args, kwargs, grid, inputs)
            places.append(place)
        launch = place.pick(args, kwargs, grid)
        kind, key = launch[: place.kinds], launch[place.kinds :]
        place.choosers[kind] = chooser
        if chooser is None or chooser.is_ready or key in chooser.memo:
            place.known.keep(launch, index if chooser is None else chooser.remember(key, index))


def named(of: KernelDescription, args: Sequence[Any], kwargs: Any) -> dict[str, Any]:
    """Arguments by name."""
    return {**dict(zip(of.arg_names, args, strict=False)), **kwargs}


def _site(args: Sequence[Any], kwargs: Any, grid: Any) -> tuple[Any, ...]:
    """What tells places apart; a place holds the code whose id this names."""
    code = getattr(grid, "__code__", None)
    return len(args), id(code) if code is not None else type(grid), *kwargs


def _kind_parts(of: KernelDescription, args: Sequence[Any], kwargs: Any) -> list[str]:
    """What a launch's kind depends on: types of tensors, constants, which arguments there are."""
    parts = []
    for name, value in named(of, args, kwargs).items():
        where = _where(of, args, name)
        if name in of.unused:
            continue
        if of.is_free(name, value):  # the same place may pass something else
            parts.append(f"None if type({where}) in numbers else {where}")
        elif name in of.flags and is_size(name, value, of.flags):  # the same place may pass a flag
            parts.append(f"None if type({where}) is int and {where} >= {SMALLEST_SIZE} else {where}")
        elif name in of.constants or isinstance(value, bool | str):
            parts.append(where)
        elif value is None or hasattr(value, "dtype"):  # the same place may pass a tensor or none
            parts.append(f"dtype({where}, 'dtype', None)")
        elif hasattr(getattr(value, "base", None), "dtype"):  # a host descriptor
            parts.append(f"dtype({where}.base, 'dtype', None)")
        elif not isinstance(value, int | float):
            parts.append(f"type({where})")
    return parts


def _input(of: KernelDescription, args: Sequence[Any], grid: Any, name: str) -> str:
    """Where an input of a launch is found."""
    if name.startswith(NUMEL):
        argument = name.removeprefix(NUMEL)
        where, at = _where(of, args, argument), of.arg_names.index(argument)
        return f"{where}.numel()" if at < len(args) and hasattr(args[at], "numel") else f"numel({where})"
    if not name.startswith(GRID):
        return _where(of, args, name)
    part = name.removeprefix(GRID)
    if not callable(grid):
        return f"int(g[{part}])" if isinstance(grid, tuple | list) else "int(g)"
    enclosed, _, axis = part.partition(".")
    code = grid.__code__
    if enclosed in code.co_freevars:
        where = f"g.__closure__[{code.co_freevars.index(enclosed)}].cell_contents"
    else:
        where = f"g.__defaults__[{code.co_varnames.index(enclosed) - code.co_argcount}]"
    return where + (f".shape[{axis}]" if axis else "")


def _where(of: KernelDescription, args: Sequence[Any], name: str) -> str:
    at = of.arg_names.index(name) if name in of.arg_names else len(args)
    return f"a[{at}]" if at < len(args) else f"k[{name!r}]"


def _picker(parts: Sequence[str], args: Sequence[Any], kwargs: Any, grid: Any) -> Callable[[Any, Any, Any], Any]:
    """A function of arguments by position, by name, and the grid: a tuple of what is picked; None for a launch of
    another place than this one's. The text holds positions and names of parameters, nothing of the user's values.
    """
    space: dict[str, Any] = {
        "__builtins__": {},
        "numel": lambda value: getattr(tensor_of(value), "elements", None) or 0,
        "int": int,
        "type": type,
        "numbers": NUMBERS,
        "dtype": getattr,
    }
    space |= {"len": len, "names": tuple(kwargs), "grid": getattr(grid, "__code__", type(grid))}
    same_grid = "dtype(g, '__code__', None)" if hasattr(grid, "__code__") else "type(g)"
    by_name = "(*k,) != names" if kwargs else "k"
    other = f"if {same_grid} is not grid or len(a) != {len(args)} or {by_name}: return None"
    exec(f"def pick(a, k, g):\n    {other}\n    return ({''.join(part + ', ' for part in parts)})", space)
    picker: Callable[[Any, Any, Any], Any] = space["pick"]
    return picker

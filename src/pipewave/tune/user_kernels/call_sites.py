"""Places in a program that launch a kernel: how to take the kind and the sizes of a launch from its arguments, fast.

A place passes the same arguments by position and by name each time, so that a function written for it picks what is
needed without a loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pipewave.tune.choose.chooser import Chooser, FixedChoice
from pipewave.tune.source.formula import GRID, NUMEL, SMALLEST_SIZE, is_size
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


class CallSites:
    """Ways from the places of a program to what chooses there. `choosers`: by place and kind of launch."""

    def __init__(self, of: KernelDescription) -> None:
        self.of = of
        self._pickers: dict[Any, Picker] = {}
        self.forget()

    def forget(self) -> None:
        """Drop the ways: choosers have been replaced."""
        self.choosers: dict[tuple[Place, tuple[Any, ...]], Chooser | FixedChoice] = {}
        self._entries: dict[Any, tuple[Chooser | FixedChoice, Picker]] = {}
        self._places: dict[Any, Place | None] = {}  # None: launches of several sets of inputs come by
        self._last: Place | None = None  # of the last launch: most programs launch a kernel from one

    def at(self, args: Sequence[Any], kwargs: Any, grid: Any) -> tuple[Place | None, Any]:
        """The place of a launch, and what is picked of it there; (None, None) where there is no place."""
        place = self._last
        launch = None if place is None else place.pick(args, kwargs, grid)
        if launch is None:
            place = self._last = self._places.get(site_of(args, kwargs, grid))
            launch = None if place is None else place.pick(args, kwargs, grid)
        return place, launch

    def anywhere(self, args: Sequence[Any], kwargs: Any, grid: Any) -> tuple[Chooser | FixedChoice, tuple[Any, ...]]:
        """What chooses at a site that launches of several sets of inputs come by, and its key. KeyError: it is new."""
        site = site_of(args, kwargs, grid)
        chooser, pick = self._entries[site, self._pickers[site](args, kwargs, grid)]
        return chooser, pick(args, kwargs, grid)

    def enter(self, chooser: Chooser | FixedChoice, args: Sequence[Any], kwargs: Any, grid: Any, index: int) -> None:
        """Remember a choice, if it will stay so, and how to come to it fast from this place in the program."""
        site = site_of(args, kwargs, grid)
        if site not in self._pickers:
            self.of.held.append(getattr(grid, "__code__", None))  # its id names the place: it must live
            self._pickers[site] = kind_picker(self.of, args, kwargs)
        pick = size_picker(self.of, args, grid, chooser.inputs)
        key = pick(args, kwargs, grid)
        stays = chooser.is_ready or key in chooser.memo
        if stays:
            chooser.remember(key, index)
        self._entries[site, self._pickers[site](args, kwargs, grid)] = chooser, pick
        place = self._places.setdefault(site, Place(self.of, args, kwargs, grid, chooser.inputs))
        if place is not None and place.inputs != chooser.inputs:  # kinds of other arguments come by here
            place = self._places[site] = self._last = None
        if place is not None:
            launch = place.pick(args, kwargs, grid)
            self.choosers[place, launch[: place.kinds]] = chooser
            if stays:
                place.remember(launch, index)


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
        if name in of.unused:
            continue
        if name in of.constants and is_size(name, value, of.constants):  # the same place may pass a flag
            parts.append(f"None if type({where}) is int and {where} >= {SMALLEST_SIZE} else {where}")
        elif name in of.constants or isinstance(value, bool | str):
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

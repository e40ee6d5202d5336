"""Launches of one kind as counts, under every configuration: formulas, made when a launch first needs them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from pipewave.tune.law.anchors import Floats, Ints
from pipewave.tune.source.emitted import compiled
from pipewave.tune.source.formula import Formula, follows, formula, values_of
from pipewave.tune.source.traced import Trace
from pipewave.tune.user_kernels.kernel import KernelDescription, jit

MOST_TURNS = 6  # formulas of a configuration, for launches that take other turns; then the first stands for the rest
Hook = Callable[[dict[str, Any]], object] | None  # of a configuration, on its arguments by name
OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg", "ir_override")  # that no source reads


class LaunchFormulas:
    """Formulas of all configurations of one kind of launch."""

    def __init__(self, of: KernelDescription, hooks: Sequence[Hook] = ()) -> None:
        self.of, self._hooks = of, hooks
        parts = [tuple(sorted((n, v) for n, v in c.items() if n not in OPTIONS)) for c in of.configs]
        self._distinct = list(dict.fromkeys(parts))
        number = {part: i for i, part in enumerate(self._distinct)}
        self.group = np.array([number[part] for part in parts])
        self._first = [parts.index(part) for part in self._distinct]
        self.formulas: list[list[Formula]] = [[] for _ in self._distinct]
        self.is_followed = True

    def read(self, grid: Any, named: Mapping[str, Any], numbers: Mapping[str, Any]) -> None:
        """Make the formulas that a launch needs; anew for each where its grid cannot be followed."""
        self.is_followed = follows(grid)
        if not self.is_followed:
            self.formulas = [[] for _ in self._distinct]
        for made, first in zip(self.formulas, self._first, strict=True):
            if self._one(made, numbers) is None and len(made) < MOST_TURNS:
                config = self.of.configs[first]
                self._describe(first, {**named, **config})
                made.append(formula(jit(self.of.fn), grid, named, config, self.of.constants, self.of.trips,
                                    self.of.heuristics))  # fmt: skip

    def _describe(self, index: int, full: dict[str, Any]) -> None:
        """Let a configuration's hook set the blocks of host descriptors, if there are any: they are what is read."""
        hook = self._hooks[index] if self._hooks else None
        if hook is not None and any(hasattr(value, "block_shape") for value in full.values()):
            hook(full)

    def state(self, counts: Callable[[Mapping[str, Any], Mapping[str, Any]], Sequence[Any]],
              numbers: Mapping[str, Any]) -> None:  # fmt: skip
        """Make the formulas from a function of numbers and configuration instead of a source."""
        for made, first in zip(self.formulas, self._first, strict=True):
            trace = Trace()
            symbols = {name: trace.symbol(name, value) for name, value in numbers.items()}
            outputs = tuple(counts(symbols, self.of.configs[first]))
            made.append(Formula(*compiled(trace, outputs), {}, (trace, outputs)))

    @staticmethod
    def _one(made: Sequence[Formula], numbers: Mapping[str, Any]) -> tuple[Any, ...] | None:
        for each in made:
            found = each.one(*values_of(each.inputs, numbers))
            if found is not None:
                return found
        return None

    def counts(self, numbers: Mapping[str, Any], some: Ints | None = None) -> Floats:
        """Counts [c, 6] of a launch that was read, of all configurations or of some."""
        groups, at = np.unique(self.group if some is None else self.group[some], return_inverse=True)
        every = [self.formulas[group] for group in groups.tolist()]
        rows = [self._one(made, numbers) or _loose(made[0], numbers) for made in every]
        return np.asarray(np.array([[float(value) for value in row] for row in rows])[at])

    def many(self, numbers: Mapping[str, Floats]) -> Floats:
        """Counts [s, c, 6] of launches given as columns of their inputs, by the first formula of each configuration."""
        size = len(next(iter(numbers.values())))
        out = np.zeros((size, len(self._distinct), len(self.formulas[0][0].traced[1])))
        for i, made in enumerate(self.formulas):
            found = made[0].many(*values_of(made[0].inputs, numbers))
            for j, values in enumerate(found):
                out[:, i, j] = values
        return out[:, self.group]

    def covers(self, numbers: Mapping[str, Any]) -> bool:
        """Whether a launch has all numbers that are read: one with another grid function may enclose others."""
        return all(name in numbers for name in self.inputs)

    @property
    def inputs(self) -> tuple[str, ...]:
        """Inputs that any formula reads."""
        return tuple(dict.fromkeys(name for made in self.formulas for each in made for name in each.inputs))

    @property
    def unknown(self) -> Mapping[str, int]:
        """What the source does not tell, and at which line."""
        return {why: line for made in self.formulas for each in made for why, line in each.unknown.items()}


def _loose(made: Formula, numbers: Mapping[str, Any]) -> tuple[Any, ...]:
    """The counts of a launch that takes turns nobody read."""
    columns = [np.array([value]) for value in values_of(made.inputs, numbers)]
    return tuple(np.asarray(value).reshape(-1)[0] for value in made.many(*columns))

"""Launches of one kind as counts, under every configuration: formulas, made when a launch first needs them.

A launch gives many numbers (arguments, elements of tensors, what its grid encloses). Most are products of a few, `M·K`
elements of A, and tell nothing new. The few are its sizes: where launches are placed, and what is drawn to look for
short lists.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import combinations, combinations_with_replacement
from typing import Any

import numpy as np

from pipewave.tune.law.anchors import Floats, Ints
from pipewave.tune.source.emitted import compiled
from pipewave.tune.source.formula import NUMEL, Formula, follows, formula, values_of
from pipewave.tune.source.traced import Trace, power_of_2
from pipewave.tune.user_kernels.kernel import KernelDescription

MOST_TURNS = 6  # formulas of a configuration, for launches that take other turns; then the first stands for the rest
Hook = Callable[[dict[str, Any]], object] | None  # of a configuration, on its arguments by name
OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg", "ir_override")  # that no source reads

Numbers = Mapping[str, Any]
EXACT = 1e-6  # of a logarithm: a product is exact or it is none
UNLIKE = 0.25  # the same: extents of a tensor this far from any product of sizes tell one more, a padded one does not
MOST_FACTORS, MOST_POWERS = 5, 5  # of a product; sizes of which each may come twice or divide: 0.2 s a fit at eight
ENOUGH = 8  # launches that a quotient is found over
Product = tuple[Mapping[str, int], float]  # powers of sizes, times how much
WIDER = 4.0  # times as large, and as small, as the launches seen: where others are expected


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
            if _one(made, numbers) is None and len(made) < MOST_TURNS:
                config, hook = self.of.configs[first], self._hooks[first] if self._hooks else None
                if hook is not None and any(hasattr(value, "block_shape") for value in named.values()):
                    hook({**named, **config})  # it sets the blocks of host descriptors: they are what is read
                made.append(formula(self.of.inner, grid, named, config, self.of.flags, self.of.trips,
                                    self.of.heuristics))  # fmt: skip

    def state(self, counts: Callable[[Mapping[str, Any], Mapping[str, Any]], Sequence[Any]],
              numbers: Mapping[str, Any]) -> None:  # fmt: skip
        """Make the formulas from a function of numbers and configuration instead of a source."""
        for made, first in zip(self.formulas, self._first, strict=True):
            trace = Trace()
            symbols = {name: trace.symbol(name, value) for name, value in numbers.items()}
            outputs = tuple(counts(symbols, self.of.configs[first]))
            made.append(Formula(*compiled(trace, outputs), {}, (trace, outputs)))

    def one(self, group: int, numbers: Numbers) -> tuple[Any, ...] | None:
        """Counts of a launch under the configurations of a group; None where its turns were not read."""
        return _one(self.formulas[group], numbers)

    def counts(self, numbers: Mapping[str, Any]) -> Floats:
        """Counts [c, 6] of a launch that was read."""
        rows = [_one(made, numbers) or _loose(made[0], numbers) for made in self.formulas]
        return np.asarray(np.array([[float(value) for value in row] for row in rows])[self.group])

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


def _one(made: Sequence[Formula], numbers: Numbers) -> tuple[Any, ...] | None:
    return next((found for each in made if (found := each.one(*values_of(each.inputs, numbers))) is not None), None)


def _loose(made: Formula, numbers: Mapping[str, Any]) -> tuple[Any, ...]:
    """The counts of a launch that takes turns nobody read."""
    columns = [np.array([value]) for value in values_of(made.inputs, numbers)]
    return tuple(np.asarray(value).reshape(-1)[0] for value in made.many(*columns))


@dataclass(frozen=True, slots=True)
class Sizes:
    """`names`: numbers of their own; `follow`: number → (powers of the names it is a product of, times how much);
    `rounded`: number → the name that it is, rounded up to a power of two, as blocks that hold a whole row are.
    """

    names: tuple[str, ...]
    follow: Mapping[str, Product]
    rounded: Mapping[str, str] = field(default_factory=dict)

    def at(self, launches: Sequence[Numbers]) -> Floats:
        """Sizes [s, d] of launches."""
        return np.array([[float(launch[name]) for name in self.names] for launch in launches]).reshape(
            len(launches), len(self.names)
        )

    def numbers(self, at: Floats) -> dict[str, Floats]:
        """All numbers, as columns, of launches at sizes [s, d]."""
        own = {name: at[:, i] for i, name in enumerate(self.names)}
        own |= {name: 2.0 ** np.ceil(np.log2(np.maximum(own[of], 1.0))) for name, of in self.rounded.items()}
        alone = np.ones(len(at))  # a number that no size moves is a column too
        return own | {name: np.rint(by * np.prod([alone, *(own[one] ** float(power) for one, power in of.items())], 0))
                      for name, (of, by) in self.follow.items()}  # fmt: skip


def sizes(inputs: Sequence[str], key: Sequence[str], launches: Sequence[Numbers]) -> Sizes:
    """Tell sizes from what follows: the key's own arguments first, then whatever no product of these explains."""
    extents = sorted((n for n in inputs if n.startswith(NUMEL)), key=lambda name: float(launches[0][name]))
    ordered = [*(name for name in key if name in launches[0]), *(n for n in inputs if n not in extents), *extents]
    names: list[str] = []
    follow: dict[str, Product] = {}
    rounded: dict[str, str] = {}
    for name in dict.fromkeys(ordered):
        found, off = _product(name, names, launches)
        exact = off < EXACT and (any(found[0].values()) or len(launches) > 1)
        # the size that it is, rounded up to a power of two, at launches of more than one such size
        of = next((one for one in names if not exact and len({launch[one] for launch in launches}) > 1
                   and all(power_of_2(launch[one]) == launch[name] for launch in launches)), None)  # fmt: skip
        if of is not None:
            rounded[name] = of
        elif not names or (not exact and not name.startswith(NUMEL)) or off > UNLIKE or name in key:
            names.append(name)
        else:
            follow[name] = found
    return Sizes(tuple(names), follow, rounded)


def _product(name: str, names: Sequence[str], launches: Sequence[Numbers]) -> tuple[Product, float]:
    """The product of some sizes, over one of them, that a number is nearest to, and how far off it is (standard
    deviation of logs). Few launches agree by chance with some quotient or square: of them no size is asked twice.
    """
    logs = np.log([[max(float(launch[one]), 1.0) for launch in launches] for one in (name, *names)])
    powers = _powers(len(names), len(launches) >= ENOUGH)
    ratio = logs[0] - powers @ logs[1:]
    middle, off = np.median(ratio, axis=1), ratio.std(axis=1)
    best = np.lexsort((np.abs(powers).sum(axis=1), np.round(np.abs(middle), 6), np.round(off, 6)))[0]
    return (dict(zip(names, powers[best].tolist(), strict=True)), float(np.exp(middle[best]))), float(off[best])


@lru_cache(maxsize=64)
def _powers(count: int, any_power: bool) -> Ints:
    """Powers [p, count] of so many sizes in a product."""
    any_power = any_power and count <= MOST_POWERS
    some = combinations_with_replacement if any_power else combinations
    rows = [np.bincount(np.array(each, np.int64), minlength=count) for factors in range(MOST_FACTORS + 1)
            for each in some(range(count), factors)]  # fmt: skip
    over = [row - one for row in rows for one in np.eye(count, dtype=np.int64) if any_power and not (row & one).any()]
    return np.array([*rows, *over], np.int64).reshape(len(rows) + len(over), count)


def drawn(at: Floats, count: int, seed: int = 0, wider: float = WIDER) -> Floats:
    """Sizes [count, d] like those of launches [s, d], and `wider` times beyond; half of them round, as most are."""
    rng = np.random.default_rng(seed)
    low, high = np.maximum(at.min(axis=0) / wider, 1.0), np.maximum(at.max(axis=0) * wider, 1.0)
    values = np.exp(rng.uniform(np.log(low), np.log(high), (count, at.shape[1])))
    step = 2.0 ** np.floor(rng.random(values.shape) * np.log2(values))
    rounded = np.where(rng.random(values.shape) < 0.5, np.rint(values), np.ceil(values / step) * step)
    return np.asarray(np.maximum(np.minimum(rounded, high), 1.0))

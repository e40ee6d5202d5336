"""Choosing at run time: plain Python over immutable tables. No GPU call, no lock, the same answer everywhere.

A choice is a pure function of the shape and the table. Three speeds: a repeated shape is one dictionary hit; a new M
of a layer that was prepared is a bisection of its switch points; anything else evaluates the two or three laws of its
cell. The memo is a plain dict: one item is set at a time, which threads may do at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from pipewave.tune import cells
from pipewave.tune.cells import Cells
from pipewave.tune.loads import knows_load
from pipewave.tune.mapping import Values, mapper
from pipewave.tune.table import Table
from pipewave.tune.wave import Tabulated, predict_us, tabulate

Config = Mapping[str, int]
# Parameters, those of `Lookup.blocks`, correction, law.
Row = tuple[Config, tuple[int, ...], float, Tabulated]
MEMO = 1 << 16  # shapes remembered; then the memo starts anew
GRANULE, FREE = 16, 64  # above FREE rows, M is rounded up to a multiple of GRANULE: no block is smaller
GENERAL = 8  # configurations tried outside the cells


class Lookup:
    """A table ready to choose from. `select(...)` takes the kernel's shape fields by name.

    `blocks`: the parameters that decide how many blocks of how many trips a launch has.
    """

    blocks: tuple[str, ...] = ("BLOCK_M", "BLOCK_N", "BLOCK_K")

    def __init__(self, table: Table) -> None:
        self.table, self.kernel, self.sms = table, table.kernel, table.fitted.sms
        self._work = mapper(table.kernel)
        fitted = table.fitted
        values = zip(*(column.tolist() for column in fitted.config.values()), strict=True)
        self.configs: tuple[Config, ...] = tuple(
            MappingProxyType(dict(zip(fitted.config, row, strict=True))) for row in values
        )
        used = {*table.cells.config.tolist(), *table.known_load.config.tolist()}
        self._laws = {i: tabulate(fitted.law[i], self.sms, int(fitted.resident[i])) for i in sorted(used)}
        self._rows = dict(self._cell_rows(table.cells))
        self._known = self._rows if table.known_load is table.cells else dict(self._cell_rows(table.known_load))
        self._general = self._most_used()
        self._memo: dict[Any, Config] = {}
        self._layers: dict[Any, tuple[list[int], list[Config]]] = {}

    def _cell_rows(self, of: Cells) -> Iterable[tuple[int, tuple[Row, ...]]]:
        start, config, factor = of.start.tolist(), of.config.tolist(), of.factor.tolist()
        for i, key in enumerate(of.key.tolist()):
            yield key, tuple(self._row(config[j], factor[j]) for j in range(start[i], start[i + 1]))

    def _row(self, index: int, factor: float) -> Row:
        config = self.configs[index]
        return config, tuple(config[name] for name in self.blocks), factor, self._laws[index]

    def _most_used(self) -> tuple[Row, ...]:
        used = np.bincount(self.table.cells.config, minlength=len(self.configs))
        most = np.argsort(-used, kind="stable")[:GENERAL].tolist()
        return tuple(self._row(i, 1.0) for i in most if i in self._laws)

    def candidates(self, shape: Values) -> tuple[tuple[Row, ...], bool]:
        """Return the short list of a shape's cell, and whether the shape lies inside the profiled domain."""
        rows = self._rows.get(cells.key(self.kernel, shape))
        return (rows, True) if rows is not None else (self._general, False)

    def states(self, shape: Values) -> list[Values]:
        """Return the shape with each load to expect where it tells none."""
        return [shape]

    def choose(self, shape: Values) -> Row:
        """Evaluate the short list; first of equals wins, so the answer is the same everywhere."""
        lists = self._known if knows_load(shape) else self._rows
        rows = lists.get(cells.key(self.kernel, shape), self._general)
        if len(rows) == 1:
            return rows[0]
        best, least = rows[0], math.inf
        states = self.states(shape)
        for row in rows:
            us = row[2] * self._us(row, states)
            if us < least:
                best, least = row, us
        return best

    def _us(self, row: Row, states: list[Values]) -> float:
        """Return the mean µs of a candidate's law over loads."""
        us = [predict_us(self._work(state, row[0]), self.sms, row[3]) for state in states]
        return float(sum(us)) / len(us)

    def remember(self, key: Any, config: Config) -> Config:
        """Keep a choice."""
        if len(self._memo) >= MEMO:
            self._memo = {}
        self._memo[key] = config
        return config

    def forget(self) -> None:
        """Drop what was remembered; choices do not change."""
        self._memo = {}

    def switches(self, at: Callable[[int], Values], most: int) -> tuple[list[int], list[Config]]:
        """Return (last M of each run, its configuration) for M = 1 … most; exact, since M counts in granules."""
        ends: list[int] = []
        chosen: list[Config] = []
        for m in [*range(1, FREE + 1), *range(FREE + GRANULE, up_to_granule(most) + 1, GRANULE)]:
            config = self.choose(at(m))[0]
            if chosen and config is chosen[-1]:
                ends[-1] = m
            else:
                ends.append(m)
                chosen.append(config)
        return ends, chosen


def up_to_granule(m: int) -> int:
    """Rows as switch points see them: exact below `FREE`, else rounded up to the granule."""
    return m if m <= FREE else -(-m // GRANULE) * GRANULE

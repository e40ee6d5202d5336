"""One kind of launch of a kernel: what was measured of it, the model fitted to that, and the choices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pipewave.tune.chooser import Chooser, Held
from pipewave.tune.law.anchors import Anchors, Floats, Ints, Peaks, columns
from pipewave.tune.law.model import THERE_LAUNCHES, Model, fit, moved, physics_us
from pipewave.tune.source.formula import GRID
from pipewave.tune.store import KindTable, Measured
from pipewave.tune.user_kernels import measuring
from pipewave.tune.user_kernels.device import Built
from pipewave.tune.user_kernels.kernel import Kind
from pipewave.tune.user_kernels.launch_formulas import LaunchFormulas, Sizes, drawn, sizes

REPEATS = 8  # launches of the same sizes that are measured where loads are hidden
ELSEWHERE = 128  # launches drawn that the pooled law is asked for
PHYSICS_LAUNCHES = 4.0  # that physics counts for in what to expect of configurations


@dataclass(slots=True)
class KindState:
    """Launches `measured`; `model` and `chooser` once there are; `prior`: the model of another GPU, as it is expected
    here, and the sizes that it goes by.
    """

    formulas: LaunchFormulas
    kind: Kind = ()
    measured: list[Measured] = field(default_factory=list)
    model: Model | None = None
    prior: tuple[Model, tuple[str, ...]] | None = None
    chooser: Chooser | None = None
    fitted_to: int = 0  # launches
    refused: str = ""  # why launches of this kind cannot be measured

    @property
    def numbers(self) -> list[Mapping[str, Any]]:
        """The numbers of launches measured."""
        return [one.numbers for one in self.measured]

    @property
    def is_hidden(self) -> bool:
        """Whether loops turn as often as only the GPU knows: launches of the same sizes differ in time."""
        return self.formulas.of.trips is None and any("loop" in why for why in self.formulas.unknown)

    def wants(self, numbers: Mapping[str, Any]) -> bool:
        """Whether a launch is worth measuring whose sizes were measured before."""
        return self.is_hidden and sum(dict(one) == dict(numbers) for one in self.numbers) < REPEATS

    def anchors(self, of: Sizes, peaks: Peaks) -> Anchors:
        """Everything measured, to fit to."""
        config = columns(self.formulas.of.configs)
        every = range(len(self.formulas.of.configs))
        built = [one.timed.built for one in self.measured]
        known = {i: one for each in built for i, one in each.items()}  # of launches that did not compile it
        rows = [[each.get(i) or known.get(i) or Built() for i in every] for each in built]
        warps = config.get("num_warps", np.full(len(every), 4))
        resident = np.stack([measuring.resident(row, warps, peaks) for row in rows])
        counts, us = [one.counts for one in self.measured], [one.timed.us for one in self.measured]
        return Anchors(of.at(self.numbers), np.stack(counts), np.stack(us), config, resident)

    def fitted(self, peaks: Peaks) -> tuple[Model, Sizes, Anchors]:
        """The model of what was measured, and what it was fitted to."""
        of = sizes(self.formulas.inputs, self.formulas.of.key, self.numbers)
        anchors = self.anchors(of, peaks)
        elsewhere = self.formulas.many(of.numbers(drawn(anchors.at, ELSEWHERE, seed=1)))
        there = self.prior[0] if self.prior is not None and self.prior[1] == of.names else None
        return fit(anchors, peaks, elsewhere, there), of, anchors

    def take(self, peaks: Peaks) -> bool:
        """Fit anew where launches have doubled, and say so; else only remember the last one's fastest."""
        if self.chooser is None or len(self.measured) >= 2 * self.fitted_to:
            self.fit(peaks)
            return True
        self._remember(self.chooser, self.measured[-1])
        return False

    def fit(self, peaks: Peaks) -> None:
        """Fit to what was measured."""
        self.fitted_to = len(self.measured)
        self.model, of, anchors = self.fitted(peaks)
        best, usable = np.nanargmin(anchors.us, axis=1), np.flatnonzero(np.isfinite(anchors.us).any(axis=0))
        self.chooser = Chooser(self.formulas, of, self.model, usable, anchors.at, best,
                               held=self._held(anchors.resident))  # fmt: skip
        for one in self.measured:
            self._remember(self.chooser, one)

    def _remember(self, chooser: Chooser, one: Measured) -> None:
        """What was measured is known, unless the next launch of these sizes may differ."""
        if not self.is_hidden:
            chooser.remember(tuple(one.numbers[name] for name in chooser.inputs), int(np.nanargmin(one.timed.us)))

    def _held(self, resident: Ints) -> Held | None:
        """What tells binaries of launches apart, where sizes that are constants of the binary do."""
        names = tuple(name for name in self.formulas.inputs if name in self.formulas.of.constants)
        if not names or bool((resident == resident[0]).all()):
            return None
        at = np.array([[float(launch[name]) for name in names] for launch in self.numbers])
        return Held(names, np.log(np.maximum(at, 1.0)), resident)

    def adopt(self, table: KindTable, carried_to: Peaks | None = None) -> None:
        """Choose by a table; by one of another GPU until launches are measured on this one, whose peaks are given.
        Where its launches lack numbers that are read here, short lists are worked out as launches come.
        """
        # What a grid encloses under an argument's name is taken from that argument.
        more = {name: name.removeprefix(GRID) for name in self.formulas.inputs if name.startswith(GRID)}
        enclosed = [{**{name: one[of] for name, of in more.items() if of in one}, **one} for one in table.launches]
        model, names = table.model if carried_to is None else moved(table.model, carried_to), table.sizes
        usable: Ints = np.flatnonzero(np.isfinite(model.sigma))
        whole = all(name in enclosed[0] for name in self.formulas.inputs)
        of = sizes(self.formulas.inputs, names, enclosed) if whole else Sizes(tuple(names), {})
        at = of.at(enclosed) if whole else np.zeros((0, len(names)))
        counts = self.formulas.many(of.numbers(at)) if whole and self.formulas.formulas[0] else None
        best = None if counts is None else model.ranked(counts, np.log(np.maximum(at, 1.0))).argmin(axis=1)
        self.model, self.chooser = model, Chooser(self.formulas, of, model, usable, at, best)
        if carried_to is not None:
            self.prior = model, of.names

    def expected_us(self, counts: Floats, peaks: Peaks) -> Floats:
        """µs [c] to expect of a launch before it is measured: by physics, and by the model or the prior as far as there
        are launches behind it (a mean of logarithms): laws of one or two err tenfold at launches unlike these.
        """
        physics = physics_us(counts[None], np.full(len(counts), 2), peaks)[0]
        model = self.model or (self.prior and self.prior[0])
        launches = self.fitted_to + (THERE_LAUNCHES if self.prior is not None else 0.0)
        law = physics if model is None else np.maximum(model.law_us(counts[None])[0], 1e-3)
        return np.asarray(physics * (law / physics) ** (launches / (launches + PHYSICS_LAUNCHES)))

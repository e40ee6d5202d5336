"""Watts of the boards of a simulated run: from a sample of its steps, with boards that wait at what they draw idle.

A run of a million steps is told from what ran at some two thousand moments, twice as far apart from then on whenever
there are too many. A stretch of decode steps is told at the middle of its cache.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np

from pipewave.physics.demand import Array
from pipewave.physics.power import Board
from pipewave.simulate.drafting import Drafted
from pipewave.simulate.step_table import StepTable

MOST_KEPT, FIRST_APART_S = 1024, 1e-3  # moments of a kind, an even number; how far apart at first
Pieces = Sequence[tuple[int, int, int]]  # of prompts in a step: request, tokens, tokens before them


class Stretch(NamedTuple):
    """Steps of one engine that are alike: when they began, how long they took together, how many, and of what."""

    start_s: float
    seconds: float
    steps: int
    decoding: int
    cached: float
    pieces: Pieces


class StretchLog:
    """Samples of a run's stretches; those with prompts, which are few and draw other watts, are kept apart."""

    def __init__(self) -> None:
        self.samples: defaultdict[tuple[int, bool], StretchSample] = defaultdict(StretchSample)

    def add(
        self, side: int, start_s: float, seconds: float, steps: int, decoding: int, cached: float, pieces: Pieces
    ) -> None:
        """One more, as `Stretch`, which most are never made into. `side`: 0 of engines that take prompts, else 1."""
        sample = self.samples[side, bool(pieces)]
        if sample.next_s < sample.busy_s + seconds:
            sample.keep(Stretch(start_s, seconds, steps, decoding, cached, pieces))
        sample.busy_s += seconds


class StretchSample:
    """What ran at moments that are equally far apart in the time that stretches of one kind take."""

    def __init__(self) -> None:
        self.kept: list[tuple[float, Stretch]] = []  # moment, and the stretch that ran
        self.busy_s, self.apart_s, self.next_s = 0.0, FIRST_APART_S, 0.0

    def keep(self, stretch: Stretch) -> None:
        """Keep one that runs at the next moments."""
        while self.next_s < self.busy_s + stretch.seconds:
            self.kept.append((stretch.start_s + self.next_s - self.busy_s, stretch))
            if len(self.kept) >= MOST_KEPT:
                self.kept, self.apart_s = self.kept[::2], 2 * self.apart_s
            self.next_s = len(self.kept) * self.apart_s

    def before(self, boards: Boards, edges: Array) -> tuple[Array, Array]:
        """Seconds that stretches of the kind took before each moment, and joules of a GPU in them, [edge] each."""
        watts: list[float] = []
        for _, same in groupby((one for _, one in self.kept), id):
            one, *more = same
            pieces = [(tokens, before) for _, tokens, before in one.pieces]
            each = boards.table.watts(one.seconds / one.steps, one.decoding, one.cached, pieces, boards.ranks)
            watts += [each] * (1 + len(more))
        moments = np.array([moment for moment, _ in self.kept])
        order = np.argsort(moments, kind="stable")  # of engines side by side
        seconds = np.append(np.full(len(order) - 1, self.apart_s), self.busy_s - (len(order) - 1) * self.apart_s)
        place = np.append(moments[order], moments[order[-1]] + seconds[-1])
        spent = seconds, seconds * np.array(watts)[order]
        took, joules = (np.interp(edges, place, np.append(0.0, np.cumsum(values))) for values in spent)
        return took, joules


class Boards(NamedTuple):
    """The GPUs of one side: engines as the simulation counts them, data-parallel ranks of each, GPUs in all."""

    table: StepTable | Drafted
    board: Board
    engines: int
    ranks: int
    gpus: int


def watts_over_time(sides: Sequence[Boards], log: StretchLog, edges: Array) -> Array:
    """Mean watts of one GPU of a deployment between two edges in time, s, of a run, [edge - 1]; engines that wait draw
    what they do idle.
    """
    joules, seconds = np.zeros(len(edges) - 1), np.maximum(np.diff(edges), 1e-12)
    for side, boards in enumerate(sides):
        idle_w = boards.board.idle_w
        joules += boards.gpus * idle_w * seconds
        for sample in (sample for (of, _), sample in log.samples.items() if of == side):
            took, spent = (np.diff(one) / boards.engines for one in sample.before(boards, edges))
            joules += boards.gpus * (spent - idle_w * took)
    return joules / seconds / sum(boards.gpus for boards in sides)


def energy_figures(
    power_w: float, gpus: int, output_tokens_per_s: float, board: Board, half_s: float
) -> Mapping[str, float]:
    """`power_w` and `energy_j_per_output_token` with both ends of their 90 % intervals.

    `half_s`: half the interval of the logarithm of the deployment's times. A faster step draws more, so that what times
    leave open counts half in joules.
    """
    low, high = board.ends(power_w)
    found = {"power_w": power_w, "power_w_low": float(low), "power_w_high": float(high)}
    if output_tokens_per_s:
        each = power_w * gpus / output_tokens_per_s
        factor = math.exp(math.hypot(board.spread, 0.5 * half_s))
        ends = {"": each, "_low": each / factor, "_high": each * factor}
        found |= {f"energy_j_per_output_token{side}": joules for side, joules in ends.items()}
    return {name: float(f"{value:.6g}") for name, value in found.items()}

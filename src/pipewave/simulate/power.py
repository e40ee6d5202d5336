"""Watts of the boards of a simulated run: from a sample of its steps, with boards that wait at what they draw idle.

A run of a million steps is told from some two thousand: one in so many is kept, and one in twice as many from then on
whenever there are too many. A stretch of decode steps is one entry, at the middle of its cache.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pipewave.physics.power import Board
from pipewave.simulate.drafting import Drafted
from pipewave.simulate.step_table import StepTable

MOST_KEPT = 1024


class Stretch(NamedTuple):
    """Steps of one engine that are alike: when they began, how long they took together, how many, and of what."""

    side: int  # 0: engines that take prompts, 1: those that decode only
    start_s: float
    seconds: float
    steps: int
    decoding: int
    cached: float
    pieces: Sequence[tuple[int, int, int]]  # request, tokens, tokens before them


class StretchLog:
    """A sample of the stretches of a run, and how long its engines were busy, by side."""

    def __init__(self) -> None:
        self.kept: list[Stretch] = []
        self.busy_s, self.every, self.seen = [0.0, 0.0], 1, 0

    def add(self, stretch: Stretch) -> None:
        """One more."""
        self.busy_s[stretch.side] += stretch.seconds
        self.seen += 1
        if self.seen % self.every == 0:
            self.kept.append(stretch)
            if len(self.kept) > MOST_KEPT:
                self.kept, self.every = self.kept[::2], 2 * self.every


class Boards(NamedTuple):
    """The GPUs of one side: engines as the simulation counts them, data-parallel ranks of each, GPUs in all."""

    table: StepTable | Drafted
    board: Board
    engines: int
    ranks: int
    gpus: int


def mean_power_w(sides: Sequence[Boards], log: StretchLog, begin: float, end: float) -> float:
    """Mean watts of one GPU of a deployment while its run was in a window; engines that wait draw what they do idle."""
    total, span = 0.0, max(end - begin, 1e-12)
    for side, (table, board, engines, ranks, gpus) in enumerate(sides):
        every = [one for one in log.kept if one.side == side]
        some = [one for one in every if begin <= one.start_s < end]
        sampled, joules = sum(one.seconds for one in some), 0.0
        for one in some:
            pieces = [(tokens, before) for _, tokens, before in one.pieces]
            joules += one.seconds * table.watts(one.seconds / one.steps, one.decoding, one.cached, pieces, ranks)
        watts = board.idle_w
        if sampled:
            busy_s = log.busy_s[side] * sampled / sum(one.seconds for one in every)
            watts += min(busy_s / (engines * span), 1.0) * (joules / sampled - board.idle_w)
        total += gpus * watts
    return total / sum(boards.gpus for boards in sides)


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

"""What is unknown of published servers before anything is told of them: `python -m train.told_fit FIGURES --write`.

FIGURES holds published rows with what they hinge on (`python -m studies.told_rows FIGURES --ask`). Of each group a few
rows are told, drawn at random, and the others answered; the prior is the one under which they come out likeliest, by
Student's law, for a few rows of each group are off by anything, and with the least error. So are rows of another model
on the same source's servers, and of another number of GPUs. Fitted by gradient through the very code that answers
(`pipewave.told.posterior`), every group alike; once on all groups for what ships, and once for each fifth of them
without it, for what is scored.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pipewave.physics.demand import Array
from pipewave.told.posterior import FILE, NORMAL, Points, Posterior, Prior
from studies.published_rows import corpus, read
from studies.told_rows import FOLDS, LEFT_OUT, Told, folds, renumbered, siblings, splits, told
from train.cards import settings, ship, write
from train.two_levels import weighted_quantile

FREEDOM = 3.0  # of Student's law
DRAWS = 8  # of a group
ASKED = 24  # figures of a draw
ERROR = 20.0  # what an error counts in the loss: answers are scored by their errors
RUNS = (1, 2, 3, 3, 3, 4)  # told in a draw
STEPS = 80
RATE = 0.08
HOLD = 1.0  # what a parameter e times as large costs beside the loss of a group; less learns the groups by heart
PAIRS = 96  # of two models on one machine, and of two numbers of GPUs
SIBLINGS = 0.5  # what each kind of pairs counts beside a group's own rows
ROUND = 0.01  # below which errors do not pull
COVERED = 0.9
START = settings("told")  # of the search: standard deviations in log time
FIXED = ("spoiled", "spoiled_share", "unlike", "unlike_share", "width")  # assumed: rare among those published
SHARES = ("other_software", "other_model", "other_gpus", "spoiled_share", "unlike_share")
Drawn = tuple[Points, Array, Points, Array, float]  # told, off, asked, truth, and what the draw counts


@dataclass(frozen=True, slots=True, eq=False)
class Draws:
    """Rows that are told and others that are asked, of many draws at once: torch arrays of [draw, figure].

    Draws of fewer figures are filled up with some that hinge on nothing.
    """

    told: Points
    off: torch.Tensor
    asked: Points
    truth: torch.Tensor
    weight: torch.Tensor  # of each figure that is asked


def draws(groups: Sequence[Told]) -> Draws:
    """A few draws of each group, and of rows of another model or number of GPUs."""
    rng = np.random.default_rng(0)
    found = [_draw(one, one.rows, rng, RUNS[k % len(RUNS)], 1.0 / DRAWS) for one in groups for k in range(DRAWS)]
    for every in (siblings(groups), splits(groups)):
        pairs = [every[i] for i in rng.permutation(len(every))[:PAIRS]]
        weight = SIBLINGS * len(groups) / max(len(pairs), 1)
        found += [_draw(both, first, rng, 3, weight, apart=True) for both, first in pairs]
    told_points, off, asked, truth, weights = zip(*found, strict=True)
    each = [np.full(len(one), weight / len(one) / len(groups)) for one, weight in zip(truth, weights, strict=True)]
    return Draws(_filled(told_points), _padded(off), _filled(asked), _padded(truth), _padded(each))


def _draw(group: Told, first: int, rng: np.random.Generator, runs: int, weight: float, *, apart: bool = False) -> Drawn:
    """Told ones are among the `first` rows; asked are some others, or, `apart`, those after the first."""
    is_told = np.isin(group.points.run, rng.choice(first, min(runs, first - 1), replace=False))
    others = np.flatnonzero(group.points.run >= first if apart else ~is_told)
    asked = rng.permutation(others)[:ASKED]
    told_points = renumbered(group.points.take(is_told))
    return told_points, group.off[is_told], group.points.take(asked), group.off[asked], weight


def _filled(many: Sequence[Points]) -> Points:
    return Points(*(_padded([getattr(one, name) for one in many]) for name in Points.__slots__))


def _padded(many: Sequence[Array]) -> torch.Tensor:
    """Arrays of different lengths as one, zeros after the end of each."""
    most = max(len(one) for one in many)
    widths = [[(0, most - len(one))] + [(0, 0)] * (one.ndim - 1) for one in many]
    return torch.as_tensor(np.array([np.pad(one, width) for one, width in zip(many, widths, strict=True)]))


def fit(groups: Sequence[Told], steps: int = STEPS) -> Prior:
    """The prior under which rows that are not told come out likeliest, by those that are."""
    torch.set_default_dtype(torch.float64)
    start = {name: torch.tensor(value) for name, value in START.items()}
    free = {name: (torch.logit(value) if name in SHARES else value.log()) for name, value in start.items()}
    first = {name: value.clone() for name, value in free.items()}
    learned = [value.requires_grad_() for name, value in free.items() if name not in FIXED]
    search = torch.optim.Adam(learned, lr=RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(search, steps)
    drawn = draws(groups)
    for _ in range(steps):
        search.zero_grad()
        prior = _prior(free)
        hold = torch.stack([((free[name] - first[name]) ** 2).sum() for name in free]).sum()
        (_loss(prior, drawn) + HOLD * hold / len(groups)).backward()
        search.step()
        schedule.step()
    with torch.no_grad():
        prior = _prior(free)
    found = Prior(**{one.name: getattr(prior, one.name).detach().numpy() for one in fields(Prior)})
    return _settled(found, groups)


def _prior(free: dict[str, torch.Tensor]) -> Prior:
    values: dict[str, Any] = {n: (torch.sigmoid(v) if n in SHARES else v.exp()) for n, v in free.items()}
    return Prior(**values)


def _loss(prior: Prior, drawn: Draws) -> torch.Tensor:
    """Minus the logarithm of how likely asked figures are, and their errors; mean over groups."""
    mean, variance = Posterior(prior, drawn.told, drawn.off, torch).at(drawn.asked)
    surprise = (drawn.truth - mean) ** 2 / variance
    each = 0.5 * variance.log() + 0.5 * (FREEDOM + 1.0) * torch.log1p(surprise / FREEDOM)
    error = torch.sqrt((drawn.truth - mean) ** 2 + ROUND**2)
    found: torch.Tensor = (drawn.weight * (each + ERROR * error)).sum()
    return found


def _settled(prior: Prior, groups: Sequence[Told]) -> Prior:
    """With the width under which intervals hold nine in ten, groups alike."""
    scaled, weights = [], []
    rng = np.random.default_rng(1)
    for group in groups:
        for _ in range(DRAWS):
            is_told = np.isin(group.points.run, rng.choice(group.rows, min(3, group.rows - 1), replace=False))
            there = Posterior(prior, renumbered(group.points.take(is_told)), group.off[is_told])
            mean, variance = there.at(group.points.take(~is_told))
            scaled.append(np.abs(group.off[~is_told] - mean) / np.sqrt(variance))
            weights.append(np.full(len(mean), 1.0 / len(mean)))
    reach = weighted_quantile(np.concatenate(scaled), np.concatenate(weights), COVERED)
    return Prior.of(prior.to_dict() | {"width": [reach / NORMAL]})


def _fitted(task: tuple[Path, Path, int | None]) -> dict[str, Any]:
    """The prior on all groups, or without those of a fold."""
    data, figures, left_out = task
    torch.set_num_threads(1)
    groups = told(read(data), figures)
    return fit([one for one, k in zip(groups, folds(groups), strict=True) if k != left_out]).to_dict()


def main() -> None:
    """Fit, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("figures", type=Path)
    parser.add_argument("--data", type=Path, default=None, help="corpus folder (default: PIPEWAVE_DATA)")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--write", action="store_true", help="write the prior that ships, and those that are scored")
    options = parser.parse_args()
    tasks = [(options.data or corpus(), options.figures, left_out) for left_out in (None, *range(FOLDS))]
    with ProcessPoolExecutor(options.workers) as pool:
        shipped, *without = pool.map(_fitted, tasks)
    print(json.dumps(shipped, indent=1))
    if options.write:
        write(LEFT_OUT, without)
        ship(FILE, shipped)


if __name__ == "__main__":
    main()

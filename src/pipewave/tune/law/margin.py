"""What a choice starts from, and how large a predicted gain it takes to leave it: a decision about the loss to expect.

A choice starts from what was fastest at the nearest anchor, which was measured, and leaves it for a predicted gain of
`MARGINS[0]`. It starts elsewhere (from the default, or from the one configuration that does best over the anchors), or
asks for more, or never leaves, where that saves losses at anchors left out, each predicted, and its bases found, by
the others: by `SURE` standard errors of the mean, for a search over few anchors finds something by chance. Where
predictions have no ground, because loads are hidden, that is so, and the best of what is measured runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipewave.tune.law.anchors import Floats, Ints

FOLDS = 5  # parts of the anchors, each left out once
MARGINS = tuple(step / 100 for step in range(2, 21))  # tried, of log µs; usually the first
ALWAYS = 3.0  # a margin that no prediction exceeds
NOT_TIMED = 0.7  # loss of a configuration that was not timed, for it could not win
SURE = 2.0  # standard errors of the mean loss that another start must save


def folds(count: int) -> list[tuple[Ints, Ints]]:
    """Return (left out, the rest) of `count` anchors, each left out once."""
    part = np.random.default_rng(0).permutation(count) % FOLDS
    return [(np.flatnonzero(part == one), np.flatnonzero(part != one)) for one in range(FOLDS) if np.any(part == one)]


@dataclass(frozen=True, slots=True)
class Base:
    """What choices start from: configuration `best` [n] of the nearest of log sizes `at` [n, d]; one for all if n = 1.
    The default where there is no base.
    """

    at: Floats
    best: Ints

    def of(self, logs: Floats) -> Ints:
        """The base [s] of launches at log sizes [s, d]."""
        return np.asarray(self.best[np.abs(logs[:, None] - self.at[None]).sum(axis=2).argmin(axis=1)])


def one_for_all(us: Floats) -> int:
    """The configuration that loses least over launches [s, c]."""
    return int(_lost(us).mean(axis=0).argmin())


def _lost(us: Floats) -> Floats:
    lost = np.log(us / np.nanmin(us, axis=1, keepdims=True))
    worst = np.nanmax(lost, axis=1, keepdims=True)
    return np.asarray(np.where(np.isfinite(lost), lost, np.maximum(worst, NOT_TIMED)))


def bases(logs: Floats, us: Floats) -> tuple[Base, Base]:
    """One configuration for all launches [s, c], and the best of the nearest: over all launches of the same sizes."""
    lost = _lost(us)
    at, which = np.unique(logs, axis=0, return_inverse=True)
    same = np.zeros((len(at), us.shape[1]))
    np.add.at(same, which.reshape(-1), lost)
    return Base(logs[:1], np.array([one_for_all(us)])), Base(at, same.argmin(axis=1))


def decided(us: Floats, predicted: Floats, bases_at: Sequence[Ints]) -> tuple[int, float]:
    """The number of a base and the margin to leave it by, at anchors left out. `us` [s, c] µs; `predicted` [s, c] log
    µs, which choices go by; `bases_at`: bases [s], the usual one last.
    """
    row, lost = np.arange(len(us)), np.log(us / np.nanmin(us, axis=1, keepdims=True))
    lost = np.where(np.isfinite(lost), lost, NOT_TIMED)
    losses = {(number, by): lost[row, with_margin(predicted, base, by).argmin(axis=1)]
              for number, base in enumerate(bases_at) for by in (*MARGINS, ALWAYS)}  # fmt: skip
    usual = len(bases_at) - 1, MARGINS[0]

    def saved(tried: tuple[int, float]) -> float:
        each = losses[usual] - losses[tried]
        return float(each.mean() - SURE * each.std() / np.sqrt(len(each)))

    best = max(losses, key=saved)
    return best if saved(best) > 0 else usual


def with_margin(log_us: Floats, default: Ints, by: float) -> Floats:
    """Return log µs [s, c] with the default's [s] lowered."""
    out = log_us.copy()
    out[np.arange(len(out)), default] -= by
    return out

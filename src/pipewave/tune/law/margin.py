"""What to fall back on, and how large a predicted gain it takes to leave it: a decision about the loss to expect.

A choice starts from a base: the default, the one configuration that does best over the anchors, or what was fastest at
the nearest anchor. It leaves the base where predictions promise more than a margin. Base and margin are those with the
least mean loss at anchors left out, each predicted, and its bases found, by the others; among those only at which few
enough run slower than with the default. Where predictions have no ground the largest margin wins, which keeps to the
base. Where the load of a launch is not known, predictions of anchors left out do not know it either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipewave.tune.law.launch_counts import family
from pipewave.tune.space import space

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
SLOWER = 0.02  # a choice is slower than the default from here on
FEW, FEWER = 0.02, 0.01  # share of left-out anchors that may be; where loads are not known, for they vary more
FOLDS = 5  # parts of the anchors, each left out once
MARGINS = tuple(step / 100 for step in range(2, 21))  # tried, of log µs
ALWAYS = 3.0  # a margin that no prediction exceeds
NOT_TIMED = 0.7  # loss of a configuration that was not timed, for it could not win
# Loss in all that must be saved by another base than the default, and by one that is never left: a search over few
# anchors finds something by chance.
OTHER_BASE, NEVER_LEFT = 0.12, 0.25


def defaults(kernel: str, config: Mapping[str, Ints], shape: Mapping[str, NDArray[np.generic]]) -> Ints:
    """Return the number [s] of the default configuration at shapes given as columns."""
    of, kind = space(kernel), family(kernel)
    position = {row: i for i, row in enumerate(zip(*(values.tolist() for values in config.values()), strict=True))}
    constant = {"head_dim": int(kernel.rsplit("_", 1)[1])} if kind in ("prefill", "decode") else {}
    rows = zip(*(np.asarray(values).reshape(-1).tolist() for values in shape.values()), strict=True)
    return np.array([position[of.default(dict(zip(shape, row, strict=True)) | constant)] for row in rows])


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
        if len(self.best) == 1:
            return np.broadcast_to(self.best, len(logs))
        return self.best[np.abs(logs[:, None] - self.at[None]).sum(axis=2).argmin(axis=1)]


def bases(logs: Floats, us: Floats) -> tuple[Base, Base]:
    """One configuration for all launches [s, c], and the fastest of the nearest."""
    lost = np.log(us / np.nanmin(us, axis=1, keepdims=True))
    worst = np.nanmax(lost, axis=1, keepdims=True)
    mean = np.where(np.isfinite(lost), lost, np.maximum(worst, NOT_TIMED)).mean(axis=0)
    return Base(logs[:1], np.array([mean.argmin()])), Base(logs, np.nanargmin(us, axis=1))


def decided(
    us: Floats, predicted: Floats, default: Ints, others: Sequence[Ints], most: float = FEW
) -> tuple[int, float]:
    """The number of a base (0: the default, then `others`, each [s]) and the margin with the least mean loss.

    `us` [s, c], `predicted` [s, c]: log µs of anchors left out, which choices go by. A share of `most` may be slower
    than the default; one anchor may always be, for a disturbed launch among few would otherwise forbid every choice.
    """
    row, most = np.arange(len(us)), max(most, 1 / len(us))
    slower, lost = is_slower(us, default), np.log(us / np.nanmin(us, axis=1, keepdims=True))
    lost = np.where(np.isfinite(lost), lost, NOT_TIMED)
    tried = []
    for number, base in enumerate((default, *others)):
        for by in (*MARGINS, ALWAYS):
            chosen = with_margin(predicted, base, by).argmin(axis=1)
            share = float(slower[row, chosen].mean())
            doubt = (OTHER_BASE * (number > 0) + NEVER_LEFT * (by == ALWAYS)) / len(us)
            loss = float(lost[row, chosen].mean()) + doubt
            tried.append((max(share - most, 0.0), loss, number, by))
    return min(tried)[2:]


def is_slower(us: Floats, default: Ints) -> NDArray[np.bool_]:
    """Whether each configuration [s, c] is slower than the default [s]; not where either was not timed."""
    return np.asarray(us > (1 + SLOWER) * us[np.arange(len(us)), default][:, None])


def with_margin(log_us: Floats, default: Ints, by: float) -> Floats:
    """Return log µs [s, c] with the default's [s] lowered."""
    out = log_us.copy()
    out[np.arange(len(out)), default] -= by
    return out

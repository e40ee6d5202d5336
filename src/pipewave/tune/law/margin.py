"""When to leave the default: only for a predicted gain that exceeds the error which anchors left out show.

The margin is the smallest at which few enough anchors run slower than with the default, each predicted by what was
fitted to the others. Where the load of a launch is not known, that prediction does not know it either, so that the
margin covers what the load may be.
"""

from __future__ import annotations

from collections.abc import Mapping

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


def margin(slower: NDArray[np.bool_], predicted: Floats, default: Ints, most: float = FEW) -> float:
    """Return the least margin at which choices are slower than the default at a share of `most` of the anchors.

    One anchor may always be: a disturbed launch among few would otherwise forbid every choice. Where no margin keeps
    to that, the least of those with the least share: a wider one costs regret and protects nothing.
    `predicted` [s, c]: log µs of anchors left out, which choices go by; `slower` [s, c]: as `is_slower` says.
    """
    row, most = np.arange(len(predicted)), max(most, 1 / len(predicted))
    share = [np.mean(slower[row, with_margin(predicted, default, by).argmin(axis=1)]) for by in MARGINS]
    return next((by for by, few in zip(MARGINS, share, strict=True) if few <= most), MARGINS[int(np.argmin(share))])


def is_slower(us: Floats, default: Ints) -> NDArray[np.bool_]:
    """Whether each configuration [s, c] is slower than the default [s]; not where either was not timed."""
    return np.asarray(us > (1 + SLOWER) * us[np.arange(len(us)), default][:, None])


def with_margin(log_us: Floats, default: Ints, by: float) -> Floats:
    """Return log µs [s, c] with the default's [s] lowered."""
    out = log_us.copy()
    out[np.arange(len(out)), default] -= by
    return out

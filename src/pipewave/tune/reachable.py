"""Which configurations a range of shapes can reach, and how few would do: to compile ahead, and to ship less."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipewave.tune.law.launch_counts import check_shape

Floats = NDArray[np.float64]
Config = Mapping[str, int]


def runs(choose: Callable[[int], Config], points: list[int]) -> list[tuple[int, int, Config]]:
    """Merge points of equal choice into (first, last, configuration)."""
    found: list[tuple[int, int, Config]] = []
    for point in points:
        config = choose(point)
        if found and found[-1][2] == config:
            found[-1] = found[-1][0], point, config
        else:
            found.append((point, point, config))
    return found


def reachable(
    table: Any, vary: str, points: range, **fixed: int
) -> dict[tuple[tuple[str, int], ...], list[tuple[int, int]]]:
    """Return every configuration that `table.select` can choose while one shape field varies, with its intervals.

    Args:
        vary: the field that varies, such as `m` or `kv_len`.
        points: its values; all are tried, so a wide range of attention lengths wants a step.
        fixed: the other fields.

    Raises:
        MissingField, UnknownField: together they are not the kernel's shape.
    """
    check_shape(table.kernel, (vary, *fixed))
    out: dict[tuple[tuple[str, int], ...], list[tuple[int, int]]] = {}
    for first, last, config in runs(lambda value: table.select(**fixed, **{vary: value}), list(points)):
        out.setdefault(tuple(config.items()), []).append((first, last))
    return out


def smallest_set(us: Floats, worst: float) -> tuple[list[int], float]:
    """Pick few configurations so that the best of them is never more than `worst` over the optimum.

    Greedy: each step takes the configuration that leaves the least total excess over the bound. `us` [s, c] µs of
    shapes × configurations; returns (configurations, worst regret reached).
    """
    lost = us / np.nanmin(us, axis=1, keepdims=True) - 1
    lost = np.where(np.isfinite(lost), lost, np.inf)
    chosen: list[int] = []
    left = np.full(len(lost), np.inf)
    while left.max() > worst and len(chosen) < lost.shape[1]:
        excess = np.minimum(np.minimum(left[:, None], lost), 10.0)
        score = np.maximum(excess - worst, 0).sum(axis=0) + 1e-6 * excess.sum(axis=0)
        chosen.append(int(score.argmin()))
        left = np.minimum(left, lost[:, chosen[-1]])
    return chosen, float(left.max())


def trade_off(us: Floats, bounds: tuple[float, ...] = (0.02, 0.05, 0.1, 0.2)) -> list[dict[str, float]]:
    """Return how many configurations each worst-case regret needs."""
    made = [(bound, *smallest_set(us, bound)) for bound in bounds]
    return [{"bound": bound, "configurations": len(chosen), "worst_regret": reached} for bound, chosen, reached in made]

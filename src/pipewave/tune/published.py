"""WaveTune as published (arXiv 2604.10187), by name: a baseline kept as it was described, not improved.

Macro parameters set the grid, micro ones do not. For each macro and wave w = ⌈G / SMs⌉ (one block an SM), the fastest
micro's time is fitted by ordinary least squares: T = αGL + βG + γL + δ. At run time every macro's law is evaluated,
the least wins, and its micro is that of the nearest profiled L. Grouped GEMM is profiled as a single group and
attention with as many KV heads as heads, where such anchors were recorded.

Not stated in the paper's summaries, and chosen here: distance of L in logarithm, ties to the first, a wave never
profiled is read as so many times the nearest profiled one.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipewave.tune.mapping import Values, mapper
from pipewave.tune.measured import Measured

Floats = NDArray[np.float64]
MACRO = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "SPLITS")
LEAST = 5  # samples of a bucket: one more than the coefficients


@dataclass(frozen=True, slots=True)
class Bucket:
    """One (macro, wave): θ = (α, β, γ, δ), its R², and the best configuration at each profiled L, ascending."""

    theta: tuple[float, float, float, float]
    r2: float
    samples: int
    anchors: tuple[tuple[float, int], ...]


@dataclass(frozen=True, slots=True)
class Published:
    """Coefficient table and micro table of one kernel; `macros` are parameter dicts in table order."""

    kernel: str
    sms: int
    macros: tuple[dict[str, int], ...]
    buckets: tuple[dict[int, Bucket], ...]
    waves: tuple[list[int], ...]

    def select(self, shape: Values) -> int:
        """Return the number of the chosen configuration."""
        work = mapper(self.kernel)
        best, least = None, math.inf
        for macro, buckets, waves in zip(self.macros, self.buckets, self.waves, strict=True):
            made = work(shape, macro)
            grid, loop = made.blocks, made.trips
            wave = -(-grid // self.sms)
            known = nearest(waves, wave)
            bucket, scale = buckets[known], wave / known
            a, b, c, d = bucket.theta
            us = (a * grid / scale * loop + b * grid / scale + c * loop + d) * scale
            if us < least:
                best, least, at = bucket, us, loop
        assert best is not None
        return min(best.anchors, key=lambda anchor: abs(math.log(anchor[0] / at)))[1]


def nearest(values: list[int], wanted: float) -> int:
    """Return the nearest of ascending values, the lower of two as near."""
    i = bisect_left(values, wanted)
    some = values[max(0, i - 1) : i + 1]
    return min(some, key=lambda value: abs(value - wanted))


def fit(anchors: list[Measured], sms: int) -> Published:
    """Fit every bucket that has enough samples to shapes of several roles."""
    first = anchors[0]
    names = [name for name in MACRO if name in first.config]
    columns = np.stack([first.config[name] for name in names], axis=1)
    macros, owner = np.unique(columns, axis=0, return_inverse=True)
    made = [_macro(anchors, dict(zip(names, row.tolist(), strict=True)), np.flatnonzero(owner == i), sms)
            for i, row in enumerate(macros)]  # fmt: skip
    kept = [(macro, buckets) for macro, buckets in made if buckets]
    return Published(first.kernel, sms, tuple(macro for macro, _ in kept), tuple(b for _, b in kept),
                     tuple(sorted(b) for _, b in kept))  # fmt: skip


def _macro(
    anchors: list[Measured], macro: dict[str, int], members: NDArray[np.int64], sms: int
) -> tuple[dict[str, int], dict[int, Bucket]]:
    rows: dict[int, list[tuple[float, float, float, int]]] = defaultdict(list)
    for some in anchors:
        us = some.us[:, members]
        work = mapper(some.kernel)(some.columns(), macro | {"BLOCK_M": macro.get("BLOCK_M", 1)})
        seen = np.asarray(np.isfinite(us).all(axis=1))
        best = np.where(seen[:, None], us, 0).argmin(axis=1)
        grid = _column(work.blocks, len(us), members)
        loop = _column(work.trips, len(us), members)
        for s in np.flatnonzero(seen):
            rows[int(-(-grid[s] // sms))].append((grid[s], loop[s], us[s, best[s]], int(members[best[s]])))
    return macro, {wave: bucket(some) for wave, some in rows.items() if len(some) >= LEAST}


def _column(value: Any, count: int, members: NDArray[np.int64]) -> Floats:
    value = np.asarray(value, float)
    if value.ndim == 2 and value.shape[1] > 1:  # routed rows are known for each configuration
        value = value[:, members[:1]]
    return np.broadcast_to(value.reshape(-1) if value.size > 1 else value.reshape(()), (count,)).astype(float)


def bucket(rows: list[tuple[float, float, float, int]]) -> Bucket:
    """Fit one bucket by ordinary least squares on µs and remember the best configuration at each L."""
    grid, loop, us = (np.array([row[i] for row in rows]) for i in range(3))
    x = np.stack([grid * loop, grid, loop, np.ones_like(grid)], axis=1)
    theta, *_ = np.linalg.lstsq(x, us, rcond=None)
    left = us - x @ theta
    spread = float(np.sum((us - us.mean()) ** 2))
    r2 = 1 - float(np.sum(left**2)) / spread if spread > 0 else 1.0
    votes: dict[float, list[int]] = defaultdict(list)
    for row in rows:
        votes[row[1]].append(row[3])
    anchors = tuple((at, max(set(some), key=lambda c: (some.count(c), -c))) for at, some in sorted(votes.items()))
    a, b, c, d = theta.tolist()
    return Bucket((a, b, c, d), r2, len(rows), anchors)


def r2_table(table: Published) -> dict[str, Any]:
    """R² by bucket: the share above the published 0.998, quantiles, and every bucket."""
    every = [
        {"macro": macro, "wave": wave, "samples": b.samples, "r2": b.r2}
        for macro, buckets in zip(table.macros, table.buckets, strict=True)
        for wave, b in sorted(buckets.items())
    ]
    values = np.array([row["r2"] for row in every])
    return {"buckets": len(every), "median": float(np.median(values)), "p10": float(np.quantile(values, 0.1)),
            "share_above_0.998": float(np.mean(values > 0.998)), "every": every}  # fmt: skip

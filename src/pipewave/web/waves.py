"""How many rounds of thread blocks a kernel takes: tasks over places, from the family's own schedule."""

from __future__ import annotations

import numpy as np

from pipewave.kernels.base import Columns
from pipewave.kernels.gemm.machine import machine
from pipewave.kernels.gemm.tiles import tiling
from pipewave.physics.arith import ARRAY
from pipewave.physics.demand import Array
from pipewave.prediction.batch import Answers


def of(family: str, cols: Columns, found: Answers) -> Array:
    """Tasks / (resident thread blocks × SMs) of each call; NaN where the family counts none."""
    features = found.analysis.features
    if family == "gemm":
        return _gemm(cols, found)
    if family in ("attention", "mla"):
        return np.asarray(np.exp2(features["waves"]))
    if family == "fused_moe":
        return np.asarray(np.exp2(features["ruled_per_sm"]))
    return np.full(len(found.bound), np.nan)


def _gemm(cols: Columns, found: Answers) -> Array:
    """Of one tile for all calls, so that steps are steps of the size and not of the choice: the known tile, else the
    candidate that does best over all of them. One is resident on an SM."""
    m, n, k = cols["m"], cols["n"], cols["k"]
    at = machine(found.ctx)
    known = found.ctx.option("tile")
    if known:
        return np.asarray(np.ceil(m / known[0]) * np.ceil(n / known[1]) / at.sms)
    tiles = tiling(m, n, k, at, ARRAY)
    best = int(np.argmin(np.log(np.stack(tiles.seconds)).sum(axis=1)))
    return np.asarray(tiles.per_sm[best])

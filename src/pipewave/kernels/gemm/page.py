"""The first view of a matrix product, and its waves."""

from __future__ import annotations

import numpy as np

from pipewave.kernels.base import Analysis, Columns, Context
from pipewave.kernels.faces import Page
from pipewave.kernels.gemm.machine import machine
from pipewave.kernels.gemm.tiles import tiling
from pipewave.physics.arith import ARRAY
from pipewave.physics.demand import Array


def waves(cols: Columns, ctx: Context, analysis: Analysis) -> Array:
    """Of one tile for all calls, so that steps are steps of the size and not of the choice: the known tile, else the
    candidate that does best over all of them. One is resident on an SM."""
    m, n, k = cols["m"], cols["n"], cols["k"]
    at = machine(ctx)
    known = ctx.option("tile")
    if known:
        return np.asarray(np.ceil(m / known[0]) * np.ceil(n / known[1]) / at.sms)
    tiles = tiling(m, n, k, at, ARRAY)
    best = int(np.argmin(np.log(np.stack(tiles.seconds)).sum(axis=1)))
    return np.asarray(tiles.per_sm[best])


PAGE = Page({"n": 4096, "k": 4096}, {"field": "m", "from": 1, "to": 8192}, waves)

"""Layers that were measured differently from what their rows say, as the rules `moe_ran_gated` and `moe_ran_unshared`.

A row is predicted as it was measured; lower bounds hold for the layer as it is named. Nets trained on corrected rows
(`train.corpus.as_run`) make both rules unnecessary.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipewave.kernels.base import Columns, Context


def gated(cols: Columns, ctx: Context) -> Any:
    """Whether each layer ran with three matrices."""
    return np.ones_like(cols["gated"]) if ctx.rule("moe_ran_gated") else cols["gated"]


def unshared(cols: Columns, ctx: Context, engine: str) -> NDArray[np.bool_]:
    """Whether each layer's tokens chose among the experts of the rank alone."""
    ran = ctx.rule("moe_ran_unshared", engine=engine)
    if ran is None:
        return np.zeros(len(cols["ep"]), bool)
    shared = cols["ep"] > 1
    if ran["all"]:
        return np.asarray(shared)
    return np.asarray(shared & ((cols["experts"] <= ran["experts"]) | (cols["inter"] == ran["inter"])))

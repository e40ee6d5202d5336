"""How the collectors of AIConfigurator ran layers differently from what their rows say (inferred from the rows).

A row is predicted as it was measured; lower bounds hold for the layer as it is named.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipewave.kernels.base import Columns, Context
from pipewave.software import stacks

# First versions that measure ungated experts with two matrices; the rows of earlier ones read half as many bytes again
# as two matrices hold, at DRAM speed.
UNGATED_SINCE = {"sglang": (0, 5, 14), "vllm": (0, 24)}
# Versions whose SGLang collector let every token that enters a rank spend all its choices there: with balanced routing
# two, four and eight ranks take as long as one. Later rows of some models are still of that kind.
UNSHARED = {"triton": ((0, 5, 10), (0, 5, 14)), "marlin": ((0,), (0, 5, 14))}
UNSHARED_EXPERTS, UNSHARED_WIDTH = 8, 704


def gated(cols: Columns, ctx: Context) -> Any:
    """Whether each layer ran with three matrices."""
    since = UNGATED_SINCE.get(ctx.framework, ())
    if ctx.protocol != "graph" or stacks.version(ctx.stack) >= since:
        return cols["gated"]
    return np.ones_like(cols["gated"])


def unshared(cols: Columns, ctx: Context, engine: str) -> NDArray[np.bool_]:
    """Whether each layer's tokens chose among the experts of the rank alone."""
    if ctx.protocol != "graph" or ctx.framework != "sglang" or engine not in UNSHARED:
        return np.zeros(len(cols["ep"]), bool)
    first, fixed = UNSHARED[engine]
    special = (cols["experts"] <= UNSHARED_EXPERTS) | (cols["inter"] == UNSHARED_WIDTH)
    always = first <= stacks.version(ctx.stack) < fixed
    return np.asarray((cols["ep"] > 1) & (special | always))

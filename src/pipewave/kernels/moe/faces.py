"""What other rooms need to know of routed experts."""

from __future__ import annotations

import numpy as np

from pipewave.kernels.base import Analysis, Columns, Context
from pipewave.kernels.faces import Faces, Page
from pipewave.kernels.moe.profile import PROFILE
from pipewave.kernels.moe.rows import ROWS
from pipewave.physics.demand import Array


def waves(cols: Columns, ctx: Context, analysis: Analysis) -> Array:
    """Rounds of the tiles that the stack's rule cuts."""
    return np.asarray(np.exp2(analysis.features["ruled_per_sm"]))


PAGE = Page(
    {"experts": 128, "topk": 8, "hidden": 2048, "inter": 768}, {"field": "tokens", "from": 1, "to": 4096}, waves
)
FACES = Faces(PROFILE, ROWS, PAGE)

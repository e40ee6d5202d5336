"""The first views of attention, plain and latent, and their waves."""

from __future__ import annotations

import numpy as np

from pipewave.kernels.base import Analysis, Columns, Context
from pipewave.kernels.faces import Page
from pipewave.physics.demand import Array

LENGTHS = {"q_lens": [1] * 32, "kv_lens": [2048] * 32}
SWEEP = {"field": "kv_lens", "from": 128, "to": 32768}


def waves(cols: Columns, ctx: Context, analysis: Analysis) -> Array:
    """Rounds of the thread blocks, as the features have them."""
    return np.asarray(np.exp2(analysis.features["waves"]))


PAGE = Page({**LENGTHS, "heads": 32, "kv_heads": 8, "head_dim": 128}, SWEEP, waves)
LATENT = Page({**LENGTHS, "heads": 16, "phase": "generation"}, SWEEP, waves)

"""How many rounds of thread blocks a kernel takes: tasks over places, from the family's own schedule."""

from __future__ import annotations

import numpy as np

from pipewave.kernels.base import Columns, Family
from pipewave.physics.demand import Array
from pipewave.prediction.batch import Answers


def of(family: Family, cols: Columns, found: Answers) -> Array:
    """Tasks / (resident thread blocks × SMs) of each call; NaN where the family counts none."""
    if family.page is None or family.page.waves is None:
        return np.full(len(found.bound), np.nan)
    return np.asarray(family.page.waves(cols, found.ctx, found.analysis))

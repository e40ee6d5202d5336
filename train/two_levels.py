"""What covers the next unit, of which nobody has rows: a card, an architecture, a version of a software on a GPU.

Rows are no sample of units. Each unit needs a multiple of its own; these are taken as log-normal, and rows about a
unit's own multiple as alike in all. Few units tell little of how far they differ: what they tell is weighed with what
the units of all nets tell (a scaled inverse chi-squared prior of the variance), and the law of the next unit's is then
Student's t (Gelman et al. 2013, section 3.3). The result may lie beyond the worst unit, as no quantile of rows could.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
DRAWS = 200  # quantiles of the next unit's multiple
SPREAD, FREEDOM = 0.18, 2.0  # how far log multiples differ, and the units that this counts as (`studies.unit_spread`)
LEAST = 1e-6  # of what a unit needs, so that it has a logarithm


def weighted_quantile(values: Floats, weight: Floats, level: float) -> float:
    """The least value below or at which `level` of the weight lies."""
    order = np.argsort(values)
    reached = np.cumsum(weight[order])
    at = int(np.searchsorted(reached, level * reached[-1] * (1.0 - 1e-12)))
    return float(values[order][min(at, len(values) - 1)])


def for_next_unit(needed: Floats, unit: NDArray[np.int64], weight: Floats, level: float) -> float:
    """The multiple that is expected to hold `level` of the rows of a unit like these.

    `needed`: the multiple that holds each row.
    """
    rows = [unit == one for one in np.unique(unit)]
    own = np.log([max(weighted_quantile(needed[at], weight[at], level), LEAST) for at in rows])
    about = np.concatenate([np.log(np.maximum(needed[at], LEAST)) - one for at, one in zip(rows, own, strict=True)])
    alike = np.concatenate([weight[at] / weight[at].sum() for at in rows])
    return float(np.exp(own.mean() + _level_of_sums(about, alike, _ahead(own), level)))


def _ahead(own: Floats) -> Floats:
    """Quantiles of how far the next unit's log multiple is from the mean of these."""
    from scipy.stats import t as student  # only fits need it: tests of scores run without it

    freedom = FREEDOM + len(own) - 1.0
    spread = np.sqrt((FREEDOM * SPREAD**2 + ((own - own.mean()) ** 2).sum()) / freedom)
    scale = spread * np.sqrt(1.0 + 1.0 / len(own))
    return np.asarray(student.ppf((np.arange(DRAWS) + 0.5) / DRAWS, freedom) * scale)


def _level_of_sums(rows: Floats, weight: Floats, units: Floats, level: float) -> float:
    """That quantile of the sum of a row's and a unit's deviation, which are independent."""
    order = np.argsort(rows)
    rows, reached = rows[order], np.cumsum(weight[order]) / weight.sum()
    low, high = float(rows[0] + units[0]), float(rows[-1] + units[-1])
    for _ in range(40):
        middle = 0.5 * (low + high)
        at = np.searchsorted(rows, middle - units, "right")
        inside = float(np.mean(np.where(at > 0, reached[np.maximum(at, 1) - 1], 0.0)))
        low, high = (low, middle) if inside >= level else (middle, high)
    return high

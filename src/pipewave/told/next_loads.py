"""`pipewave tell --next`: loads whose measurement narrows most what is not known of a deployment's other loads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from pipewave.errors import BadInput, PipewaveError
from pipewave.physics.demand import Array
from pipewave.published.cases import MEASURED, Case
from pipewave.told.answers import ENERGY, point
from pipewave.told.figures import Figures, figures
from pipewave.told.posterior import NORMAL, Points, left_open
from pipewave.told.tell import Told

PROPOSED = 3
CONCURRENCY = (1, 8, 32, 128)
STRETCHED = ((1, 1), (4, 1), (1, 4))  # prompts and outputs, over those of the first told run


def next_loads(found: Told) -> list[dict[str, Any]]:
    """Loads to measure, the most telling first, each with half the 90 % interval in percent that is left once it and
    those before it are told: the mean over all loads that were weighed. BadInput where nothing told can be simulated.

    Chosen greedily: the variance that runs leave does not depend on what they find.
    """
    if found.learned is None:
        raise BadInput("next: none of the told runs can be simulated", field="next")
    prior, told = found.learned.posterior.prior, found.learned.posterior.told
    loads = list(_loads(found.measured[found.learned.runs[0]].case))
    points = [_points(one) for _, one in loads]
    every, chosen = Points.joined(points), list[int]()
    rows = []
    for _ in range(min(PROPOSED, len(loads))):
        left = {at: _half(prior, Points.joined([told, *(points[i] for i in (*chosen, at))]), every)
                for at in range(len(loads)) if at not in chosen}  # fmt: skip
        chosen.append(min(left, key=left.__getitem__))
        case = loads[chosen[-1]][0]
        load = {"isl": case.isl, "osl": case.osl, "concurrency": case.concurrency}
        rows.append(load | {"then ± %": round(left[chosen[-1]], 1)})
    return rows


def _loads(first: Case) -> Iterator[tuple[Case, Figures]]:
    """Closed loops of the deployment, without those that it cannot serve."""
    for prompt, output in STRETCHED:
        for flight in CONCURRENCY:
            isl, osl = prompt * (first.isl or 1024), output * (first.osl or 128)
            case = replace(first, isl=isl, osl=osl, concurrency=flight, requests=2 * flight, rate=None, arrivals=None,
                           mode="serve", told=())  # fmt: skip
            try:
                yield case, figures(case)
            except PipewaveError:
                continue


def _points(found: Figures) -> Points:
    """Its figures, as one run's."""
    names = [name for name in MEASURED if name in found.slopes and name != ENERGY]
    return Points.of([point(found, name, 0) for name in names])


def _half(prior: Any, told: Points, asked: Points) -> float:
    """Half the 90 % interval in percent, the mean of all figures."""
    deviations: Array = np.sqrt(left_open(prior, told, asked))
    return float(100 * np.expm1(NORMAL * float(prior.width[0]) * deviations).mean())

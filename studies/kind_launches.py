"""`python -m studies.kind_launches`: what a launch of vLLM costs, by prompts of models that no constant is fitted on.

Prompts beyond the captured sizes are launched kernel by kernel. Small layers wait for it, so their prompts tell the
cost (`launch_us`), which those of large dense models do not. Of the runs of `studies.kinds` on an H100 every model
counts alike; a cost is possible where its error is no worse than the least one by one standard error of their
difference over models. `train.step_fit` keeps the constant inside that range (`RANGES`).
"""

from __future__ import annotations

import numpy as np

from pipewave.physics.demand import Array
from studies.e2e_steps import Measured, measure_loads
from studies.kinds import as_measured, points, runner_of

COSTS = np.geomspace(5.0, 150.0, 69)  # µs, each 5 % above the one before
MOVES = 0.01  # a point tells the cost if its time moves by more between the ends


def errors(measured: Measured) -> Array:
    """Mean absolute errors of the prompts that wait for launches: [model, cost]."""
    real = np.array([point.measured_ms for point in measured.points])
    engine = as_measured()
    wrong = np.array([measured.predict_ms(engine.what_if(launch_us=float(cost))) / real - 1.0 for cost in COSTS])
    models = np.array([point.model for point in measured.points])
    tells = np.abs(wrong[-1] - wrong[0]) > MOVES
    tells &= np.array([point.phase == "prefill" for point in measured.points])
    return np.array(
        [np.abs(wrong[:, tells & (models == one)]).mean(1) for one in dict.fromkeys(models[tells].tolist())]
    )


def possible(found: Array) -> tuple[float, float, float]:
    """Least cost, most, and the one of the least error, in µs; `found`: [model, cost]."""
    worse = found - found[:, [found.mean(0).argmin()]]
    inside = COSTS[worse.mean(0) <= worse.std(0) / np.sqrt(len(worse))]
    return float(inside.min()), float(inside.max()), float(COSTS[found.mean(0).argmin()])


def main() -> None:
    """Print the range, and the error at its ends and in its middle."""
    found = errors(measure_loads(points(), runner_of))
    least, most, best = possible(found)
    print(f"{len(found)} models: {least:.1f} to {most:.1f} µs a launch")
    for cost in (COSTS[0], least, best, most, COSTS[-1]):
        print(f"{cost:6.1f} µs: prompts {100 * np.interp(cost, COSTS, found.mean(0)):.1f} % off")


if __name__ == "__main__":
    main()

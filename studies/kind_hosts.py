"""`python -m studies.kind_hosts`: measured steps of today's kinds, with the pace of each run's host told.

Each model of `studies.kinds` was started by itself on a shared machine, whose cores were more or less busy. A run's
host is told by `Engine.hosted` as users tell theirs (`step --host speed=...`): the factor that fits the other points of
its run which wait for the host, the point itself left out.
"""

from __future__ import annotations

import numpy as np

from pipewave.physics.demand import Array
from studies.e2e_steps import measure_loads
from studies.e2e_vllm import print_scores, score
from studies.kinds import as_measured, host_bound, points, runner_of

FACTORS = np.geomspace(0.4, 4.0, 47)


def told(errors: Array, owners: list[str], waits: Array) -> Array:
    """Error of each point with the factor that the others of its owner call for [point]; `errors`: [factor, point].

    A factor's score is the mean of absolute errors of the owner's other points that wait for the host; without such
    points it stays at what it is.
    """
    usual = errors[int(np.argmin(np.abs(FACTORS - 1.0)))].copy()
    for index, owner in enumerate(owners):
        others = [i for i, each in enumerate(owners) if each == owner and waits[i] and i != index]
        if others:
            usual[index] = errors[int(np.argmin(np.abs(errors[:, others]).mean(1))), index]
    return usual


def main() -> None:
    """Print errors by phase and model, untold and told."""
    chosen = points()
    engine = as_measured()
    real = np.array([point.measured_ms for point in chosen])
    loads = measure_loads(chosen, runner_of)
    errors = np.array([100 * (loads.predict_ms(engine.on_host(f, f)) / real - 1) for f in FACTORS])
    waits = host_bound(loads, engine)
    owners = [f"{point.model} {point.phase}" for point in chosen]
    usual = 100 * (loads.predict_ms(engine) / real - 1)
    print_scores({name: score(chosen, part) for name, part in
                  {"untold": usual, "host told": told(errors, owners, waits)}.items()})  # fmt: skip


if __name__ == "__main__":
    main()

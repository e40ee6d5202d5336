"""How much slower the kernels of a traced step run because the step, its waits included, meets the power limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from pipewave.calls.families import Call
from pipewave.gpus import GPU
from pipewave.physics.arith import SCALAR
from pipewave.physics.energy import limited_us
from pipewave.prediction.answers import Prediction, Predictions
from pipewave.step.power import heat_us
from pipewave.traces.group import Group, by_step


def paced(
    found: Predictions, calls: Sequence[Call], members: Sequence[Sequence[Group]], everything: Sequence[Group], gpu: GPU
) -> list[Prediction]:
    """Predictions of calls at the clocks their steps allow. `members`: the groups of each call, of `everything`.

    A call that several steps run takes the mean of them.
    """
    heat = heat_us(calls, found, gpu)
    kernels, energy = dict[int, float](), dict[int, float]()
    for index, groups in enumerate(members):
        for one in groups:
            step = one.head.step
            kernels[step] = kernels.get(step, 0.0) + float(found.latency_us[index])
            energy[step] = energy.get(step, 0.0) + float(heat[index])
    waits = {step: idle_us(groups) for step, groups in by_step(everything).items()}
    slower = {
        step: (limited_us(us + waits[step], energy[step], SCALAR) - waits[step]) / us for step, us in kernels.items()
    }
    factors = [float(np.mean([slower[one.head.step] for one in groups])) for groups in members]
    return [_slowed(one, factor) for one, factor in zip(found, factors, strict=True)]


def idle_us(groups: Sequence[Group]) -> float:
    """Time between a step's first and last kernel in which none of them ran, if they ran one after another."""
    kernels = [kernel for one in groups for kernel in one.kernels]
    first = min(kernel.start_us for kernel in kernels)
    last = max(kernel.start_us + kernel.duration_us for kernel in kernels)
    return max(last - first - sum(kernel.duration_us for kernel in kernels), 0.0)


def _slowed(one: Prediction, factor: float) -> Prediction:
    times = {name: factor * getattr(one, name) for name in ("latency_us", "low_us", "high_us", "ceiling_us")}
    return replace(one, **times)

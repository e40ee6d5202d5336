"""Watts bound a step before clocks do: how long the board needs to deliver what the calls of a step draw."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pipewave.calls.families import Call, Collective
from pipewave.gpus import GPU
from pipewave.physics.demand import Array
from pipewave.physics.energy import delivered_us
from pipewave.prediction.answers import Predictions

COLLECTIVE_SHARE = 0.8  # of what the board can deliver, drawn while a collective copies and spins


def heat_us(calls: Sequence[Call], found: Predictions, gpu: GPU) -> Array:
    """µs the board needs at its power limit to deliver the energy of each call, from their predictions.

    A collective draws by its time, not by its bytes: its SMs spin until the link has carried them.
    """
    waits = np.array([isinstance(call, Collective) for call in calls], bool)
    return np.where(waits, COLLECTIVE_SHARE * found.latency_us, delivered_us(found.joules, gpu))

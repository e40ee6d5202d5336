"""A board's power limit as a bound on time: joules wait for watts as bytes wait for a bus."""

from __future__ import annotations

import numpy as np

from pipewave.physics.demand import Array

SHARPNESS = 20.0  # of the bend from the sum of kernels to the power limit


def limited_us(kernel_us: Array, heat_us: Array) -> Array:
    """Time of kernels that take `kernel_us` at burst clocks when their energy takes `heat_us` to deliver."""
    longest = np.maximum(np.maximum(kernel_us, heat_us), 1e-9)
    parts = (kernel_us / longest) ** SHARPNESS + (heat_us / longest) ** SHARPNESS
    return np.asarray(longest * parts ** (1.0 / SHARPNESS))


def limited(kernel_us: float, heat_us: float) -> float:
    """`limited_us` of one step, in plain floats."""
    longest = max(kernel_us, heat_us)
    shorter = min(kernel_us, heat_us) / longest
    return float(longest * (1.0 + shorter**SHARPNESS) ** (1.0 / SHARPNESS))

"""Small pieces the families' base estimates share."""

from __future__ import annotations

import numpy as np

from pipewave.gpus import GPU
from pipewave.physics.demand import Array

# A kernel in a stream of kernels costs a fixed time and a number of SM cycles (baselines.md, section 7, insight 3).
LAUNCH_FIXED_S = 1.2e-6
LAUNCH_CYCLES = 2500.0


def launch_s(gpu: GPU, kernels: float = 1.0) -> float:
    """Seconds of start-up and retirement of `kernels` dependent kernels."""
    return kernels * (LAUNCH_FIXED_S + LAUNCH_CYCLES / (gpu.sustained_clock_mhz * 1e6))


def combine(first: Array, second: Array, power: float = 3.0) -> Array:
    """Overlap of two resources: the p-norm lies between the larger (perfect overlap) and the sum (none)."""
    largest = np.maximum(first, second)
    ratio = np.minimum(first, second) / np.maximum(largest, 1e-30)
    return np.asarray(largest * (1.0 + ratio**power) ** (1.0 / power))


def log2(values: Array) -> Array:
    """Base-2 logarithm, clipped away from zero."""
    return np.asarray(np.log2(np.maximum(values, 1e-12)))

"""Steps as an engine sees them, and what it adds to a kind of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipewave.physics.demand import Array


@dataclass(frozen=True, slots=True)
class Regime:
    """µs of a kind of step, or arrays over steps: waits between their kernels, host work beside the GPU, and what comes
    on top of both."""

    between_us: Any
    beside_us: Any
    after_us: Any


@dataclass(frozen=True, slots=True)
class Load:
    """Steps as an engine sees them, arrays over steps: µs of kernels and of their energy at the power limit, kernels,
    launches by the host, requests, rows of the dense kernels, whether a step replays one CUDA graph, the layers."""

    kernel_us: Array
    heat_us: Array
    nodes: Array
    launches: Array
    requests: Array
    rows: Array
    graph: NDArray[np.bool_]
    layers: Array

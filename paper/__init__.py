"""PipeWeave (arXiv 2601.14910, ISCA 2026) exactly as published, known defects included.

Kept apart from the rest of the library so that the two can be compared: its own hardware numbers, its own formulas,
its own estimator. Nothing outside this room depends on it. One file per kernel family says what a call asks of each
pipe (`Demand`); `demand.features` turns that into the 11 or 15 named features; `estimator` answers from weights.

    import paper
    paper.features("gemm_fp8", "H200", m=4096, n=4096, k=4096)      # dict by name
    paper.predict("gemm_fp8", "H200", m=4096, n=4096, k=4096)       # µs
"""

from __future__ import annotations

from paper.collectives import predict_collective
from paper.demand import Demand, Load
from paper.estimator import predict, trained
from paper.hardware import HARDWARE, Hardware, find, hardware_of
from paper.kernels import KERNELS, features, latency_us, overall_perf

__all__ = [
    "HARDWARE",
    "KERNELS",
    "Demand",
    "Hardware",
    "Load",
    "features",
    "find",
    "hardware_of",
    "latency_us",
    "overall_perf",
    "predict",
    "predict_collective",
    "trained",
]

"""Rough latencies that keep a plan affordable: a roofline at half of an H100's rates, never a published number."""

from __future__ import annotations

from pipewave.kernels import rows_of
from pipewave.measure.job import Case

FLOPS = {"bf16": 500e12, "fp16": 500e12, "fp8": 900e12, "fp8_block": 700e12, "int8": 900e12}
DRAM_BYTES_PER_S = 2.5e12
LAUNCH_S = 3e-6


def rough_us(case: Case) -> float:
    """Order-of-magnitude latency of a case in microseconds, for skipping long ones and for the ETA."""
    flops, bytes_moved = _work(case)
    seconds = max(flops / FLOPS[case.get("dtype", "bf16")], bytes_moved / DRAM_BYTES_PER_S)
    return (seconds + LAUNCH_S) * 1e6


def _work(case: Case) -> tuple[float, float]:
    rows = rows_of().get(str(case["kernel"]))
    return rows.work(case) if rows and rows.work else (0.0, float(case.get("bytes", 0)))

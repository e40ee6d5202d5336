"""Built-in measurement plans: how much each measures, and rough latencies that keep it affordable."""

from __future__ import annotations

from dataclasses import dataclass

from pipewave.kernels import rows_of
from pipewave.measure.job import Case


@dataclass(frozen=True, slots=True)
class Size:
    """Calls of each kind; the counts of repeats are over all families together, `keep` a share of everything."""

    random_pairs: int
    per_pair: int
    per_layout: int
    per_moe: int
    per_pointwise: int
    graph: int
    noise: int
    read_flush: int
    keep: float = 1.0


SIZES = {
    "quick": Size(20, 6, 6, 5, 4, 40, 40, 20, keep=0.06),
    "standard": Size(60, 12, 24, 12, 10, 500, 200, 50, keep=0.4),
    "full": Size(130, 17, 52, 18, 18, 2000, 500, 100),
}


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

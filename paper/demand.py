"""What a kernel asks of each pipe, and the paper's features made of it.

Every family reduces a call to `Load`s: one number for the whole GPU and one for its busiest SM. The rest is arithmetic
shared by all families (the paper's Section IV-C; formulas of the published code).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paper.hardware import Hardware

Array = NDArray[np.float64]
Features = dict[str, Array]

TENSOR = ("tensor_all_ops", "tensor_all_cycle", "tensor_sm_max_ops", "tensor_sm_max_cycle")
XU = ("xu_all_ops", "xu_all_cycle", "xu_sm_max_ops", "xu_sm_max_cycle")
FMA = ("fma_all_ops", "fma_all_cycle", "fma_sm_max_ops", "fma_sm_max_cycle")
# "local" is L2 in the published names, "global" is DRAM; both `in_flight` are KiB.
MEMORY = (
    "global_in_flight",
    "global_cycle",
    "local_cycle",
    "sm_max_in_flight",
    "sm_max_global_cycle",
    "sm_max_shared_cycle",
    "sm_max_local_cycle",
)


@dataclass(frozen=True, slots=True)
class Load:
    """Demand on one pipe: summed over the GPU, and on the SM that has most of it."""

    total: Array
    busiest_sm: Array

    @classmethod
    def of(cls, per_task: Array, sm: NDArray[np.int64]) -> Load:
        """Load of tasks placed one by one: `sm` is the SM of each."""
        return cls(np.asarray(per_task.sum()), np.asarray(np.bincount(sm, weights=per_task).max()))


@dataclass(frozen=True, slots=True)
class Demand:
    """Loads of one call (or of many calls, as arrays): operations for the three pipes, bytes read for memory."""

    read_bytes: Load
    tensor_ops: Load | None = None
    tensor_dtype: str = "bf16"
    xu_ops: Load | None = None
    fma_ops: Load | None = None


def features(demand: Demand, hw: Hardware) -> Features:
    """All features of the pipes that `demand` uses, by their published names."""
    found: Features = {}
    if demand.tensor_ops is not None:
        found |= _pipe(TENSOR, demand.tensor_ops, hw.tensor_ops_per_clk_per_sm(demand.tensor_dtype), hw.sms)
    if demand.xu_ops is not None:
        found |= _pipe(XU, demand.xu_ops, hw.xu_ops_per_clk_per_sm, hw.sms)
    if demand.fma_ops is not None:
        found |= _pipe(FMA, demand.fma_ops, hw.fma_ops_per_clk_per_sm, hw.sms)
    return found | _memory(demand.read_bytes, hw)


def _pipe(names: tuple[str, ...], ops: Load, ops_per_clk_per_sm: float, sms: int) -> Features:
    values = (
        ops.total,
        ops.total / (sms * ops_per_clk_per_sm),
        ops.busiest_sm,
        ops.busiest_sm / ops_per_clk_per_sm,
    )
    return dict(zip(names, values, strict=True))


def _memory(read: Load, hw: Hardware) -> Features:
    values = (
        read.total / 1024,
        _cycles(read.total, hw.dram_gbps, hw.clock_mhz),
        _cycles(read.total, hw.l2_gbps, hw.clock_mhz),
        read.busiest_sm / 1024,
        _cycles(read.busiest_sm, hw.dram_gbps / hw.sms, hw.clock_mhz),
        read.busiest_sm / hw.smem_bytes_per_clk_per_sm,
        _cycles(read.busiest_sm, hw.l2_gbps / hw.sms, hw.clock_mhz),
    )
    return dict(zip(MEMORY, values, strict=True))


def _cycles(size_bytes: Array, gbps: float, clock_mhz: float) -> Array:
    """Clocks to move `size_bytes`; published slip kept: GB/s are read as GiB/s (cycles come out 7.4 % low)."""
    return size_bytes / (gbps * 2**30) * (clock_mhz * 1e6)


def ceil_div(a: Array, b: Array | float) -> Array:
    """Ceiling of a / b for whole numbers held as floats, exact below 2**52."""
    return np.ceil(a / b)

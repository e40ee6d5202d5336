"""Joules of a kernel's work, and how long a board at its power limit needs to deliver them.

Kernels measured one by one after a flush run at burst clocks. Back to back, the board holds its power limit by lowering
the clock: an H200 multiplies bf16 at 778 TFLOP/s for a few calls and at 660 for good (1470 MHz, 691 W,
`data/measured/h200/microbench.json`). Energy adds up over a step, so kernels that idle the tensor cores pay for those
that do not.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from pipewave.gpus import GPU
from pipewave.physics.demand import Array

IDLE_SHARE = 0.16  # of the board's limit that clocks and leakage draw whatever runs: 110 of 700 W
# Joules of one dense 16-bit FLOP with its operands' way from L2; narrower types cost as their peak is higher.
# Hopper: 660 TFLOP/s in 691 W. The others are not measured: what lets such a part sustain 70 to 80 % of its peak.
JOULES_PER_FLOP = {"hopper": 0.88e-12, "blackwell": 0.5e-12, "ada": 1.0e-12, "blackwell_rtx": 1.0e-12}
JOULES_PER_FLOP_ELSEWHERE = 1.2e-12
# Joules of one byte from DRAM through L2 into an SM: decode steps of dense models on an H200 at 500 to 690 W.
JOULES_PER_BYTE = 60e-12
SHARPNESS = 20.0  # of the bend from the sum of kernels to the power limit


class Work(NamedTuple):
    """What the implementation of calls really does, per call; a `Demand` holds the least that any must do.

    `flops`: on the tensor cores, two per multiply-add, without the padding of tiles. `dram`: bytes exchanged with DRAM.
    `l2`: bytes between L2 and SMs, each operand of each kernel once: what tiles read again is counted with the energy
    of a FLOP. `product`: type of the products where it is not that of the call.
    """

    flops: Any
    dram: Any
    l2: Any
    product: str = ""

    def laid_out(self, calls: int) -> Work:
        """As arrays over `calls`, from amounts some of which may be numbers that hold for all."""
        amounts = np.empty((3, calls))
        amounts[0], amounts[1], amounts[2] = self.flops, self.dram, self.l2
        return Work(amounts[0], amounts[1], amounts[2], self.product)


def joules(gpu: GPU, dtype: str, work: Work) -> Any:
    """Energy of each call above what the idle board draws. `dtype`: of the calls."""
    return work.flops * joules_per_flop(gpu, work.product or dtype) + work.l2 * JOULES_PER_BYTE


@lru_cache(maxsize=256)
def joules_per_flop(gpu: GPU, dtype: str) -> float:
    """Joules of one dense FLOP of a type: power of the tensor cores is the same at the peak of each."""
    wide = gpu.peak_flops("bf16" if gpu.supports("bf16") else "fp16")
    return JOULES_PER_FLOP.get(gpu.architecture, JOULES_PER_FLOP_ELSEWHERE) * wide / gpu.peak_flops(dtype)


def delivered_us(joules: Array, gpu: GPU) -> Array:
    """µs the board needs at its power limit to deliver so much energy."""
    return np.asarray(1e6 * joules / ((1.0 - IDLE_SHARE) * gpu.tdp_w))


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

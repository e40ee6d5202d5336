"""Joules of a kernel's work, and how long a board at its power limit needs to deliver them.

Kernels measured one by one after a flush run at burst clocks. Back to back, the board holds its power limit by lowering
the clock: an H200 multiplies bf16 at 778 TFLOP/s for a few calls and at 660 for good (1470 MHz, 691 W,
`data/measured/h200/microbench.json`). Energy adds up over a step, so kernels that idle the tensor cores pay for those
that do not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from pipewave.errors import BadInput, UnknownGPU
from pipewave.gpus import GPU, find
from pipewave.physics.arith import ARRAY, Arith
from pipewave.physics.demand import Array
from pipewave.physics.overlap import overlapped


@dataclass(frozen=True, slots=True)
class AtLimit:
    """What work takes of a board at its power limit."""

    source: str
    idle_share: float  # of its limit, that clocks and leakage take whatever runs
    joules_per_byte: float
    joules_per_flop: Mapping[str, float] | None = None  # 16-bit, dense, by tensor instruction; None: the traits'


# Two rows of one law. A product measured alone is over before the board has averaged its power, so that the fit of its
# time to the slack that is left gives other joules than a board at its limit.
DRAWS: Mapping[str, AtLimit] = {
    # Bytes from DRAM through L2 into an SM. Idle: 110 of 700 W.
    "sustained": AtLimit("decode steps of dense models on an H200 at 500 to 690 W; microbench.json", 0.16, 60e-12),
    # 1.2 × 0.8 TDP / peak of the first large part of each: A100, H100, B200. Bytes from DRAM alone.
    "product": AtLimit(
        "robust fit of GEMM rows of five architectures (python -m studies.gemm_base)", 0.2, 6e-12,
        {"mma": 1.25e-12, "wgmma": 0.68e-12, "tcgen05": 0.43e-12},
    ),
}  # fmt: skip
SHARPNESS = 20  # of the bend from the sum of kernels to the power limit
# Dynamic power goes with clock and voltage squared, and voltage about with the clock above its lowest: between 2 and 3.
CLOCK_EXPONENT = 2.4
LEAST_LIMIT = 0.25  # of a board's own power limit: no clock is low enough to hold less


class Work(NamedTuple):
    """What the implementation of calls really does, per call; a `Demand` holds the least that any must do."""

    flops: Any  # on the tensor cores, two per multiply-add, without the padding of tiles
    dram: Any  # bytes exchanged with DRAM
    l2: Any  # bytes to and from SMs, each operand once: what tiles read again is counted with FLOPs
    product: str = ""  # type of the products where it is not that of the call

    def laid_out(self, calls: int) -> Work:
        """As arrays over `calls`, from amounts some of which may be numbers that hold for all."""
        amounts = np.empty((3, calls))
        amounts[0], amounts[1], amounts[2] = self.flops, self.dram, self.l2
        return Work(amounts[0], amounts[1], amounts[2], self.product)


def joules(gpu: GPU, dtype: str, work: Work) -> Any:
    """Energy of each call above what the idle board draws. `dtype`: of the calls."""
    each = joules_per_flop(gpu, work.product or dtype)
    return work.flops * each + work.l2 * DRAWS["sustained"].joules_per_byte


@lru_cache(maxsize=256)
def joules_per_flop(gpu: GPU, dtype: str, draw: str = "sustained") -> float:
    """Joules of one dense FLOP of a type: power of the tensor cores is the same at the peak of each."""
    by_mma, traits = DRAWS[draw].joules_per_flop, gpu.traits
    wide = gpu.peak_flops("bf16" if gpu.supports("bf16") else "fp16")
    return (by_mma[traits.mma] if by_mma else traits.joules_per_flop) * wide / gpu.peak_flops(dtype)


@lru_cache(maxsize=1024)
def watts(gpu: GPU, draw: str = "sustained") -> float:
    """What the board has for work at its power limit. Under another limit than the part's own it runs at other clocks,
    at which the work takes other joules: what counts is how fast it does the work.
    """
    own, idle = as_made(gpu).tdp_w, DRAWS[draw].idle_share
    left = max(gpu.tdp_w / own, LEAST_LIMIT) - idle
    return float((left / (1.0 - idle)) ** (1.0 / CLOCK_EXPONENT) * (1.0 - idle) * own)


@lru_cache(maxsize=256)
def as_made(gpu: GPU) -> GPU:
    """The part that a what-if changes."""
    try:
        return find(gpu.origin) if gpu.origin else gpu
    except UnknownGPU:
        return gpu


def limited(gpu: GPU, power_limit_w: float | None) -> GPU:
    """The GPU under another power limit, as `nvidia-smi -pl` sets it. Raises BadInput for one that no board holds."""
    if power_limit_w is None:
        return gpu
    least, most = LEAST_LIMIT * gpu.tdp_w, gpu.tdp_w
    if not least <= power_limit_w <= most:
        must = f"power_limit_w = {power_limit_w:g}: must be from {least:g} to {most:g} W on a {gpu.name}"
        raise BadInput(must, field="power_limit_w")
    return gpu.what_if(tdp_w=power_limit_w)


def delivered_us(joules: Array, gpu: GPU) -> Array:
    """µs the board needs at its power limit to deliver so much energy."""
    return np.asarray(1e6 * joules / watts(gpu))


def limited_us(kernel_us: Any, heat_us: Any, xp: Arith = ARRAY) -> Any:
    """Time of kernels that take `kernel_us` at burst clocks when their energy takes `heat_us` to deliver."""
    return overlapped(SHARPNESS, kernel_us, heat_us, xp=xp)

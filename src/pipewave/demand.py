"""What calls ask of each pipe of a GPU, by name, additive and scalable, and the floor that follows.

All amounts are arrays of one shape (one entry a call): operations, bytes or launches. A demand holds the least that any
implementation must do under the stated protocol, so `floor_s` is a lower bound and not an estimate.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from pipewave.gpus import GPU

Array = NDArray[np.float64]

PIPES = ("tensor", "dram", "l2", "smem", "fma", "xu", "link", "launch")
# A kernel cannot begin and retire faster than a few hundred cycles; no row of the corpus is below 0.35 µs.
LEAST_LAUNCH_S = 0.3e-6


@dataclass(frozen=True, slots=True)
class Demand:
    """Amounts per pipe: `tensor`, `fma`, `xu` in operations (an FMA is two), the memories and `link` in bytes."""

    tensor: Array
    dram: Array
    l2: Array
    smem: Array
    fma: Array
    xu: Array
    link: Array
    launch: Array

    def __add__(self, other: Demand) -> Demand:
        return Demand(*(getattr(self, p) + getattr(other, p) for p in PIPES))

    def __mul__(self, times: float | Array) -> Demand:
        return Demand(*(getattr(self, p) * times for p in PIPES))

    def seconds(self, gpu: GPU, dtype: str) -> Array:
        """Time each pipe needs alone at the part's highest rates, [pipe, call]."""
        rates = pipe_rates(gpu, dtype)
        return np.stack([getattr(self, p) / rates[p] for p in PIPES])


def demand(n: int, **amounts: Array | float) -> Demand:
    """A demand of `n` calls; pipes not named ask for nothing, scalars are the same for every call."""
    unknown = amounts.keys() - {f.name for f in fields(Demand)}
    if unknown:
        raise TypeError(f"unknown pipe {sorted(unknown)}")
    zeros = np.zeros(n)
    return Demand(*(zeros + amounts[p] if p in amounts else zeros for p in PIPES))


def pipe_rates(gpu: GPU, dtype: str) -> dict[str, float]:
    """Highest rate of each pipe, in its unit per second (`launch`: launches per second)."""
    clock_hz = gpu.boost_clock_mhz * 1e6
    return {
        "tensor": gpu.peak_flops(dtype, at="boost"),
        "dram": gpu.dram_gbps * 1e9,
        "l2": gpu.l2_gbps * 1e9,
        "smem": gpu.smem_bytes_per_clk_per_sm * gpu.sms * clock_hz,
        "fma": 2 * gpu.fma_per_clk_per_sm * gpu.sms * clock_hz,
        "xu": gpu.xu_per_clk_per_sm * gpu.sms * clock_hz,
        "link": gpu.link_gbps * 1e9,
        "launch": 1 / LEAST_LAUNCH_S,
    }


def floor_s(seconds: Array) -> Array:
    """The physical lower bound: the busiest pipe, all others hidden behind it. `seconds` is [pipe, call]."""
    return np.asarray(seconds.max(axis=0))


def busiest(seconds: Array) -> NDArray[np.intp]:
    """Index into PIPES of the pipe that bounds each call."""
    return np.asarray(seconds.argmax(axis=0))

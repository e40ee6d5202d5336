"""What calls ask of each pipe of a GPU, by name, additive and scalable, and the floor that follows.

All amounts are arrays of one shape (one entry a call): operations, bytes or launches. A demand holds the least that any
implementation must do under the stated protocol, so `floor_s` is a lower bound and not an estimate.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from pipewave.gpus import GPU

Array = NDArray[np.float64]

PIPES = ("tensor", "dram", "l2", "smem", "fma", "xu", "link", "launch")
# A kernel cannot begin and retire faster than a few hundred cycles; no row of the corpus is below 0.35 µs.
LEAST_LAUNCH_S = 0.3e-6
_ROW = {pipe: row for row, pipe in enumerate(PIPES)}


@dataclass(frozen=True, slots=True)
class Demand:
    """Amounts per pipe, [pipe, call] in the order of PIPES, also by name: `work.dram`.

    `tensor`, `fma`, `xu` count operations (an FMA is two), the memories and `link` bytes, `launch` kernels.
    """

    amounts: Array

    def __getattr__(self, pipe: str) -> Array:
        if pipe not in _ROW:
            raise AttributeError(f"no pipe {pipe!r}: there are {', '.join(PIPES)}")
        return np.asarray(self.amounts[_ROW[pipe]])

    def __add__(self, other: Demand) -> Demand:
        return Demand(self.amounts + other.amounts)

    def __mul__(self, times: float | Array) -> Demand:
        return Demand(self.amounts * times)

    def seconds(self, gpu: GPU, dtype: str) -> Array:
        """Time each pipe needs alone at the part's highest rates, [pipe, call]."""
        return self.amounts / pipe_rates(gpu, dtype)


def demand(n: int, **amounts: Array | float) -> Demand:
    """A demand of `n` calls; pipes not named ask for nothing, scalars are the same for every call."""
    rows = np.zeros((len(PIPES), n))
    for pipe, amount in amounts.items():
        rows[_ROW[pipe]] = amount
    return Demand(rows)


@lru_cache(maxsize=1024)
def pipe_rates(gpu: GPU, dtype: str) -> Array:
    """Highest rate of each pipe in its unit per second, [pipe, 1]; `launch` counts launches per second.

    DRAM counts what the pins could move and what was ever measured, since either may exceed the datasheet.
    """
    clock_hz = gpu.boost_clock_mhz * 1e6
    rates = {
        "tensor": gpu.peak_flops(dtype, at="boost"),
        "dram": gpu.dram_peak_gbps * 1e9,
        "l2": gpu.l2_peak_gbps * 1e9,
        "smem": gpu.smem_bytes_per_clk_per_sm * gpu.sms * clock_hz,
        "fma": 2 * gpu.fma_per_clk_per_sm * gpu.sms * clock_hz,
        "xu": gpu.xu_per_clk_per_sm * gpu.sms * clock_hz,
        "link": gpu.link_gbps * 1e9,
        "launch": 1 / LEAST_LAUNCH_S,
    }
    return np.array([[rates[pipe]] for pipe in PIPES])


def floor_s(seconds: Array) -> Array:
    """The physical lower bound: the busiest pipe, all others hidden behind it. `seconds` is [pipe, call]."""
    return np.asarray(seconds.max(axis=0))


def busiest(seconds: Array) -> NDArray[np.intp]:
    """Index into PIPES of the pipe that bounds each call."""
    return np.asarray(seconds.argmax(axis=0))

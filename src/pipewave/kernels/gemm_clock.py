"""What the SM clock does to a GEMM: a product bound on the chip follows it, one bound by DRAM hardly does.

Power management moves the clock of a loaded card within milliseconds. Our cold rows were taken 64 products at a time:
the clock fell from 0.97 of boost for the first dozen to 0.76, and the nets learned the rows at its median. With the
clock of a row known, a third to two fifths of the error on unseen shapes is gone (`python -m bench.gemm_clock`).
"""

from __future__ import annotations

from typing import Any

from pipewave.kernels.arith import Arith
from pipewave.kernels.base import Context
from pipewave.kernels.residency import COLD, SERVING

LOADED = 0.879  # median clock of our cold rows over boost: what the nets predict at, and what a busy engine runs at
ALONE = 0.974  # of the first dozen calls of a batch: what `cold` means for a call by itself
# (exponent of a product bound on the chip, what a DRAM-bound one loses of it), by net
EXPONENTS = {"gemm": (0.82, 0.85), "gemm_fp8": (0.62, 0.55), "gemm_block": (0.72, 0.52), "gemm_fp4": (0.72, 0.62)}


def slowdown(memory_share: Any, clock_mhz: Any, net: str, ctx: Context, xp: Arith) -> Any:
    """Factor on the time at the nets' own clock; `clock_mhz` is 0 where the caller does not know it."""
    if ctx.protocol not in (COLD, SERVING):
        return 1.0
    boost = float(ctx.gpu.boost_clock_mhz)
    usual = (ALONE if ctx.protocol == COLD else LOADED) * boost
    clock = xp.where(clock_mhz > 0.0, clock_mhz, usual)
    return (clock * (1.0 / (LOADED * boost))) ** -exponent(memory_share, net, xp)


def exponent(memory_share: Any, net: str, xp: Arith) -> Any:
    """Of time in the inverse clock; between 0 and 1."""
    on_chip, lost = EXPONENTS[net]
    return xp.minimum(xp.maximum(on_chip - lost * memory_share, 0.0), 1.0)

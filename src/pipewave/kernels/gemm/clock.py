"""What the SM clock does to a GEMM: a product bound on the chip follows it, one bound by DRAM hardly does.

Power management moves the clock of a loaded card within milliseconds. Where the clock of a row is known, a net learns
at it; a call without one is answered at the clock that `cold` rows have. That is 0.99 of boost, but products of 20 to
150 µs that keep the tensor cores busy bring it down by up to a fifth, a dozen in a row, and longer ones by a little.
`python -m bench.gemm_clock` has the fits and what they are worth.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import log2
from typing import Any

from pipewave.kernels.base import Context
from pipewave.physics.arith import Arith
from pipewave.physics.cache import COLD, SERVING

LOADED = 0.879  # of boost: what the nets predict at and a busy engine runs at; median of cold rows taken 64 at a time
ALONE = 0.992  # of boost: of a card that was idle before
# (exponent of a product bound on the chip, what a DRAM-bound one loses of it), by net; read off the same products at
# two clocks they are a little larger, which predicts unseen rows no better
EXPONENTS = {"gemm": (0.82, 0.85), "gemm_fp8": (0.62, 0.55), "gemm_block": (0.72, 0.52), "gemm_fp4": (0.72, 0.62)}
# Log of the clock lost under `cold` by products that are all tensor work: at 60 µs, and from 150 µs on. Cards whose
# power management was never seen keep theirs (`clock_drops_when_cold`).
DROPS = {"gemm": (0.17, 0.02), "gemm_fp8": (0.20, 0.06), "gemm_block": (0.18, 0.03)}
KNOTS = tuple(log2(us * 1e-6) for us in (20.0, 60.0, 150.0))  # none below the first


def slowdown(named: Mapping[str, Any], clock_mhz: Any, net: str, ctx: Context, xp: Arith) -> Any:
    """Factor on the time at the nets' own clock; `clock_mhz` is 0 where the caller does not know it.

    Of the features by name it takes `memory_share`, `tensor_share` and `log_base`.
    """
    if ctx.protocol not in (COLD, SERVING):
        return 1.0
    boost = float(ctx.gpu.boost_clock_mhz)
    usual = boost * (cold_clock(named, net, ctx, xp) if ctx.protocol == COLD else serving_clock(named))
    clock = xp.where(clock_mhz > 0.0, clock_mhz, usual)
    return (clock * (1.0 / (LOADED * boost))) ** -exponent(named["memory_share"], net, xp)


def cold_clock(named: Mapping[str, Any], net: str, ctx: Context, xp: Arith) -> Any:
    """Share of boost at which `cold` rows of such a product were taken."""
    if not ctx.gpu.traits.clock_drops_when_cold or net not in DROPS:
        return ALONE
    (most, held), (start, middle, end), at = DROPS[net], KNOTS, named["log_base"]
    rise = xp.minimum(xp.maximum((at - start) * (1.0 / (middle - start)), 0.0), 1.0)
    fall = xp.minimum(xp.maximum((at - middle) * (1.0 / (end - middle)), 0.0), 1.0)
    return ALONE * xp.exp(-named["tensor_share"] * (most * rise - (most - held) * fall))


def serving_clock(named: Mapping[str, Any]) -> Any:
    """Share of boost in a busy engine: products that wait for DRAM leave the card the power to run as if alone."""
    return ALONE - (ALONE - LOADED) * named["tensor_share"]


def exponent(memory_share: Any, net: str, xp: Arith) -> Any:
    """Of time in the inverse clock; between 0 and 1."""
    on_chip, lost = EXPONENTS[net]
    return xp.minimum(xp.maximum(on_chip - lost * memory_share, 0.0), 1.0)

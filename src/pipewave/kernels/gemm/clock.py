"""What the SM clock does to a GEMM: a product bound on the chip follows it, one bound by DRAM hardly does.

Power management moves the clock of a loaded GPU within milliseconds. Where the clock of a row is known, a net learns
at it; a call without one is answered at the clock that `cold` rows have. That is 0.99 of boost, but products of 20 to
150 µs that keep the tensor cores busy bring it down by up to a fifth, a dozen in a row, and longer ones by a little.
`python -m bench.gemm_clock` has the fits and what they are worth; the rules `sm_clock`, `gemm_clock_exponent` and
`gemm_clock_drop` hold them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from math import log2
from typing import Any, NamedTuple

from pipewave.kernels.base import Context
from pipewave.physics.arith import Arith
from pipewave.physics.cache import COLD, SERVING
from pipewave.software.stack_rules import constant

KNOTS = tuple(log2(us * 1e-6) for us in (20.0, 60.0, 150.0))  # none below the first


class Clocks(NamedTuple):
    """Shares of boost, the drop under `cold` (None: none known) and the exponents of a net on a GPU."""

    idle: float
    loaded: float
    drop: tuple[float, float] | None
    exponents: tuple[float, float]


@lru_cache(maxsize=256)
def clocks(drops: bool, net: str) -> Clocks:
    """What the rules say of the clock."""
    idle, loaded = (constant("sm_clock", state=state) for state in ("idle", "loaded"))
    drop = constant("gemm_clock_drop", drops_when_cold=drops, net=net)
    return Clocks(idle, loaded, drop, constant("gemm_clock_exponent", net=net))


def slowdown(named: Mapping[str, Any], clock_mhz: Any, net: str, ctx: Context, xp: Arith) -> Any:
    """Factor on the time at the nets' own clock; `clock_mhz` is 0 where the caller does not know it.

    Of the features by name it takes `memory_share`, `tensor_share` and `log_base`.
    """
    if ctx.protocol not in (COLD, SERVING):
        return 1.0
    boost, known = float(ctx.gpu.boost_clock_mhz), clocks(ctx.gpu.traits.clock_drops_when_cold, net)
    usual = boost * (cold_clock(named, known, xp) if ctx.protocol == COLD else serving_clock(named, known))
    clock = xp.where(clock_mhz > 0.0, clock_mhz, usual)
    return (clock * (1.0 / (known.loaded * boost))) ** -exponent(named["memory_share"], known, xp)


def cold_clock(named: Mapping[str, Any], known: Clocks, xp: Arith) -> Any:
    """Share of boost at which `cold` rows of such a product were taken."""
    if known.drop is None:
        return known.idle
    (most, held), (start, middle, end), at = known.drop, KNOTS, named["log_base"]
    rise = xp.minimum(xp.maximum((at - start) * (1.0 / (middle - start)), 0.0), 1.0)
    fall = xp.minimum(xp.maximum((at - middle) * (1.0 / (end - middle)), 0.0), 1.0)
    return known.idle * xp.exp(-named["tensor_share"] * (most * rise - (most - held) * fall))


def serving_clock(named: Mapping[str, Any], known: Clocks) -> Any:
    """Share of boost in a busy engine: products that wait for DRAM leave it the power to run as if idle."""
    return known.idle - (known.idle - known.loaded) * named["tensor_share"]


def exponent(memory_share: Any, known: Clocks, xp: Arith) -> Any:
    """Of time in the inverse clock; between 0 and 1."""
    on_chip, lost = known.exponents
    return xp.minimum(xp.maximum(on_chip - lost * memory_share, 0.0), 1.0)

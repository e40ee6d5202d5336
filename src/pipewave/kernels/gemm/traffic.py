"""Bytes a GEMM moves under each protocol: what must come from DRAM at least, and what does in practice."""

from __future__ import annotations

from typing import Any, NamedTuple

from pipewave.kernels.gemm.machine import GemmMachine
from pipewave.physics.arith import Arith
from pipewave.physics.cache import COLD, PRODUCT_DRAM_SHARE, SERVING, missing_share

WRITTEN_BACK = 0.7  # of the results, while they fit
WALKED_BYTES = 6.0  # an element of x between two kernels that walk over it: as it came, and a float32 copy


class Traffic(NamedTuple):
    """Bytes; `footprint` is all touched between two uses of the same weights, `cached` their share found in L2."""

    x: Any
    weights: Any
    y: Any
    footprint: Any
    least_dram: Any
    dram: Any
    cached: Any

    @property
    def all(self) -> Any:
        """Every operand once."""
        return self.x + self.weights + self.y


def traffic(m: Any, n: Any, k: Any, at: GemmMachine, xp: Arith) -> Traffic:
    """Operand sizes and DRAM bytes of y[m,n] = x[m,k]·Wᵀ."""
    x, weights, y = at.entering_bytes * m * k, at.weight_bytes * n * k, 2.0 * m * n
    spilled = xp.maximum(y - at.l2_bytes, 0.0)
    if at.protocol == COLD:
        return Traffic(x, weights, y, x + weights + y, x + weights + spilled, x + weights + spilled, 0.0 * m)
    if at.protocol == SERVING:
        dram = weights + xp.maximum(x + y - at.l2_bytes, 0.0)
        return Traffic(x, weights, y, x + weights + y, dram, dram, 0.0 * m)
    return _warm(x, weights, y, spilled, at, xp)


def _warm(x: Any, weights: Any, y: Any, spilled: Any, at: GemmMachine, xp: Arith) -> Traffic:
    """The same few buffers again and again; a cycle over `copies` sets must load what the L2 cannot keep of them."""
    copies = _rotating(weights, at, xp)
    moving = copies * (weights + x) if at.all_rotate else copies * weights + x
    footprint = moving + (copies * y if at.all_rotate else y)
    missing = missing_share(at.misses, at.l2_bytes, footprint, xp)
    still = missing if at.all_rotate else missing_share(at.misses, at.l2_bytes, x + weights + y, xp)
    least = xp.maximum(moving - at.l2_bytes, 0.0) / copies + spilled
    dram = weights * missing + (x + WRITTEN_BACK * y) * still + spilled
    return Traffic(x, weights, y, footprint, least, dram, 1.0 - missing)


def _rotating(weights: Any, at: GemmMachine, xp: Arith) -> Any:
    if at.protocol == "graph" and at.fitted_copies:
        return xp.minimum(xp.ceil(at.l2_bytes / weights), at.copies)
    return at.copies


def quantize_s(m: Any, k: Any, moved: Traffic, at: GemmMachine, xp: Arith) -> Any:
    """Seconds of the kernels that quantise x: a block a row, or bandwidth when there are many rows."""
    if not at.quantize_s:
        return 0.0
    library = at.library
    rows = xp.ceil(m * (1.0 / at.row_slots)) * (at.row_cycles + library.element_cycles * k) * (1.0 / at.clock_hz)
    passes = (library.quantize_kernels + 0.5) * moved.x
    missing = missing_share(at.misses, at.l2_bytes, 2.0 * moved.all, xp)
    streaming = passes * (library.from_l2 / at.l2 + library.from_dram / at.dram * missing)
    return at.quantize_s + xp.maximum(rows, streaming)


def unfused_s(m: Any, k: Any, at: GemmMachine, xp: Arith) -> Any:
    """Seconds of kernels that walk over x besides: so many cycles an element, or as fast as DRAM streams what the L2
    does not hold of float32 copies.

    No feature holds them: what a net learned of a library's quantisation says nothing about them.
    """
    missing = missing_share(at.misses, at.l2_bytes, WALKED_BYTES * m * k, xp)
    from_dram = missing * m * k * (at.unfused_bytes / (PRODUCT_DRAM_SHARE * at.dram))
    return at.unfused_s + xp.maximum(at.unfused_element_s * m * k, from_dram)

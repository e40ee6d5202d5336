"""Bytes a GEMM moves under each protocol: what must come from DRAM at least, and what does in practice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pipewave.kernels.arith import Arith
from pipewave.kernels.gemm_machine import QUANTIZE_S, Machine
from pipewave.kernels.residency import COLD, SERVING

# A cyclic walk over slightly more than the cache holds misses nearly everything; hashing and write-backs blur the edge.
FITS, OVERFLOWS = 0.7, 1.1


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes; `footprint` is all that rotates between two uses of the same weights."""

    x: Any
    weights: Any
    y: Any
    footprint: Any
    least_dram: Any
    dram: Any
    cached: Any  # share of the weights found in L2


def traffic(m: Any, n: Any, k: Any, at: Machine, xp: Arith) -> Traffic:
    """Operand sizes and DRAM bytes of y[m,n] = x[m,k]·Wᵀ."""
    x, weights, y = at.entering * m * k, at.operand * n * k, 2.0 * m * n
    spilled = xp.maximum(y - at.l2_bytes, 0.0)
    everything = x + weights
    if at.protocol == COLD:
        least = everything + spilled
        return Traffic(x, weights, y, everything + y, least, everything + spilled, 0.0 * m)
    if at.protocol == SERVING:
        beyond = xp.maximum(x + y - at.l2_bytes, 0.0)
        return Traffic(x, weights, y, everything + y, weights + beyond, weights + beyond, 0.0 * m)
    copies = rotating(weights, at, xp)
    moving = copies * (everything if at.all_rotate else weights) + (0.0 if at.all_rotate else x)
    least = xp.maximum(moving - at.l2_bytes, 0.0) / copies + spilled
    footprint = moving + (copies * y if at.all_rotate else y)
    missing = _missing(footprint, at, xp)
    still = missing if at.all_rotate else _missing(everything + y, at, xp)
    return Traffic(x, weights, y, footprint, least, weights * missing + (x + 0.5 * y) * still + spilled, 1.0 - missing)


def rotating(weights: Any, at: Machine, xp: Arith) -> Any:
    """Sets of weights used in turn; one under every protocol but `graph`."""
    if at.protocol != "graph":
        return 1.0
    if at.fitted_copies:
        return xp.minimum(xp.ceil(at.l2_bytes / weights), at.most_copies)
    return at.most_copies


def _missing(footprint: Any, at: Machine, xp: Arith) -> Any:
    over = (footprint / at.l2_bytes - FITS) * (1.0 / (OVERFLOWS - FITS))
    return xp.minimum(xp.maximum(over, 0.0), 1.0)


def quantize_s(m: Any, k: Any, moved: Traffic, at: Machine, xp: Arith) -> Any:
    """Seconds of the kernels that quantise x: a block a row, or bandwidth when there are many rows."""
    if not at.quantize_kernels:
        return 0.0
    rows = xp.ceil(m / (2.0 * at.sms)) * (at.row_cycles + at.element_cycles * k) / at.clock_hz
    passes = (2.0 * at.quantize_kernels + 1.0) / 2.0 * moved.x
    streaming = passes * (0.25 / at.l2 + 1.6 / at.dram * (moved.x > 0.5 * at.l2_bytes))
    return at.quantize_kernels * QUANTIZE_S + xp.maximum(rows, streaming)

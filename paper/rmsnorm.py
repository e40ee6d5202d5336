"""FlashInfer RMSNorm: one CTA per row, warp-level instruction counts scaled by two measured inflation factors.

Only the read of x counts; residual, weight and the write do not.
"""

from __future__ import annotations

import numpy as np

from paper.demand import Array, Demand, Load, ceil_div
from paper.hardware import Hardware

ELEMENT_BYTES = 2
VECTOR_BYTES = 16
WARP = 32
MAX_THREADS = 1024
# Instructions issued per instruction counted, as the authors measured them.
FMA_INFLATION = 1.616838
XU_INFLATION = 1.666667


def demand(hw: Hardware, *, rows: Array, dim: Array) -> Demand:
    """Demand of x[rows, dim] in bf16."""
    vector = np.gcd(VECTOR_BYTES // ELEMENT_BYTES, dim.astype(np.int64)).astype(np.float64)
    threads = np.minimum(MAX_THREADS, np.maximum(1, dim // vector))
    warps, rounds = ceil_div(threads, WARP), ceil_div(dim, vector * threads)
    tail = np.minimum(dim % (threads * vector), threads)
    adds = 2 * rounds * vector * warps + 5 * warps + 5 + ceil_div(3 * tail, WARP)
    multiplies = 2 * rounds * vector * warps
    fused = rounds * vector * warps + warps
    special = 3 * warps + ceil_div(tail, WARP)
    on_busiest = ceil_div(rows, hw.sms)
    return Demand(
        fma_ops=_per_row(FMA_INFLATION * (adds + multiplies + fused), rows, on_busiest),
        xu_ops=_per_row(XU_INFLATION * special, rows, on_busiest),
        read_bytes=_per_row(ELEMENT_BYTES * dim, rows, on_busiest),
    )


def _per_row(amount: Array, rows: Array, on_busiest: Array) -> Load:
    return Load(amount * rows, amount * on_busiest)

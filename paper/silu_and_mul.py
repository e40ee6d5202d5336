"""FlashInfer SiLU-and-multiply: one CTA per row.

The published counts mix units: the main part is in warps, the remainder in threads. `input_dim` is the paper's
`dim`, the width of the row read (gate and up together), twice that of the row written.
"""

from __future__ import annotations

import numpy as np

from paper.demand import Array, Demand, Load, ceil_div
from paper.hardware import Hardware

ELEMENT_BYTES = 2
VECTOR = 8
WARP = 32
MAX_THREADS = 1024
FMA_PER_VECTOR = 4 * 1.71875
XU_PER_VECTOR = 2 * 1.1875


def demand(hw: Hardware, *, rows: Array, input_dim: Array) -> Demand:
    """Demand of silu(x[:, :half]) * x[:, half:] in bf16 for x[rows, input_dim]."""
    vectors = input_dim // VECTOR
    threads = np.maximum(1, np.minimum(MAX_THREADS, vectors))
    rounds, tail = ceil_div(vectors, threads), vectors % threads
    counted = VECTOR * rounds * ceil_div(threads, WARP) + tail
    on_busiest = ceil_div(rows, hw.sms)
    return Demand(
        fma_ops=Load(FMA_PER_VECTOR * counted * rows, FMA_PER_VECTOR * counted * on_busiest),
        xu_ops=Load(XU_PER_VECTOR * counted * rows, XU_PER_VECTOR * counted * on_busiest),
        read_bytes=Load(ELEMENT_BYTES * input_dim * rows, ELEMENT_BYTES * input_dim * on_busiest),
    )

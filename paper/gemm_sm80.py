"""cuBLAS GEMM on everything but Hopper ("gemm8"): one CTA per output tile and K slice, placed by the hardware in waves.

Not modelled by the paper: reading C, writing the output, the reduction of split-K slices. `split_k` is accepted and
ignored, as published: slices follow from the grid size alone.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from paper.demand import Array, Demand, Load, ceil_div
from paper.hardware import Hardware

ELEMENT_BYTES = 2


def demand(
    hw: Hardware,
    *,
    m: Array,
    n: Array,
    k: Array,
    tile_m: Array,
    tile_n: Array,
    tile_k: Array,
    ctas: Array,
    split_k: NDArray[np.bool_] | None = None,  # noqa: ARG001
) -> Demand:
    """Demand of y[m,n] = x[m,k]·W[k,n] in bf16 with the vendor's tile and grid size, which a profiler has to tell."""
    tiles_m, tiles_n = ceil_div(m, tile_m), ceil_div(n, tile_n)
    padded_m, padded_n, padded_k = tiles_m * tile_m, tiles_n * tile_n, ceil_div(k, tile_k) * tile_k
    slices = np.maximum(1, ctas // (tiles_m * tiles_n))
    slice_k = tile_k * ceil_div(ceil_div(padded_k, slices), tile_k)
    waves = ceil_div(ctas, hw.sms)
    return Demand(
        tensor_ops=Load(2 * padded_m * padded_n * padded_k, 2 * tile_m * tile_n * slice_k * waves),
        # Each operand counted once for the GPU, but once per tile for the busiest SM.
        read_bytes=Load(
            ELEMENT_BYTES * (padded_m + padded_n) * padded_k,
            ELEMENT_BYTES * (tile_m + tile_n) * slice_k * waves,
        ),
    )

"""cuBLAS GEMM on Hopper ("gemm9"): persistent CTAs, each walking several output tiles.

Assumes at most one CTA per SM; with a larger grid it silently models one tile per SM, as published.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from paper.demand import Array, Demand, Load, ceil_div
from paper.hardware import Hardware

ELEMENT_BYTES = 2


def demand(
    _hw: Hardware,
    *,
    m: Array,
    n: Array,
    k: Array,
    tile_m: Array,
    tile_n: Array,
    tile_k: Array,
    ctas: Array,
    split_k: NDArray[np.bool_] | bool = False,
) -> Demand:
    """Demand of y[m,n] = x[m,k]·W[k,n] in bf16 with the vendor's tile, grid size and split-K flag."""
    tiles_m, tiles_n = ceil_div(m, tile_m), ceil_div(n, tile_n)
    tiles = tiles_m * tiles_n
    padded_k = ceil_div(k, tile_k) * tile_k
    slice_k = tile_k * ceil_div(ceil_div(padded_k, np.maximum(1, ctas // tiles)), tile_k)
    split = np.asarray(split_k, dtype=bool)
    # K elements the busiest CTA goes through: one slice, or all its tiles in full.
    depth = np.where(split, slice_k, padded_k * ceil_div(tiles, ctas))
    # Without split-K a grid beyond the tiles repeats work in the published count.
    excess = np.where(split, 1.0, np.maximum(1.0, ctas / tiles))
    padded_m, padded_n = tiles_m * tile_m, tiles_n * tile_n
    return Demand(
        tensor_ops=Load(2 * padded_m * padded_n * padded_k * excess, 2 * tile_m * tile_n * depth),
        read_bytes=Load(
            ELEMENT_BYTES * (padded_m + padded_n) * padded_k,
            ELEMENT_BYTES * (tile_m + tile_n) * depth,
        ),
    )

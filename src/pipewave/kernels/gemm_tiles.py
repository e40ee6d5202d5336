"""Output tiles of a GEMM: how long whole waves of them take, with k cut into slices when there are too few.

The libraries choose among far more tiles than these five; the five span the trade between idle SMs, padding and
operand re-reads, and the learned residual sees the time of each beside the best.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pipewave.kernels.arith import Arith
from pipewave.kernels.gemm_machine import Machine

# rows of x (tokens) × rows of W (output features)
TILES = ((16, 64), (64, 64), (64, 128), (128, 128), (128, 256))
LEAST_SLICE = 128.0  # of k


@dataclass(frozen=True, slots=True)
class Tiling:
    """Seconds of each candidate tile, the best of them, and tiles per SM."""

    seconds: tuple[Any, ...]
    best: Any
    per_sm: tuple[Any, ...]


def tiling(m: Any, n: Any, k: Any, at: Machine, xp: Arith) -> Tiling:
    """All candidate tiles of a GEMM."""
    seconds, per_sm = zip(*(tile_seconds(m, n, k, tile, at, xp) for tile in TILES), strict=True)
    best = seconds[0]
    for other in seconds[1:]:
        best = xp.minimum(best, other)
    return Tiling(seconds, best, per_sm)


def tile_seconds(m: Any, n: Any, k: Any, tile: tuple[int, int], at: Machine, xp: Arith) -> tuple[Any, Any]:
    """Time of all waves of one tile, and tiles per SM.

    A tile takes the longer of its tensor work and its operand reads from L2, and a fixed fill and drain. Slicing k
    into s shares a tile among s SMs that then add up s partial results; the best s balances the two.
    """
    rows, columns = tile
    area = float(rows * columns)
    per_k = max(2.0 * area / at.flops_per_sm, (rows + columns) * at.operand / at.l2_per_sm)
    drain = 8.0 * area / at.l2_per_sm
    tiles = xp.ceil(m * (1.0 / rows)) * xp.ceil(n * (1.0 / columns))
    per_sm = tiles * (1.0 / at.sms)
    whole = per_k * k
    if not at.splits:
        return xp.ceil(per_sm) * (whole + at.tile_s) + drain, per_sm
    merge = 12.0 * area / at.l2_per_sm
    most = xp.maximum(xp.minimum(at.sms / tiles, k * (1.0 / LEAST_SLICE)), 1.0)
    slices = xp.maximum(xp.minimum(xp.sqrt(whole * (1.0 / merge)), most), 1.0)
    split_s = at.split_s * (slices > 1.0) + merge * (slices - 1.0)
    return xp.ceil(per_sm * slices) * (whole / slices + at.tile_s) + split_s + drain, per_sm

"""Output tiles of a GEMM: how long whole waves of them take, with k cut into slices when there are too few.

The libraries choose among far more tiles than these five; the five span the trade between idle SMs, padding and
operand re-reads, and the learned residual sees the time of each beside the best.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from pipewave.kernels.arith import Arith
from pipewave.kernels.gemm_machine import DRAIN, MERGE, UNLIMITED, Machine

# rows of x (tokens) × rows of W (output features)
TILES = ((16, 64), (64, 64), (64, 128), (128, 128), (128, 256))
MIDDLING = (64, 64)
LEAST_SLICE = 128.0  # of k
NEVER_S = 1e6


@dataclass(frozen=True, slots=True)
class Tiling:
    """Seconds of each candidate tile, the best of them, tiles per SM, and a middling tile that never cuts k."""

    seconds: tuple[Any, ...]
    best: Any
    per_sm: tuple[Any, ...]
    unsliced: Any


def tiling(m: Any, n: Any, k: Any, at: Machine, xp: Arith) -> Tiling:
    """All candidate tiles of a GEMM."""
    found = [tile_seconds(m, n, k, tile, most, at, xp) for tile, most in zip(TILES, at.library.most_rows, strict=True)]
    seconds, per_sm = zip(*found, strict=True)
    best = seconds[0]
    for other in seconds[1:]:
        best = xp.minimum(best, other)
    middling = TILES.index(MIDDLING)
    unsliced = xp.ceil(per_sm[middling]) * (_per_k(MIDDLING, at) * k + at.tile_s)
    return Tiling(seconds, best, per_sm, unsliced)


def known_tile(
    tiles: Tiling, m: Any, n: Any, k: Any, tile: tuple[int, int], ctas: Any, at: Machine, xp: Arith
) -> Tiling:
    """The same candidates, but the tile that ran decides; a known number of CTAs (0: unknown) fixes its slices of k."""
    seconds, per_sm = tile_seconds(m, n, k, tile, UNLIMITED, at, xp)
    slices = xp.maximum(xp.floor(ctas / (per_sm * at.sms)), 1.0)
    area = float(tile[0] * tile[1])
    cut = _with_slices(slices, _per_k(tile, at) * k, per_sm, area, at, xp) + DRAIN * area / at.drain_per_sm
    return replace(tiles, best=xp.where(ctas > 0.0, cut, seconds))


def tile_seconds(
    m: Any, n: Any, k: Any, tile: tuple[int, int], most_rows: float, at: Machine, xp: Arith
) -> tuple[Any, Any]:
    """Time of all waves of one tile, and tiles per SM.

    A tile takes the longer of its tensor work and its operand reads from L2, and a fixed fill and drain. Slicing k
    into s shares a tile among s SMs that then add up s partial results; the best s balances the two.
    """
    rows, columns = tile
    area = float(rows * columns)
    whole = _per_k(tile, at) * k
    drain = DRAIN * area / at.drain_per_sm
    tiles = xp.ceil(m * (1.0 / rows)) * xp.ceil(n * (1.0 / columns))
    per_sm = tiles * (1.0 / at.sms)
    if at.library.splits:
        seconds = _sliced(whole, k, tiles, per_sm, area, at, xp) + drain
    else:
        seconds = xp.ceil(per_sm) * (whole + at.tile_s) + drain
    if most_rows < UNLIMITED:
        seconds = seconds + NEVER_S * (m > most_rows)
    return seconds, per_sm


def _per_k(tile: tuple[int, int], at: Machine) -> float:
    """Seconds a tile needs for each element of k."""
    rows, columns = tile
    operands = rows * at.operand_bytes + columns * at.weight_bytes
    return max(2.0 * rows * columns / at.flops_per_sm, operands / at.l2_per_sm)


def _sliced(whole: Any, k: Any, tiles: Any, per_sm: Any, area: float, at: Machine, xp: Arith) -> Any:
    merge = MERGE * area / at.drain_per_sm
    most = xp.maximum(xp.minimum(at.sms / tiles, k * (1.0 / LEAST_SLICE)), 1.0)
    slices = xp.maximum(xp.minimum(xp.sqrt(whole * (1.0 / merge)), most), 1.0)
    return _with_slices(slices, whole, per_sm, area, at, xp)


def _with_slices(slices: Any, whole: Any, per_sm: Any, area: float, at: Machine, xp: Arith) -> Any:
    second_pass = at.split_s * (slices > 1.0) + MERGE * area / at.drain_per_sm * (slices - 1.0)
    return xp.ceil(per_sm * slices) * (whole / slices + at.tile_s) + second_pass

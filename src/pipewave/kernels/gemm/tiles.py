"""Output tiles of a GEMM: how long whole waves of them take, with k cut into slices when there are too few.

The libraries choose among far more tiles than these five; the five span the trade between idle SMs, padding and
operand re-reads, and the learned residual sees the time of each beside the best.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from pipewave.kernels.gemm.machine import DRAIN, MERGE, UNLIMITED, GemmMachine
from pipewave.physics.arith import Arith
from pipewave.physics.waves import waves

# rows of x (tokens) × rows of W (output features)
TILES = ((16, 64), (64, 64), (64, 128), (128, 128), (128, 256))
HEIGHTS, WIDTHS = (16, 64, 128, 192, 256), (64, 128, 192, 256)  # of these and of those seen in kernel names
MIDDLING = (64, 64)
LEAST_SLICE = 128.0  # of k
NEVER_S = 1e6


class Tiling(NamedTuple):
    """Seconds of each candidate tile, the best of them, tiles per SM, and a middling tile that never cuts k.

    `rows` and `columns` count the tiles of each height in m and of each width in n.
    """

    seconds: tuple[Any, ...]
    best: Any
    per_sm: tuple[Any, ...]
    unsliced: Any
    rows: Mapping[int, Any]
    columns: Mapping[int, Any]


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds that one tile costs on a machine, whatever the product."""

    per_k: float  # each element of k: the longer of its tensor work and its operand reads from L2
    drain: float
    merge: float  # each slice of k after the first
    best_slices: float  # where no limit is met, over the square root of k


def tiling(m: Any, n: Any, k: Any, at: GemmMachine, xp: Arith) -> Tiling:
    """All candidate tiles of a GEMM."""
    ceil, root_k, paces = xp.ceil, xp.sqrt(k), _paces(at)
    rows = {height: ceil(m * (1.0 / height)) for height in HEIGHTS}
    columns = {width: ceil(n * (1.0 / width)) for width in WIDTHS}
    seconds, per_sm, best = [], [], math.inf
    for (height, width), pace, most_rows in zip(TILES, paces, at.library.most_rows, strict=True):
        tiles = rows[height] * columns[width]
        took = tile_seconds(k, root_k, tiles, pace, at, xp)
        if most_rows < UNLIMITED:
            took = took + NEVER_S * (m > most_rows)
        seconds.append(took)
        per_sm.append(tiles * (1.0 / at.sms))
        best = xp.minimum(took, best)
    middling = TILES.index(MIDDLING)
    unsliced = waves(per_sm[middling], xp) * (paces[middling].per_k * k + at.tile_s)
    return Tiling(tuple(seconds), best, tuple(per_sm), unsliced, rows, columns)


def known_tile(
    tiles: Tiling, m: Any, n: Any, k: Any, tile: tuple[int, int], ctas: Any, at: GemmMachine, xp: Arith
) -> Tiling:
    """The same candidates, but the tile that ran decides; a known number of CTAs (0: unknown) fixes its slices of k."""
    pace = _pace(tile, at)
    grid = xp.ceil(m * (1.0 / tile[0])) * xp.ceil(n * (1.0 / tile[1]))
    per_sm = grid * (1.0 / at.sms)
    slices = xp.maximum(xp.floor(ctas / (per_sm * at.sms)), 1.0)
    cut = _with_slices(slices, pace.per_k * k, per_sm, pace, at, xp) + pace.drain
    return tiles._replace(best=xp.where(ctas > 0.0, cut, tile_seconds(k, xp.sqrt(k), grid, pace, at, xp)))


def tile_seconds(k: Any, root_k: Any, tiles: Any, pace: Pace, at: GemmMachine, xp: Arith) -> Any:
    """Time of all waves of one tile.

    A tile takes its k at its pace, and a fixed fill and drain. Slicing k into s shares a tile among s SMs that then add
    up s partial results; the best s balances the two.
    """
    whole, per_sm = pace.per_k * k, tiles * (1.0 / at.sms)
    if not at.library.splits:
        return waves(per_sm, xp) * (whole + at.tile_s) + pace.drain
    most = xp.minimum(at.sms / tiles, k * (1.0 / LEAST_SLICE))
    slices = xp.maximum(xp.minimum(pace.best_slices * root_k, most), 1.0)
    return _with_slices(slices, whole, per_sm, pace, at, xp) + pace.drain


def _with_slices(slices: Any, whole: Any, per_sm: Any, pace: Pace, at: GemmMachine, xp: Arith) -> Any:
    second_pass = at.split_s * (slices > 1.0) + pace.merge * (slices - 1.0)
    return waves(per_sm * slices, xp) * (whole / slices + at.tile_s) + second_pass


@lru_cache(maxsize=4096)
def _paces(at: GemmMachine) -> tuple[Pace, ...]:
    return tuple(_pace(tile, at) for tile in TILES)


def _pace(tile: tuple[int, int], at: GemmMachine) -> Pace:
    rows, columns = tile
    area, operands = float(rows * columns), rows * at.operand_bytes + columns * at.weight_bytes
    per_k = max(2.0 * area / at.flops_per_sm, operands / at.l2_per_sm)
    merge = MERGE * area / at.drain_per_sm
    return Pace(per_k, DRAIN * area / at.drain_per_sm, merge, math.sqrt(per_k / merge))

"""Grouped GEMMs as output tiles: how long whole waves of them take, padded to blocks of tokens for each expert.

Block sizes are known when the call names a Triton configuration; otherwise the candidates span what the libraries
choose among, and the best stands in.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipewave.demand import Array
from pipewave.kernels.base import Context
from pipewave.kernels.fused_moe_layer import Machine, Product
from pipewave.kernels.routing import Routing

# tokens × output features
TILES = ((16, 128), (32, 128), (64, 128), (128, 128))
LEAST_MMA_ROWS = 16.0  # a tensor instruction works on this many rows even if fewer are real


@dataclass(frozen=True, slots=True)
class Tiling:
    """Seconds of each candidate tile summed over the products, the best, and tiles per SM of the first product."""

    seconds: tuple[Array, ...]
    best: Array
    per_sm: tuple[Array, ...]


def configured(ctx: Context) -> tuple[tuple[int, int], ...]:
    """The tiles to consider: the configuration's own or all."""
    config = dict(ctx.option("config") or ())
    rows, columns = config.get("BLOCK_SIZE_M"), config.get("BLOCK_SIZE_N")
    return ((rows, columns),) if rows and columns else TILES


def tiling(products: tuple[Product, ...], routed: Routing, at: Machine, tiles: tuple[tuple[int, int], ...]) -> Tiling:
    """All candidates; one candidate stands for all when the configuration is known."""
    seconds, per_sm = [], []
    for rows, columns in tiles:
        blocks = routed.blocks(rows)
        seconds.append(sum(tile_seconds(product, blocks, (rows, columns), at) for product in products))
        per_sm.append(blocks * np.ceil(products[0].n / columns) / at.sms)
    whole = len(TILES) if len(tiles) == 1 else 1
    best = np.minimum.reduce(seconds)
    return Tiling(tuple(seconds * whole), np.asarray(best), tuple(per_sm * whole))


def tile_seconds(product: Product, blocks: Array, tile: tuple[int, int], at: Machine) -> Array:
    """Time of all waves of one tile: the longer of tensor work and operand reads, and a fixed fill and drain."""
    rows, columns = tile
    tensor = 2.0 * max(rows, LEAST_MMA_ROWS) * columns / at.flops_per_sm
    reads = (rows * at.operand + columns * at.weight) / at.l2_per_sm
    waves = np.ceil(blocks * np.ceil(product.n / columns) / at.sms)
    return np.asarray(waves * (product.k * max(tensor, reads) + at.tile_s))

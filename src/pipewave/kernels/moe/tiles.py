"""Grouped GEMMs as output tiles: how long whole waves of them take, padded to blocks of tokens for each expert.

Libraries choose among far more tiles than the candidates here, which span the trade between padding, idle SMs and
operand re-reads; the learned residual sees the time of each, and of the tile that the stack's own rule would take.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipewave.kernels.moe.config import Blocks
from pipewave.kernels.moe.layer import Layer, Product
from pipewave.kernels.moe.machine import MoeMachine
from pipewave.physics.demand import Array
from pipewave.physics.overlap import overlapped
from pipewave.physics.waves import waves

# tokens × output features
TILES = ((16.0, 128.0), (32.0, 128.0), (64.0, 128.0), (128.0, 128.0))
LEAST_MMA_ROWS = 16.0  # a tensor instruction works on this many rows even if fewer are real
# Where staging and multiplying take turns: shared memory is passed through more than once, and the tensor cores run at
# nearly their own rate meanwhile. Fitted to untuned Triton kernels of all generations alike.
SERIAL_PASSES, SERIAL_TENSOR = 1.5, 0.9


@dataclass(frozen=True, slots=True)
class MoeTile:
    """One tile size for a batch: seconds of all waves over the products, and tiles of the first product an SM."""

    seconds: Array
    per_sm: Array
    padding: Array  # rows multiplied for each real one


@dataclass(frozen=True, slots=True)
class Tiling:
    """The candidates, the tile of the stack's rule (or the call's own configuration), and the estimate."""

    candidates: tuple[MoeTile, ...]
    ruled: MoeTile
    best: Array


def tiling(work: Layer, at: MoeMachine, ruled: Blocks) -> Tiling:
    """All candidates. The estimate is the configuration where it is known or ruled, the best candidate where tuned."""
    candidates = tuple(_tile(work, np.array([rows]), columns, at) for rows, columns in TILES)
    own = _tile(work, ruled.rows, ruled.columns, at)
    fastest = np.minimum.reduce([tile.seconds for tile in candidates])
    if at.serial and not ruled.known:
        best = np.where(ruled.tuned > 0, np.minimum(fastest, own.seconds), own.seconds)
    else:
        best = own.seconds if ruled.known else fastest
    return Tiling(candidates, own, best)


def _tile(work: Layer, rows: Array, columns: Array | float, at: MoeMachine) -> MoeTile:
    blocks = work.routing.blocks(rows)
    padding = blocks * rows / work.routing.pairs
    if at.carries == "all":
        blocks = blocks * (work.carried / work.routing.pairs)
    elif at.carries == "packed":
        blocks = blocks + np.ceil((work.carried - work.routing.pairs) / rows)
    seconds = sum(_waves_s(product, blocks, rows, columns, at) for product in work.products)
    return MoeTile(np.asarray(seconds), blocks * np.ceil(work.products[0].n / columns) / at.sms, padding)


def _waves_s(product: Product, blocks: Array, rows: Array, columns: Array | float, at: MoeMachine) -> Array:
    """The longest of a tile's tensor work and its operand reads from L2 and from shared memory (or the sum of the two
    on the SM), and a fixed fill and drain, for whole waves. Small tiles starve the tensor cores of newer GPUs: shared
    memory is no faster there. Block scales follow each partial product; widening weights overlaps with it in part."""
    height = np.maximum(rows, LEAST_MMA_ROWS)
    tensor = 2.0 * height * columns / at.flops_per_sm
    fetched = (rows * at.operand + columns * at.weight) / at.l2_per_sm
    fed = (height + columns) * at.operand / at.smem_per_sm
    on_sm = SERIAL_TENSOR * tensor + SERIAL_PASSES * fed if at.serial else np.maximum(tensor, fed)
    on_sm = overlapped(2, on_sm + height * columns * at.scale_s, columns * at.widen_s)
    rounds = waves(blocks * np.ceil(product.n / columns) / at.sms)
    return np.asarray(rounds * (product.k * np.maximum(on_sm, fetched) + at.tile_s))

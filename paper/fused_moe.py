"""Triton fused MoE (SGLang), one of its two GEMMs, with the authors' own tile heuristic and perfectly even routing.

Every CTA's bytes are summed, so an expert's weights count once per block of rows. Tile depth and grouping are part of
the heuristic but reach no feature.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from paper.demand import Array, Demand, Load, ceil_div
from paper.hardware import Hardware
from pipewave.errors import BadInput

Part = Literal["w13", "w2"]
ELEMENT_BYTES = 2


@dataclass(frozen=True, slots=True)
class ExpertTile:
    """Triton block sizes; arrays aligned with the calls."""

    block_m: Array
    block_n: Array
    block_k: Array
    group_m: Array


def demand(
    hw: Hardware, *, tokens: Array, experts: Array, topk: Array, hidden: Array, inter: Array, part: Part = "w13"
) -> Demand:
    """Demand of the up-and-gate (`w13`) or down (`w2`) product in bf16; `inter` is one expert's width."""
    if part not in ("w13", "w2"):
        raise BadInput(f"part={part!r}: the paper models 'w13' and 'w2'", field="part")
    width, depth = (2 * inter, hidden) if part == "w13" else (hidden, inter)
    tile = tile_heuristic(tokens, experts, hidden, hw.smem_kb_per_sm)
    rows = padded_rows(tokens * topk, experts, tile.block_m)
    ctas = rows // tile.block_m * ceil_div(width, tile.block_n)
    on_busiest = ceil_div(ctas, hw.sms)
    ops = 2 * rows * width * depth
    cta_bytes = ELEMENT_BYTES * depth * (tile.block_m + tile.block_n)
    return Demand(
        tensor_ops=Load(ops, ops / ctas * on_busiest),
        read_bytes=Load(cta_bytes * ctas, cta_bytes * on_busiest),
    )


def padded_rows(assignments: Array, experts: Array, block_m: Array) -> Array:
    """Rows after each expert's share, dealt evenly, is rounded up to whole blocks."""
    share, extra = assignments // experts, assignments % experts
    return block_m * ((experts - extra) * ceil_div(share, block_m) + extra * ceil_div(share + 1, block_m))


def tile_heuristic(tokens: Array, experts: Array, hidden: Array, smem_kb: int) -> ExpertTile:
    """Block sizes by shape and shared memory: small (<= 100 KB per SM), Ampere (<= 164 KB) or Hopper-like GPUs."""
    if smem_kb <= 100:
        return _small_tile(tokens, experts, hidden)
    ampere = smem_kb <= 164
    return ExpertTile(
        block_m=_by(tokens, [128, 256, 512], [16, 32, 64, 64 if ampere else 128]),
        block_n=np.full_like(tokens, 128),
        block_k=_by(tokens, [256], [128, 64]),
        group_m=_by(hidden, [2048, 3072], [1, 16, 32] if ampere else [1, 1, 1]),
    )


def _small_tile(tokens: Array, experts: Array, hidden: Array) -> ExpertTile:
    large = np.where(experts < 64, 64, 128)
    block_m = np.where(tokens > 2048, large, _by(tokens, [128, 256, 512], [16, 32, 64, 128]))
    return ExpertTile(
        block_m=block_m,
        block_n=np.where((hidden <= 1536) & (tokens <= 128), 16, 64),
        block_k=_by(tokens, [256], [256, 64]),
        group_m=_by(hidden, [2048], [1, 16]),
    )


def _by(value: Array, bounds: list[int], choices: list[int]) -> Array:
    """The choice of the first bound that `value` does not exceed, or the last choice."""
    return np.asarray(choices, dtype=np.float64)[np.searchsorted(bounds, value, side="left")]

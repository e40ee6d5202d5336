"""What the learned residual sees of a fused-MoE call: parts of the estimate beside the whole, and how work is spread.

Ratios of times, bytes and counts throughout, so that a layer of a model never seen, on a GPU never seen, lies between
those that were.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipewave.demand import Array
from pipewave.kernels.estimate import combine, log2
from pipewave.kernels.fused_moe_layer import KERNELS, Layer, Machine
from pipewave.kernels.fused_moe_tiles import Tiling

WARM_ROUTINGS = 5.0  # routings the warm collectors cycle through


@dataclass(frozen=True, slots=True)
class Times:
    """Parts of the base estimate in seconds: launches, tiles, weights, activations between kernels; and the whole."""

    launch: Array
    tensor: Array
    tiles: Array
    weights: Array
    glue: Array
    base: Array


def times(work: Layer, tiles: Tiling, weights_s: Array, glue_s: Array, at: Machine) -> Times:
    """The whole: kernels follow one another, weights stream while tiles compute."""
    launch = np.full_like(glue_s, KERNELS[work.part] * at.launch_s)
    tensor = work.flops / (at.flops_per_sm * at.sms)
    base = launch + combine(tiles.best, weights_s) + glue_s
    return Times(launch, tensor, tiles.best, weights_s, glue_s, base)


def features(work: Layer, tiles: Tiling, spent: Times, at: Machine) -> dict[str, Array]:
    """Named features of a batch."""
    routed = work.routing
    share = {f"{name}_share": log2(getattr(spent, name) / spent.base) for name in ("launch", "tensor", "weights", "glue")}
    by_tile = {f"tile{i}_share": log2(t / spent.base) for i, t in enumerate(tiles.seconds)}
    per_sm = {f"tile{i}_per_sm": log2(t) for i, t in enumerate(tiles.per_sm) if i in (0, 3)}
    waves = {f"tile{i}_waves": np.ceil(t) / np.maximum(t, 1e-9) for i, t in enumerate(tiles.per_sm) if i in (0, 2, 3)}
    return share | by_tile | per_sm | {f"{k}_log": log2(v) for k, v in waves.items()} | _spread(work) | _memory(work, spent, at)


def _spread(work: Layer) -> dict[str, Array]:
    routed = work.routing
    return {
        "active": log2(routed.active),
        "active_share": routed.active / routed.local,
        "tokens_per_active": log2(routed.pairs / routed.active),
        "busiest": log2(routed.busiest * routed.active / routed.pairs),
        "skew": log2(routed.skew),
        "topk": log2(work.topk),
        "tokens_per_expert": log2(work.tokens / routed.local),
        "padding16": log2(16.0 * routed.blocks(16) / routed.pairs),
        "padding64": log2(64.0 * routed.blocks(64) / routed.pairs),
    }


def _memory(work: Layer, spent: Times, at: Machine) -> dict[str, Array]:
    routed = work.routing
    expert = at.weight * work.matrices
    return {
        "base": log2(spent.base * 1e6),
        "hot": log2(expert * routed.active / at.l2_bytes),
        "local": log2(expert * routed.local / at.l2_bytes),
        "between": log2((work.inputs + 2.0 * routed.pairs * (work.inter * (1.0 + work.up) + work.hidden)) / at.l2_bytes),
        "k_first": log2(work.hidden / 128.0),
        "k_second": log2(work.inter / 128.0),
        "n_waste": log2(np.ceil(work.inter / 128.0) * 128.0 / work.inter),
        "gated": work.up - 1.0,
    }

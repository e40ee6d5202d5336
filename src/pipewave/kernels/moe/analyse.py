"""Routed experts of a layer on one rank: routing histogram, padded expert tiles, two grouped GEMMs and the glue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pipewave.calls.dtypes import OPERAND_BYTES
from pipewave.calls.families import FusedMoe
from pipewave.kernels.base import Analysis, Columns, Context, Family, Grows
from pipewave.kernels.moe.before import before_s
from pipewave.kernels.moe.config import blocks
from pipewave.kernels.moe.features import between_bytes, features, missed_between, times
from pipewave.kernels.moe.layer import Layer, layer
from pipewave.kernels.moe.machine import MoeMachine, machine, product_dtype
from pipewave.kernels.moe.models import chosen_by
from pipewave.kernels.moe.tiles import tiling
from pipewave.physics.cache import COLD, MISSES, SERVING, least_dram, missing_share
from pipewave.physics.demand import Array, Demand, demand
from pipewave.physics.energy import Work

if TYPE_CHECKING:
    from pipewave.kernels.faces import Faces

LONG_S = 64e-3  # weights of many experts take long at any size


def least(work: Layer, ctx: Context) -> Demand:
    """Least work: routed pairs through the matrices present, weights of the experts surely in use once.

    Weights are of the call's own type, also where the software keeps them wider.
    """
    weights = OPERAND_BYTES[ctx.dtype] * work.routing.sure * work.matrices
    # Demand is counted at the rate of the stored type; narrow weights multiply at the rate of their activations.
    slower = ctx.gpu.peak_flops(ctx.dtype) / ctx.gpu.peak_flops(product_dtype(ctx))
    return demand(
        len(weights),
        tensor=work.flops * slower,
        dram=least_dram(ctx.gpu, ctx.protocol, weights, work.inputs, work.outputs),
        l2=weights + work.inputs + work.outputs,
        launch=3.0 if work.part == "all" else 1.0,
    )


@dataclass(frozen=True, slots=True)
class Weights:
    """Bytes of the active experts' weights, and the share of them that comes from DRAM."""

    size: Array
    missed: Array

    def seconds(self, at: MoeMachine) -> Array:
        """Time to read them, from DRAM or from an L2 still warm with them."""
        return np.asarray(self.size * (self.missed / at.dram + (1.0 - self.missed) / at.l2))


def weights_of(work: Layer, ctx: Context, at: MoeMachine) -> Weights:
    """Weights as a call finds them under its protocol."""
    size = at.weight * work.routing.active * work.matrices
    if ctx.protocol in (COLD, SERVING):
        return Weights(size, np.ones_like(size))
    return Weights(size, missing_share(MISSES["expert_weights"], at.l2_bytes, size))


def analyse(cols: Columns, ctx: Context) -> Analysis:
    """Demand, base estimate and features of a batch of fused-MoE calls."""
    at, work = machine(ctx), layer(cols, ctx)
    ruled = blocks(cols, ctx)
    tiles = tiling(work, at, ruled)
    weights = weights_of(work, ctx, at)
    spent = times(work, tiles, weights.seconds(at), before_s(work, ctx, at), at)
    named = features(work, tiles, spent, at, ruled)
    return Analysis(least(work, ctx), spent.base, named, "fused_moe", done(work, weights, ctx, at))


def done(work: Layer, weights: Weights, ctx: Context, at: MoeMachine) -> Work:
    """What the layer does: weights once, and what passes between its kernels, written and read."""
    between = between_bytes(work, work.routing.pairs)
    dram = weights.size * weights.missed + sum(size * missed_between(size, at) for size in between)
    return Work(work.flops, dram, weights.size + sum(between), product_dtype(ctx))


def faces() -> Faces:
    """What other rooms need to know."""
    from pipewave.kernels.moe.faces import FACES

    return FACES


FAMILY = Family(
    "fused_moe",
    FusedMoe,
    analyse,
    options=("routing", "part", "config"),
    variant=chosen_by,
    nets=("fused_moe",),
    selected_by=("variant",),
    example="pipewave predict fused_moe 64 128 8 2048 768 --gpu B200",
    faces=faces,
    reads="operands",
    grows={"tokens": Grows(6, below_s=LONG_S)},
)

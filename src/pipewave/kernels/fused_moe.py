"""Routed experts of a layer on one rank: routing histogram, padded expert tiles, two grouped GEMMs and the glue."""

from __future__ import annotations

import numpy as np

from pipewave.calls import FusedMoe
from pipewave.demand import Array, Demand, demand
from pipewave.kernels.base import Analysis, Columns, Context, Family, register
from pipewave.kernels.dtypes import ACTIVATION_BYTES
from pipewave.kernels.fused_moe_features import features, times
from pipewave.kernels.fused_moe_layer import Layer, Machine, as_measured, dram_share, layer, machine, product_dtype
from pipewave.kernels.fused_moe_tiles import configured, tiling
from pipewave.kernels.residency import least_dram


def least(work: Layer, ctx: Context, at: Machine) -> Demand:
    """Least work: routed pairs through the matrices present, weights of the experts in use once."""
    weights = at.weight * work.routing.active * work.matrices
    # Demand is counted at the rate of the stored type; narrow weights multiply at the rate of their activations.
    slower = ctx.gpu.peak_flops(ctx.dtype) / ctx.gpu.peak_flops(product_dtype(ctx))
    return demand(
        len(weights),
        tensor=work.flops * slower,
        dram=least_dram(ctx.gpu, ctx.protocol, weights, work.inputs, work.outputs),
        l2=weights + work.inputs + work.outputs,
        launch=3.0 if work.part == "all" else 1.0,
    )


def weights_s(work: Layer, ctx: Context, at: Machine) -> Array:
    """Time to read the weights of the active experts, from DRAM or from an L2 still warm with them."""
    size = at.weight * work.routing.active * work.matrices
    missed = dram_share(ctx, size, at.l2_bytes)
    return size * (missed / at.dram + (1.0 - missed) / at.l2)


def glue_s(work: Layer, ctx: Context, at: Machine) -> Array:
    """Time of everything that passes between kernels: pairs gathered, activated, and reduced to tokens."""
    if work.part != "all":
        size = work.inputs + work.outputs
        return np.asarray(size / at.l2)
    pairs = work.routing.pairs
    between = ACTIVATION_BYTES * pairs * (work.inter * (2.0 * work.up + 2.0) + 2.0 * work.hidden)
    size = work.inputs + between + work.outputs
    missed = size / (size + 2.0 * at.l2_bytes)
    return np.asarray(size * (missed / at.dram + (1.0 - missed) / at.l2))


def analyse(cols: Columns, ctx: Context) -> Analysis:
    """Demand, base estimate and features of a batch of fused-MoE calls."""
    ran = as_measured(cols, ctx)
    at, work = machine(ctx), layer(ran, ctx)
    needed = work if ran is cols else layer(cols, ctx)
    tiles = tiling(work.products, work.routing, at, configured(ctx))
    spent = times(work, tiles, weights_s(work, ctx, at), glue_s(work, ctx, at), at)
    return Analysis(least(needed, ctx, at), spent.base, features(work, tiles, spent, at), "fused_moe")


FAMILY = register(Family("fused_moe", FusedMoe, analyse, options=("routing", "part", "config"), nets=("fused_moe",)))

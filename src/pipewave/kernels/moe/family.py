"""The fused-MoE family: analysis of expert layers, and features for its nets."""

from __future__ import annotations

from typing import Any

import numpy as np

from pipewave.calls.dtypes import ACTIVATION_BYTES, OPERAND_BYTES
from pipewave.kernels.base import Analysis, Columns, Context, features_of
from pipewave.kernels.moe.routing import Layer, layer
from pipewave.kernels.moe.software import ENGINES, Blocks, MoeMachine, Tiling, blocks, machine, product_dtype, tiling
from pipewave.physics.arith import log2
from pipewave.physics.cache import COLD, MISSES, SERVING, least_dram, missing_share
from pipewave.physics.demand import Array, Demand, demand
from pipewave.physics.overlap import overlapped, waves
from pipewave.physics.power import Work


def before_s(work: Layer, ctx: Context, at: MoeMachine) -> Array:
    """Seconds that each timed call spends before its products besides the usual kernels, on slow casts and routers
    without a kernel, by the rules `moe_before_products` and `moe_router`; none for one product alone.
    """
    if work.part != "all":
        return np.zeros_like(work.tokens)
    extra, router = ctx.rule("moe_before_products"), ctx.rule("moe_router")
    cast = extra.start_s + extra.cycles_per_element * work.tokens * work.hidden * at.cycle_s / at.sms
    if router is None:
        return np.asarray(cast)
    # Operations that choose experts where the router's kernel does not take so many.
    beyond = (work.experts > router.most_experts) | (work.topk > router.most_topk)
    spent = router.start_s + router.cycles_per_score * work.tokens * work.experts * at.cycle_s / at.sms
    return np.asarray(cast + np.where(beyond, spent, 0.0))


# What the learned residual sees of a fused-MoE call: parts of the estimate beside the whole, and how work is spread.
#
# Ratios of times, bytes and counts throughout, so that a layer of a model never seen, on a GPU never seen, lies between
# those that were.

KERNELS = {"all": 7.0, "w13": 1.0, "w2": 1.0}  # routing, alignment (2), two products, activation, reduction
ROUTE_BYTES = 16.0  # a token and expert: logits read, scored, and read again to choose
SUMMED = ("launch", "route", "tensor", "weights", "activate", "reduce")


def times(
    work: Layer, tiles: Tiling, weights_s: Array, before_s: Array, at: MoeMachine
) -> tuple[Array, dict[str, Array]]:
    """The base estimate in seconds, and its parts by name.

    Launches, choosing experts, arithmetic without padding, weights, and what passes between kernels: activated pairs
    and reduced pairs, each for the rank's own pairs and (`all_`) for those of all ranks. Kernels follow one another,
    weights stream while tiles compute; slow routers and casts come before.
    """
    cost, alone = at.costs, work.part != "all"
    launch = np.full_like(weights_s, KERNELS[work.part] * at.launch_s) * cost.launch
    route = _moved_s(ROUTE_BYTES * work.tokens * work.experts, at) + work.carried * at.sort_s
    factors = (1.0, 1.0) if alone else (cost.activate, cost.reduce)
    (activate, reduce), (all_activate, all_reduce) = (
        [factor * _moved_s(size, at) for factor, size in zip(factors, between_bytes(work, pairs), strict=True)]
        for pairs in (work.routing.pairs, work.carried)
    )
    parts = {
        "launch": launch,
        "route": route * float(not alone) + before_s,
        "tensor": work.flops / (at.flops_per_sm * at.sms),
        "weights": weights_s,
        "activate": activate,
        "reduce": reduce,
        "all_activate": all_activate,
        "all_reduce": all_reduce,
    }
    between = all_activate + all_reduce if at.remote_pairs else activate + reduce
    busy = overlapped(3, cost.tiles * tiles.best, cost.weights * weights_s)
    return launch + parts["route"] + busy + between, parts


def between_bytes(work: Layer, pairs: Array) -> tuple[Array, Array]:
    """Bytes of inner and of outer rows; of one product alone, what enters and what leaves."""
    if work.part != "all":
        return work.inputs, work.outputs
    inner = pairs * work.inter * (2.0 * work.up + 2.0)
    outer = 2.0 * pairs * work.hidden + 2.0 * work.tokens * work.hidden
    return ACTIVATION_BYTES * inner, ACTIVATION_BYTES * outer


def _moved_s(size: Array, at: MoeMachine) -> Array:
    """Time to move bytes that stay in L2 while they fit."""
    missed = missed_between(size, at)
    return np.asarray(size * (missed / at.dram + (1.0 - missed) / at.l2))


def missed_between(size: Array, at: MoeMachine) -> Array:
    """Share of bytes written by one kernel and read by the next that does not stay in L2."""
    return np.asarray(missing_share(MISSES["between_kernels"], at.l2_bytes, size))


def features(
    work: Layer, tiles: Tiling, base: Array, parts: dict[str, Array], at: MoeMachine, ruled: Blocks, ctx: Context
) -> dict[str, Array]:
    """Named features of a batch."""
    tried = {f"tile{i}": tile.seconds for i, tile in enumerate(tiles.candidates)} | {"ruled": tiles.ruled.seconds}
    shares = {f"{name}_share": _bounded(part / base, -7.0, 4.0) for name, part in (parts | tried).items()}
    linear = {f"{name}_part": parts[name] / base for name in SUMMED}  # a sum of costs is linear in these
    # What the kernels are, for implementations and versions never seen.
    flags: dict[str, Any] = {name: at.engine == name for name in ENGINES}
    flags |= {"warp_mma": at.warp_mma, "untuned": at.untuned, "widens": at.widen_s > 0, "scales": at.scale_s > 0}
    flags["ungated"] = work.up < 2.0
    software = {name: np.full_like(work.inter, flag) for name, flag in flags.items()} | {"tuned": ruled.tuned}
    sizes: dict[str, Any] = {
        "work": work,
        "routed": work.routing,
        "base": base,
        "expert_bytes": at.weight * work.matrices,
    }
    return shares | linear | _waves(tiles, ruled) | features_of("fused_moe", ctx, **sizes) | software


def _bounded(ratio: Array, low: float, high: float) -> Array:
    """Logarithm within bounds: beyond them a part no longer matters, and a net would only extrapolate."""
    return np.asarray(np.clip(log2(ratio), low, high))


def _waves(tiles: Tiling, ruled: Blocks) -> dict[str, Array]:
    """Tiles per SM, how much longer whole waves take than their tiles would spread evenly, and padding."""
    named = {"tile0": tiles.candidates[0], "tile2": tiles.candidates[2], "tile3": tiles.candidates[3]}
    out = {}
    for name, tile in (named | {"ruled": tiles.ruled}).items():
        out[f"{name}_per_sm"] = _bounded(tile.per_sm, -6.0, 6.0)
        out[f"{name}_waves"] = log2(waves(tile.per_sm) / np.maximum(tile.per_sm, 1e-9))
        out[f"{name}_padding"] = log2(tile.padding)
    return out | {"ruled_rows": log2(ruled.rows), "ruled_columns": log2(ruled.columns)}


# Routed experts of a layer on one rank: routing histogram, padded expert tiles, two grouped GEMMs and the glue.


def least(work: Layer, ctx: Context) -> Demand:
    """Least work: routed pairs, weights of the experts surely in use once, in the call's own type."""
    weights = OPERAND_BYTES[ctx.dtype] * work.routing.sure * work.matrices
    # Demand is counted at the rate of the stored type; narrow weights multiply at the rate of their activations.
    slower = ctx.gpu.peak_flops(ctx.dtype) / ctx.gpu.peak_flops(product_dtype(ctx))
    return demand(
        len(weights),
        tensor=work.flops * slower,
        dram=least_dram(ctx.gpu, ctx.protocol, weights, work.inputs, work.outputs),
        l2=weights + work.inputs + work.outputs,
        launch=3.0 if work.part == "all" else 1.0,  # routing and two products
    )


def analyse(cols: Columns, ctx: Context) -> Analysis:
    """Demand, base estimate and features of a batch of fused-MoE calls."""
    at, work, ruled = machine(ctx), layer(cols, ctx), blocks(cols, ctx)
    tiles, weights = tiling(work, at, ruled), at.weight * work.routing.active * work.matrices  # bytes of active experts
    always = ctx.protocol in (COLD, SERVING)  # weights come from DRAM
    missed = np.ones_like(weights) if always else missing_share(MISSES["expert_weights"], at.l2_bytes, weights)
    weights_s = weights * (missed / at.dram + (1.0 - missed) / at.l2)
    base, parts = times(work, tiles, weights_s, before_s(work, ctx, at), at)
    named = features(work, tiles, base, parts, at, ruled, ctx)
    # Weights once, and what passes between kernels, written and read.
    between = between_bytes(work, work.routing.pairs)
    dram = weights * missed + sum(size * missed_between(size, at) for size in between)
    done = Work(work.flops, dram, weights + sum(between), product_dtype(ctx))
    return Analysis(least(work, ctx), base, named, "fused_moe", done)


def rounds(_cols: Columns, _ctx: Context, analysis: Analysis) -> Array:
    """Rounds of the tiles that the stack's rule cuts."""
    return np.asarray(np.exp2(analysis.features["ruled_per_sm"]))

"""Routed experts of a layer on one rank: routing histogram, padded expert tiles, two grouped GEMMs and the glue."""

from __future__ import annotations

import numpy as np

from pipewave.calls import FusedMoe
from pipewave.demand import Array, Demand, demand
from pipewave.kernels.base import Analysis, Columns, Context, Family, register
from pipewave.kernels.dtypes import ACTIVATION_BYTES, OPERAND_BYTES
from pipewave.kernels.estimate import combine, launch_s, log2
from pipewave.kernels.residency import least_dram


def active_experts(cols: Columns) -> Array:
    """Expected local experts that receive a token when routing is uniform."""
    local = cols["experts"] / cols["ep"]
    idle = (1.0 - cols["topk"] / cols["experts"]) ** cols["tokens"]
    return np.asarray(np.maximum(local * (1.0 - idle), 1.0))


def least(cols: Columns, ctx: Context) -> Demand:
    """Least work: routed pairs through the matrices present, weights of the experts in use once."""
    part = ctx.option("part", "all")
    matrices = np.where(cols["gated"] > 0, 2.0, 1.0) * (part != "w2") + (part != "w13")
    inter = cols["inter"] / cols["tp"]
    pairs = cols["tokens"] * cols["topk"] / cols["ep"]
    weights = OPERAND_BYTES[ctx.dtype] * active_experts(cols) * matrices * cols["hidden"] * inter
    x = ACTIVATION_BYTES * cols["tokens"] * cols["hidden"]
    return demand(
        len(inter),
        tensor=2.0 * pairs * matrices * cols["hidden"] * inter,
        dram=least_dram(ctx.gpu, ctx.protocol, weights, x, x),
        l2=weights + 2.0 * x,
        launch=5.0 if part == "all" else 1.0,
    )


def analyse(cols: Columns, ctx: Context) -> Analysis:
    """Demand, base estimate and features of a batch of fused-MoE calls."""
    work = least(cols, ctx)
    seconds = work.seconds(ctx.gpu, ctx.dtype)
    kernels = 5.0 if ctx.option("part", "all") == "all" else 1.0
    base = launch_s(ctx.gpu, kernels) + combine(seconds[0] / 0.5, work.dram / (0.8e9 * ctx.gpu.dram_gbps))
    features = {"tensor": log2(work.tensor), "dram": log2(work.dram), "tokens": log2(cols["tokens"])}
    return Analysis(work, base, features, "fused_moe")


FAMILY = register(Family("fused_moe", FusedMoe, analyse, options=("routing", "part", "config"), nets=("fused_moe",)))

"""What a timed call spends before its products besides the usual kernels: routers without a kernel, slow casts."""

from __future__ import annotations

import numpy as np

from pipewave.kernels.base import Context
from pipewave.kernels.moe.layer import Layer
from pipewave.kernels.moe.machine import MoeMachine
from pipewave.physics.demand import Array


def before_s(work: Layer, ctx: Context, at: MoeMachine) -> Array:
    """Seconds of each call, by the rules `moe_router` and `moe_before_products`; none for one product alone."""
    if work.part != "all":
        return np.zeros_like(work.tokens)
    extra = ctx.rule("moe_before_products")
    cast = extra["seconds"] + extra["cycles"] * work.tokens * work.hidden * at.cycle_s / at.sms
    return np.asarray(cast + _router_s(work, ctx, at))


def _router_s(work: Layer, ctx: Context, at: MoeMachine) -> Array:
    """What operations cost that choose experts where the router's kernel does not take so many."""
    router = ctx.rule("moe_router")
    if router is None:
        return np.zeros_like(work.tokens)
    beyond = (work.experts > router["experts"]) | (work.topk > router["topk"])
    spent = router["seconds"] + router["cycles"] * work.tokens * work.experts * at.cycle_s / at.sms
    return np.where(beyond, spent, 0.0)

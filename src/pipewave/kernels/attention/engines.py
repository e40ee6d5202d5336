"""Which attention kernel runs an implementation's name on one GPU, tiled for one head dimension."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from pipewave.kernels.attention.engine import AttentionKernel, Case
from pipewave.kernels.attention.tilings import TILINGS
from pipewave.kernels.base import Context
from pipewave.software.stack_rules import constant


def engine_name(impl: str, framework: str, mma: str) -> str:
    """Which kernel an implementation's name means on a GPU of that tensor instruction."""
    return str(constant("attention_engine", impl=impl, framework=framework, mma=mma))


@lru_cache(maxsize=1024)
def engine_of(ctx: Context, head_dim: int, latent: bool = False) -> AttentionKernel:
    """The engine behind a context, tiled for a head of `head_dim`."""
    name = engine_name(ctx.impl, ctx.framework, ctx.gpu.traits.mma)
    causal = bool(ctx.option("causal", True))
    paged = causal and "sdpa" not in ctx.impl
    fp8 = _runs_fp8(ctx, name)
    case = Case(ctx.gpu, head_dim, causal, fp8, paged, latent, ctx.framework, ctx.version)
    return replace(TILINGS[name](case), fp8=fp8)


def _runs_fp8(ctx: Context, name: str) -> bool:
    """Whether products run in fp8."""
    operands = ("queries" if ctx.dtype.startswith("fp8") else
                "cache" if str(ctx.option("kv_dtype")).startswith("fp8") else "none")  # fmt: skip
    facts = {"engine": name, "asynchronous": ctx.gpu.traits.asynchronous, "fp8": operands}
    return bool(constant("attention_fp8_products", **facts))

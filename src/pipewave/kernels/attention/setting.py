"""What an attention kernel finds on its GPU under a protocol: rates, cycles of a block, cache, small kernels beside."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from pipewave.gpus import GPU
from pipewave.kernels.attention.software import ENGINES, LINEAGES, AttentionKernel, engine_of
from pipewave.kernels.attention.tasks import Amount, Heads
from pipewave.kernels.base import Context, Features
from pipewave.physics.arith import Arith, clipped
from pipewave.physics.cache import COLD, MISSES, SERVING, l2_bytes, missing_share
from pipewave.physics.demand import Array
from pipewave.physics.launch import launch_s
from pipewave.software.rule_values import Companions
from pipewave.software.rules import constant

# Kernels that a framework runs beside attention, and that its measured operator holds: cache writes, rotations, casts.
#
# They walk over the new tokens once or twice. That is little beside long prompts and beside a launch, but half of the
# time of many short ones. The rules `attention_companions` and
# `attention_decode_companions` say how many run.


def companions_of(ctx: Context, *, causal: bool, fp8: bool) -> Companions:
    """What runs beside an implementation; a kernel that was measured alone has nothing beside it."""
    found: Companions = ctx.rule("attention_companions", causal=causal, fp8=fp8)
    return found


def of_decode(ctx: Context, *, fp8: bool, latent: bool) -> Companions:
    """The same where every request brings one query."""
    found: Companions = ctx.rule("attention_decode_companions", fp8=fp8, latent=latent)
    return found


# What is the same for a whole batch of attention calls, worked out once: engine, rates, flags.

LEAST, MOST = 2.0**-12, 2.0**40  # of what a net sees as a logarithm


@dataclass(frozen=True, slots=True)
class AttentionSetting:
    """An engine on a GPU under a protocol; rates in bytes and cycles per second."""

    gpu: GPU
    engine: AttentionKernel
    companions: Companions
    decode_companions: Companions
    widest_window: float | None  # keys from which decode applies no window; None: it applies every one
    sms: float
    hertz: float
    launch_s: float
    dram_rate: float
    l2_rate: float
    l2_bytes: float
    warm: bool
    product: str  # type that the tensor cores multiply
    row_step_cycles: float  # of an SM for one query row against one KV tile of prefill
    block_cycles: float  # of an SM for one row tile against one KV tile of decode
    flags: Mapping[str, float]
    lineages: Mapping[str, float]  # whose engine it is, for nets of prefill
    page_loads: bool  # prompts' keys may come by pages of whole tiles
    query_loads: tuple[int, ...]  # heads of a group whose queries a copy engine packs

    def missing(self, footprint: Amount, xp: Arith) -> Amount:
        """Share of the bytes that the L2 does not hold when the kernel starts."""
        return missing_share(MISSES["least"], self.l2_bytes, footprint, xp) if self.warm else 1.0


def setting_of(ctx: Context, layout: Heads) -> AttentionSetting:
    """The setting of a context for a head layout."""
    return _setting(ctx, int(layout.dim), layout.dim_v / layout.dim, layout.kv_bytes, layout.causal, layout.latent)


@lru_cache(maxsize=1024)
def _setting(
    ctx: Context, dim: int, value_share: float, kv_bytes: float, causal: bool, latent: bool
) -> AttentionSetting:
    gpu, engine = ctx.gpu, engine_of(ctx, dim, latent)
    dims = engine.dim * (1.0 + value_share)
    warm = ctx.protocol not in (COLD, SERVING)
    flags = {f"engine_{name}": engine.name == name for name in ENGINES}
    fp8 = kv_bytes == 1.0
    facts = {"engine": engine.name, "mma": gpu.traits.mma}
    flags |= {"fp8_math": engine.fp8, "fp8_cache": fp8, "causal": causal}
    flags |= {"sinks": bool(ctx.option("sinks", False)), "cold": not warm}
    return AttentionSetting(
        gpu=gpu,
        engine=engine,
        companions=companions_of(ctx, causal=causal, fp8=fp8),
        decode_companions=of_decode(ctx, fp8=fp8, latent=latent),
        widest_window=constant("attention_widest_window", framework=ctx.framework, engine=engine.name),
        sms=float(gpu.sms),
        hertz=gpu.sustained_clock_mhz * 1e6,
        launch_s=launch_s(gpu),
        dram_rate=gpu.dram_gbps * 1e9,
        l2_rate=gpu.l2_gbps * 1e9,
        l2_bytes=l2_bytes(gpu),
        warm=warm,
        product=_product(gpu, fp8=engine.fp8),
        row_step_cycles=engine.prefill.keys * _pair_cycles(engine, dims, gpu, engine.exp_cost, fp8=engine.fp8),
        block_cycles=engine.decode.rows * engine.decode.keys * _pair_cycles(engine, dims, gpu, 1.0, fp8=False),
        flags={name: float(flag) for name, flag in flags.items()},
        lineages={f"lineage_{name}": float(engine.name in made) for name, made in LINEAGES.items()},
        page_loads=_whole_pages(ctx, engine) and bool(constant("attention_page_loads", **facts)),
        query_loads=tuple(constant("attention_query_loads", framework=ctx.framework, **facts)),
    )


def _whole_pages(ctx: Context, engine: AttentionKernel) -> bool:
    """Whether each page of the cache holds whole KV tiles of prompts."""
    page = ctx.option("page_size")
    return bool(page) and page % engine.prefill.keys == 0


def _pair_cycles(engine: AttentionKernel, dims: float, gpu: GPU, exp_cost: float, *, fp8: bool) -> float:
    """SM cycles of one query-key pair: its products and its exponential as far as they do not hide it."""
    products = 2.0 * dims / gpu.flops_per_clk_per_sm(_product(gpu, fp8=fp8))
    return engine.tensor_cost * products + exp_cost / gpu.xu_per_clk_per_sm


def _product(gpu: GPU, *, fp8: bool) -> str:
    return "fp8" if fp8 and gpu.supports("fp8") else "fp16"


class Estimate(NamedTuple):
    """Base seconds, quantities that a net sees as logarithms, and those it sees as they are."""

    base_s: Amount
    sizes: Mapping[str, Amount]
    plain: Mapping[str, Amount]

    def features(self, setting: AttentionSetting, xp: Arith) -> Mapping[str, Amount]:
        """All features by name: floats of one call, arrays over many."""
        if not isinstance(self.base_s, np.ndarray):
            logs = {name: xp.log2(clipped(size, LEAST, MOST, xp)) for name, size in self.sizes.items()}
            return {**logs, **self.plain, **setting.flags}
        values = _stacked((*self.sizes.values(), *self.plain.values(), *setting.flags.values()), len(self.base_s))
        sizes = values[: len(self.sizes)]
        np.log2(np.minimum(np.maximum(sizes, LEAST), MOST), out=sizes)
        return Features((*self.sizes, *self.plain, *setting.flags), values)


def _stacked(values: tuple[Amount, ...], calls: int) -> Array:
    rows = np.empty((len(values), calls))
    for row, value in zip(rows, values, strict=True):
        row[:] = value
    return rows


def reach(layout: Heads, kv: Amount, xp: Arith) -> Amount:
    """Window over keys; 16 where all are seen."""
    if layout.window is None:
        return 16.0
    return xp.where(layout.window > 0, layout.window / kv, 16.0)

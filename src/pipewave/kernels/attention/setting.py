"""What an attention kernel finds on its GPU under a protocol: rates, cycles of a block, cache, small kernels beside."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from pipewave.gpus import GPU
from pipewave.kernels.attention.software import ENGINES, LINEAGES, AttentionKernel, engine_of
from pipewave.kernels.attention.tasks import Amount, Heads
from pipewave.kernels.base import Context, Features
from pipewave.physics.arith import Arith, clipped
from pipewave.physics.cache import COLD, MISSES, SERVING, l2_bytes, missing_share
from pipewave.physics.overlap import launch_s
from pipewave.software.rule_values import Companions
from pipewave.software.rules import constant

# What is the same for a whole batch of attention calls, worked out once: engine, rates, flags.

LEAST, MOST = 2.0**-12, 2.0**40  # of what a net sees as a logarithm


class AttentionSetting:
    """An engine on a GPU under a protocol; rates in bytes and cycles per second."""

    def __init__(self, ctx: Context, dim: int, value_share: float, kv_bytes: float, causal: bool, latent: bool) -> None:
        gpu, engine, fp8 = ctx.gpu, engine_of(ctx, dim, latent), kv_bytes == 1.0
        facts = {"engine": engine.name, "mma": gpu.traits.mma}
        self.engine = engine
        # Kernels that a framework runs beside attention, and that its measured operator holds: cache writes, rotations,
        # casts. They walk over the new tokens once or twice. That is little beside long prompts and beside a launch,
        # but half of the time of many short ones. A kernel that was measured alone has nothing beside it.
        self.companions: Companions = ctx.rule("attention_companions", causal=causal, fp8=fp8)
        self.decode_companions: Companions = ctx.rule("attention_decode_companions", fp8=fp8, latent=latent)
        # Keys from which decode applies no window; None: it applies every one.
        self.widest_window = constant("attention_widest_window", framework=ctx.framework, engine=engine.name)
        self.sms = float(gpu.sms)
        self.hertz = gpu.sustained_clock_mhz * 1e6
        self.launch_s = launch_s(gpu)
        self.dram_rate, self.l2_rate = gpu.dram_gbps * 1e9, gpu.l2_gbps * 1e9
        self.l2_bytes = l2_bytes(gpu)
        self.warm = ctx.protocol not in (COLD, SERVING)
        self.product = "fp8" if engine.fp8 and gpu.supports("fp8") else "fp16"  # type that the tensor cores multiply
        # Cycles of an SM for one query row against one KV tile of prefill, and for one row tile against one of decode.
        dims = engine.dim * (1.0 + value_share)
        prompt_pair = _pair_cycles(engine, dims, gpu, engine.exp_cost, self.product)
        self.row_step_cycles = engine.prefill.keys * prompt_pair
        self.block_cycles = engine.decode.rows * engine.decode.keys * _pair_cycles(engine, dims, gpu, 1.0, "fp16")
        flags = {f"engine_{name}": engine.name == name for name in ENGINES}
        flags |= {"fp8_math": engine.fp8, "fp8_cache": fp8, "causal": causal}
        flags |= {"sinks": bool(ctx.option("sinks", False)), "cold": not self.warm}
        self.flags = {name: float(flag) for name, flag in flags.items()}
        # Whose engine it is, for nets of prefill.
        self.lineages = {f"lineage_{name}": float(engine.name in made) for name, made in LINEAGES.items()}
        page = ctx.option("page_size")
        whole_pages = bool(page) and page % engine.prefill.keys == 0  # pages of whole tiles, which prompts may come by
        self.page_loads = whole_pages and bool(constant("attention_page_loads", **facts))
        # Heads of a group whose queries a copy engine packs.
        self.query_loads = tuple(constant("attention_query_loads", framework=ctx.framework, **facts))

    def missing(self, footprint: Amount, xp: Arith) -> Amount:
        """Share of the bytes that the L2 does not hold when the kernel starts."""
        return missing_share(MISSES["least"], self.l2_bytes, footprint, xp) if self.warm else 1.0


_setting = lru_cache(maxsize=1024)(AttentionSetting)


def setting_of(ctx: Context, layout: Heads) -> AttentionSetting:
    """The setting of a context for a head layout, worked out once."""
    return _setting(ctx, int(layout.dim), layout.dim_v / layout.dim, layout.kv_bytes, layout.causal, layout.latent)


def _pair_cycles(engine: AttentionKernel, dims: float, gpu: GPU, exp_cost: float, product: str) -> float:
    """SM cycles of one query-key pair: its products and its exponential as far as they do not hide it."""
    products = 2.0 * dims / gpu.flops_per_clk_per_sm(product)
    return engine.tensor_cost * products + exp_cost / gpu.xu_per_clk_per_sm


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
        found = {**self.sizes, **self.plain, **setting.flags}
        values = np.empty((len(found), len(self.base_s)))
        for row, value in zip(values, found.values(), strict=True):
            row[:] = value
        sizes = values[: len(self.sizes)]
        np.log2(np.minimum(np.maximum(sizes, LEAST), MOST), out=sizes)
        return Features(tuple(found), values)


def reach(layout: Heads, kv: Amount, xp: Arith) -> Amount:
    """Window over keys; 16 where all are seen."""
    return 16.0 if layout.window is None else xp.where(layout.window > 0, layout.window / kv, 16.0)

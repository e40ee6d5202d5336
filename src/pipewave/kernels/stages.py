"""An operator of several kernels as stages: work and traffic of each, and the time that a decent kernel takes for it.

A stage streams bytes, multiplies on tensor cores in blocks that fall onto SMs in waves, and may hold a chain of steps
that wait for one another. Stages run one after the other; what one writes the next reads, from L2 where that holds it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from pipewave.calls.dtypes import ACTIVATION_BYTES, OPERAND_BYTES
from pipewave.gpus import GPU
from pipewave.kernels.base import Analysis, Context
from pipewave.kernels.streaming.stream import L2_SHARE, Stream, dram_bytes, least_bytes
from pipewave.physics.arith import log2
from pipewave.physics.cache import COLD, MISSES, SERVING, STREAM_DRAM_SHARE, l2_bytes, missing_share
from pipewave.physics.demand import Array, demand
from pipewave.physics.overlap import launch_s, overlapped, wave_efficiency
from pipewave.physics.power import Work

Amount = Any  # [call], or a float that is the same for all
MATH_SHARE = 0.7  # of the datasheet's tensor peak, in full waves
TILE = 128.0  # rows and columns of a block of a product
FEWEST_ROWS = 16.0  # rows a tensor-core product computes at least
# Rows of a tile of kernels for operands with scales along k: DeepGEMM and Triton's block kernels; CUTLASS in 4 bits.
SCALED_ROWS = {"fp8_block": 64.0, "nvfp4": 128.0, "mxfp4": 128.0}
UNTOLD = ""  # name of stages that add to the time and are no features: a net that has not met them would extrapolate
LOG_TIME = -24.0, -4.0  # 60 ns to 60 ms: beyond, operators only scale


@dataclass(frozen=True, slots=True)
class Stage:
    """One kernel, or a few alike: operations of `dtype`, bytes as in `Stream`, blocks, a chain, launches."""

    name: str
    flops: Amount = 0.0
    dtype: str = "bf16"
    fresh: Amount = 0.0
    read: Amount = 0.0
    written: Amount = 0.0
    blocks: Amount = 1e9
    chain_s: Amount = 0.0
    launches: Amount = 1.0
    cycles: Amount = 0.0  # clocks of an SM that issuing takes, of all blocks together
    gathered: Amount = 0.0  # bytes drawn from L2 again and again, beside those above
    tile_flops: Amount = 0.0  # of one block, padded rows among them: one SM does these however few blocks there are


@dataclass(frozen=True)
class Stages:
    """The stages of a batch of calls, in order."""

    ctx: Context
    calls: int
    parts: Sequence[Stage]
    border: Stream  # bytes that cross the operator's border
    least_flops: Amount

    @cached_property
    def seconds(self) -> dict[str, Array]:
        """Time of each stage by name; stages of one name add up."""
        found: dict[str, Array] = {}
        for part in self.parts:
            found[part.name] = found.get(part.name, 0.0) + self._seconds(part)
        return found

    @cached_property
    def missing(self) -> Array:
        """Share of weights, caches and states that come from DRAM: under warm protocols all of them compete for L2."""
        fresh = np.ones(self.calls) * sum(part.fresh for part in self.parts)
        if self.ctx.protocol in (COLD, SERVING):
            return np.ones(self.calls)
        return np.asarray(missing_share(MISSES["one_piece"], l2_bytes(self.ctx.gpu), fresh))

    @cached_property
    def base_s(self) -> Array:
        """Time of all stages."""
        return np.asarray(sum(self.seconds.values()))

    def analysis(self, features: Mapping[str, Amount], net: str) -> Analysis:
        """Demand, base estimate and features: what the family names, and how long each stage takes."""
        border, told = self.border, {name: took for name, took in self.seconds.items() if name != UNTOLD}
        least = demand(
            self.calls,
            tensor=self.least_flops,
            dram=least_bytes(self.ctx.gpu, self.ctx.protocol, border),
            l2=border.moved,
            launch=1.0,
        )
        named = columns_of(features, self.calls)
        named |= {
            f"log_{name}": np.clip(log2(took), *LOG_TIME) for name, took in (told | {"base": self.base_s}).items()
        }
        named |= {f"share_{name}": took / self.base_s for name, took in told.items()}
        return Analysis(least, self.base_s, named, net, self._work())

    def _work(self) -> Work:
        """What all stages do: FLOPs as those of the call's type that take as long."""
        flops = sum(in_units_of(self.ctx, part.flops, part.dtype) for part in self.parts)
        passed = sum(part.fresh + part.read + part.written + part.gathered for part in self.parts)
        return Work(flops, sum(self._exchanged(part) for part in self.parts), passed).laid_out(self.calls)

    def _seconds(self, part: Stage) -> Array:
        gpu, full = self.ctx.gpu, np.ones(self.calls)
        dram = self._exchanged(part) / (STREAM_DRAM_SHARE * 1e9 * gpu.dram_gbps)
        passed = part.read + part.written + part.fresh + part.gathered
        through = passed / (L2_SHARE * 1e9 * gpu.l2_peak_gbps)
        waves = wave_efficiency(full * part.blocks / gpu.sms)
        math = part.flops / (MATH_SHARE * rate(gpu, part.dtype) * waves)
        issue = part.cycles / (gpu.sms * gpu.sustained_clock_mhz * 1e6 * waves)
        alone = part.tile_flops * gpu.sms / rate(gpu, part.dtype)
        held = overlapped(3, math, dram, through, issue, full * (part.chain_s + alone))
        return np.asarray(part.launches * launch_s(gpu) + held)

    def _exchanged(self, part: Stage) -> Array:
        """Bytes a stage exchanges with DRAM."""
        full = np.ones(self.calls)
        moving = Stream(0.0 * full, full * part.read, full * part.written)
        return np.asarray(dram_bytes(self.ctx.gpu, self.ctx.protocol, moving) + full * part.fresh * self.missing)


def columns_of(features: Mapping[str, Amount], calls: int) -> dict[str, Array]:
    """Features as arrays over `calls`, constants among them."""
    return {name: np.broadcast_to(np.asarray(value, float), (calls,)) for name, value in features.items()}


def rate(gpu: GPU, dtype: str, at: str = "datasheet") -> float:
    """FLOP/s of a type, or of 16 bits where the part lacks it: kernels convert on the way."""
    known = dtype if gpu.supports(dtype) else "bf16" if gpu.supports("bf16") else "fp16"
    return gpu.peak_flops(known, at="boost" if at == "boost" else "datasheet")


def in_units_of(ctx: Context, flops: Amount, dtype: str) -> Amount:
    """Operations of one type as the operations of the call's type that take as long: what `demand` counts in."""
    return flops * (rate(ctx.gpu, ctx.dtype, "boost") / rate(ctx.gpu, dtype, "boost"))


def product(name: str, m: Amount, n: Amount, k: Amount, dtype: str, batch: Amount = 1.0) -> Stage:
    """y[b,m,n] = x[b,m,k] · W[b,n,k]ᵀ with 16-bit x and y; types below 16 bits quantise x in a launch of its own.

    Few tiles are cut along k, but for those whose operands have scales along k: one SM walks all of it.
    """
    scaled, narrow = dtype in SCALED_ROWS, dtype not in ("bf16", "fp16")
    rows = np.maximum(m, FEWEST_ROWS)
    blocks = batch * np.ceil(rows / TILE) * np.ceil(n / TILE)
    splits = 1.0 if scaled else np.clip(np.floor(256.0 / blocks), 1.0, np.maximum(k / 512.0, 1.0))
    quantised = narrow * OPERAND_BYTES[dtype] * batch * m * k
    return Stage(
        name,
        flops=2.0 * batch * rows * n * k,
        dtype=dtype,
        fresh=batch * n * k * OPERAND_BYTES[dtype],
        read=ACTIVATION_BYTES * batch * m * k + quantised,
        written=ACTIVATION_BYTES * batch * m * n + quantised,
        blocks=blocks * splits,
        launches=1.0 + narrow,
        tile_flops=2.0 * SCALED_ROWS[dtype] * np.minimum(n, TILE) * k if scaled else 0.0,
    )

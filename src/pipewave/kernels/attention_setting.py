"""What is the same for a whole batch of attention calls, worked out once: engine, rates, flags."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from pipewave.demand import Array
from pipewave.gpus import GPU
from pipewave.kernels.attention_engines import ENGINES, Engine, engine_of
from pipewave.kernels.attention_shape import Shape
from pipewave.kernels.base import Context
from pipewave.kernels.estimate import launch_s
from pipewave.kernels.residency import COLD, SERVING, l2_bytes, missing_share

LEAST, MOST = 2.0**-12, 2.0**40  # of what a net sees as a logarithm


@dataclass(frozen=True, slots=True)
class Setting:
    """An engine on a GPU under a protocol; rates in bytes and cycles per second."""

    gpu: GPU
    engine: Engine
    framework: str
    hertz: float
    launch_s: float
    dram_rate: float
    l2_rate: float
    l2_bytes: float
    warm: bool
    row_step_cycles: float  # of an SM for one query row against one KV tile of prefill
    block_cycles: float  # of an SM for one row tile against one KV tile of decode
    flags: Mapping[str, bool]

    def missing(self, footprint: Array) -> Array | float:
        """Share of the bytes that the L2 does not hold when the kernel starts."""
        return missing_share(self.l2_bytes, footprint) if self.warm else 1.0


@lru_cache(maxsize=1024)
def setting_of(ctx: Context, dim: int, kv_bytes: float, causal: bool) -> Setting:
    """The setting of a context for heads of `dim`."""
    gpu, engine = ctx.gpu, engine_of(ctx, dim)
    warm = ctx.protocol not in (COLD, SERVING)
    flags = {f"engine_{name}": engine.name == name for name in ENGINES}
    flags |= {"fp8_math": engine.fp8, "fp8_cache": kv_bytes == 1.0, "causal": causal}
    flags |= {"sinks": bool(ctx.option("sinks", False)), "cold": not warm}
    return Setting(
        gpu=gpu,
        engine=engine,
        framework=ctx.framework,
        hertz=gpu.sustained_clock_mhz * 1e6,
        launch_s=launch_s(gpu),
        dram_rate=gpu.dram_gbps * 1e9,
        l2_rate=gpu.l2_gbps * 1e9,
        l2_bytes=l2_bytes(gpu),
        warm=warm,
        row_step_cycles=engine.prefill.keys * _pair_cycles(engine, gpu, engine.exp_cost, fp8=engine.fp8),
        block_cycles=engine.decode.rows * engine.decode.keys * _pair_cycles(engine, gpu, 1.0, fp8=False),
        flags=flags,
    )


def _pair_cycles(engine: Engine, gpu: GPU, exp_cost: float, *, fp8: bool) -> float:
    """SM cycles of one query-key pair: its products and its exponential as far as they do not hide it."""
    products = 4.0 * engine.dim / gpu.flops_per_clk_per_sm("fp8" if fp8 and gpu.supports("fp8") else "fp16")
    return engine.tensor_cost * products + exp_cost / gpu.xu_per_clk_per_sm


@dataclass(frozen=True, slots=True)
class Estimate:
    """Base seconds, quantities that a net sees as logarithms, and those it sees as they are."""

    base_s: Array
    sizes: Mapping[str, Array]
    plain: Mapping[str, Array]

    def features(self, setting: Setting) -> dict[str, Array]:
        """All features by name; one logarithm for all sizes."""
        zeros, ones = np.zeros(len(self.base_s)), np.ones(len(self.base_s))
        sizes = np.array(list(self.sizes.values()))
        logs = np.log2(np.minimum(np.maximum(sizes, LEAST), MOST))
        flags = {name: ones if flag else zeros for name, flag in setting.flags.items()}
        return dict(zip(self.sizes, logs, strict=True)) | dict(self.plain) | flags


def overlapped(*seconds: Array) -> Array:
    """Overlap of resources: the 3-norm lies between the longest alone and the sum."""
    total = seconds[0] ** 3
    for each in seconds[1:]:
        total = total + each**3
    return np.cbrt(total)


def reach(shape: Shape, kv: Array) -> Array:
    """Window over keys; 16 where all are seen."""
    window = shape.layout.window
    return np.full(len(kv), 16.0) if window is None else np.where(window > 0, window / kv, 16.0)

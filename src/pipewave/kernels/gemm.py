"""Dense matrix product y[m,n] = x[m,k]·W[n,k]ᵀ: output tiles, waves over the SMs, and L2-aware memory time."""

from __future__ import annotations

from typing import Any

import numpy as np

from pipewave.calls import Gemm
from pipewave.demand import demand
from pipewave.kernels.arith import Arith
from pipewave.kernels.base import Analysis, Columns, Context, Family, register
from pipewave.kernels.gemm_machine import DRAM_SHARE, Machine, machine
from pipewave.kernels.gemm_tiles import TILES, Tiling, tiling
from pipewave.kernels.gemm_traffic import Traffic, quantize_s, traffic


def analyse(cols: Columns, ctx: Context) -> Analysis:
    """Demand, base estimate and features of a batch of GEMMs."""
    m, n, k, at = cols["m"], cols["n"], cols["k"], machine(ctx)
    moved, tiles = traffic(m, n, k, at, np), tiling(m, n, k, at, np)
    flops = 2.0 * m * n * k
    quantize = quantize_s(m, k, moved, at, np) + 0.0 * m
    memory = moved.dram / (DRAM_SHARE * at.dram)
    through = (moved.x + moved.weights + moved.y) / at.l2
    product = np.sqrt(tiles.best**2 + memory**2 + through**2)
    base = at.launch_s + product + quantize
    features = _shape(m, n, k, at, moved, np) | _times(flops, moved, tiles, memory, through, quantize, base, at, np)
    least = demand(
        len(m),
        tensor=flops,
        dram=moved.least_dram,
        l2=moved.x + moved.weights + moved.y,
        launch=1.0 + at.quantize_kernels,
    )
    return Analysis(least, base, features, "gemm")


def _shape(m: Any, n: Any, k: Any, at: Machine, moved: Traffic, xp: Arith) -> dict[str, Any]:
    """Sizes, padding, residency."""
    l2 = 1.0 / at.l2_bytes
    zero = 0.0 * m
    return {
        "log_m": xp.log2(m),
        "log_n": xp.log2(n),
        "log_k": xp.log2(k),
        "pad_m64": m / (64.0 * xp.ceil(m * (1 / 64))),
        "pad_m128": m / (128.0 * xp.ceil(m * (1 / 128))),
        "pad_m256": m / (256.0 * xp.ceil(m * (1 / 256))),
        "pad_n128": n / (128.0 * xp.ceil(n * (1 / 128))),
        "pad_n256": n / (256.0 * xp.ceil(n * (1 / 256))),
        "in_l2": clipped(xp.log2(moved.footprint * l2), 4.0, xp),
        "weights_in_l2": clipped(xp.log2(moved.weights * l2), 4.0, xp),
        "x_in_l2": clipped(xp.log2(moved.x * l2), 6.0, xp),
        "y_in_l2": clipped(xp.log2(moved.y * l2), 6.0, xp),
        "cached": moved.cached + zero,
        "sglang": zero + (at.framework == "sglang"),
        "trtllm": zero + (at.framework == "trtllm"),
        "vllm": zero + (at.framework == "vllm"),
    }


def _times(
    flops: Any,
    moved: Traffic,
    tiles: Tiling,
    memory: Any,
    through: Any,
    quantize: Any,
    base: Any,
    at: Machine,
    xp: Arith,
) -> dict[str, Any]:
    """Times of the parts, absolute and beside the base estimate; waves of each tile."""
    zero = 0.0 * flops
    logs = {"log_base": xp.log2(base), "log_tile": xp.log2(tiles.best), "log_tensor": xp.log2(flops / at.peak)}
    out = logs | {
        "log_memory": xp.log2(memory + 1e-7),
        "log_cold": xp.log2((moved.x + moved.weights + moved.y) / at.dram),
        "log_through": xp.log2(through),
        "tile_share": tiles.best / base,
        "memory_share": memory / base,
        "quantize_share": quantize / base,
        "launch_share": at.launch_s / base,
        "log_quantize": xp.log2(quantize + 1e-6),
        "tensor_share": flops / at.peak / base,
        "log_balance": zero + xp.log2(at.peak / at.dram),
        "log_sms": zero + xp.log2(at.sms),
        "log_sm_flops": zero + xp.log2(at.flops_per_sm),
        "log_l2_balance": zero + xp.log2(at.peak / at.l2),
    }
    for (rows, columns), seconds, per_sm in zip(TILES, tiles.seconds, tiles.per_sm, strict=True):
        name = f"{rows}x{columns}"
        out[f"beside_{name}"] = xp.minimum(xp.log2(seconds / tiles.best), 4.0)
        out[f"waves_{name}"] = per_sm / xp.ceil(per_sm)
    out["log_tiles"] = xp.log2(tiles.per_sm[3])
    return out


def clipped(value: Any, limit: float, xp: Arith) -> Any:
    """Within ±limit."""
    return xp.maximum(xp.minimum(value, limit), -limit)


FAMILY = register(Family("gemm", Gemm, analyse, options=("quantize", "tile"), nets=("gemm",)))

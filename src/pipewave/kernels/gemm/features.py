"""What the learned residual of a GEMM looks at: sizes, residency, padding, waves, and times beside the base estimate.

No feature is a property of the GPU alone: with a handful of GPUs in training such a feature is a name tag, and a new
GPU's tag means nothing. The GPU reaches the net as a category, which may be unknown.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from pipewave.kernels.gemm.machine import GemmMachine
from pipewave.kernels.gemm.tiles import TILES, Tiling
from pipewave.kernels.gemm.traffic import Traffic
from pipewave.physics.arith import Arith
from pipewave.physics.cache import PRODUCT_DRAM_SHARE
from pipewave.physics.overlap import overlapped
from pipewave.physics.waves import wave_efficiency

MORE_TILES = ((256, 128), (192, 128), (128, 192))  # seen in kernel names; only their waves are worth a feature
BESIDE = tuple(f"beside_{rows}x{columns}" for rows, columns in TILES)
WAVES = tuple(f"waves_{rows}x{columns}" for rows, columns in TILES)
MORE_WAVES = tuple(f"waves_{rows}x{columns}" for rows, columns in MORE_TILES)
FRAMEWORKS = ("sglang", "trtllm", "vllm")


class GemmTimes(NamedTuple):
    """Seconds of the parts of a GEMM and of the whole."""

    tensor: Any  # at the datasheet peak
    tile: Any
    power: Any
    memory: Any
    through: Any  # every operand once through the L2
    quantize: Any
    base: Any


def times(flops: Any, moved: Traffic, tiles: Tiling, quantize: Any, at: GemmMachine, xp: Arith) -> GemmTimes:
    """Parts overlap as far as a p-norm lets them; launch and quantisation do not overlap."""
    power = (flops * at.joules_per_flop + moved.dram * at.joules_per_byte) * (1.0 / at.watts)
    memory = moved.dram * (1.0 / (PRODUCT_DRAM_SHARE * at.dram))
    through = moved.all * (1.0 / at.l2)
    on_sms = overlapped(4, tiles.best, power, xp=xp)
    base = at.launch_s + overlapped(2, on_sms, memory, through, xp=xp) + quantize
    return GemmTimes(flops * (1.0 / at.peak), tiles.best, power, memory, through, quantize, base)


def features(
    m: Any, n: Any, k: Any, moved: Traffic, tiles: Tiling, t: GemmTimes, at: GemmMachine, xp: Arith
) -> dict[str, Any]:
    """By name; logarithms are base 2, of seconds or of bytes over the size of the L2."""
    return _sizes(m, n, k, moved, tiles, at, xp) | _parts(moved, t, at, xp) | _tiles(tiles, at, xp)


def _sizes(m: Any, n: Any, k: Any, moved: Traffic, tiles: Tiling, at: GemmMachine, xp: Arith) -> dict[str, Any]:
    l2, rows = 1.0 / at.l2_bytes, tiles.rows
    out = {
        "log_m": xp.log2(m),
        "log_n": xp.log2(n),
        "log_k": xp.log2(k),
        "vector": xp.where(m > 1.0, 0.0, 1.0),  # a matrix times one vector runs other kernels
        "pad_m16": m / rows[16],
        "pad_m64": m / rows[64],
        "pad_m128": m / rows[128],
        "pad_m256": m / rows[256],
        "in_l2": _clipped(xp.log2(moved.footprint * l2), 4.0, xp),
        "weights_in_l2": _clipped(xp.log2(moved.weights * l2), 4.0, xp),
        "x_in_l2": _clipped(xp.log2(moved.x * l2), 6.0, xp),
        "y_in_l2": _clipped(xp.log2(moved.y * l2), 6.0, xp),
        "cached": moved.cached,
    }
    return out | {name: float(at.framework == name) for name in FRAMEWORKS}


def _parts(moved: Traffic, t: GemmTimes, at: GemmMachine, xp: Arith) -> dict[str, Any]:
    whole = 1.0 / t.base
    return {
        "log_base": xp.log2(t.base),
        "log_tile": xp.log2(t.tile),
        "log_tensor": xp.log2(t.tensor),
        "log_power": xp.log2(t.power),
        "log_memory": xp.log2(t.memory + 1e-7),
        "log_cold": xp.log2(moved.all * (1.0 / at.dram)),
        "log_through": xp.log2(t.through),
        "log_quantize": xp.log2(t.quantize + 1e-6),
        "tensor_share": t.tensor * whole,
        "tile_share": t.tile * whole,
        "power_share": t.power * whole,
        "memory_share": t.memory * whole,
        "through_share": t.through * whole,
        "quantize_share": t.quantize * whole,
        "launch_share": at.launch_s * whole,
    }


def _tiles(tiles: Tiling, at: GemmMachine, xp: Arith) -> dict[str, Any]:
    best = 1.0 / tiles.best
    out = {name: xp.minimum(xp.log2(seconds * best), 4.0) for name, seconds in zip(BESIDE, tiles.seconds, strict=True)}
    for name, per_sm in zip(WAVES, tiles.per_sm, strict=True):
        out[name] = wave_efficiency(per_sm, xp)
    for name, (rows, columns) in zip(MORE_WAVES, MORE_TILES, strict=True):
        per_sm = tiles.rows[rows] * tiles.columns[columns] * (1.0 / at.sms)
        out[name] = wave_efficiency(per_sm, xp)
    out["beside_unsliced"] = xp.minimum(xp.log2(tiles.unsliced * best), 6.0)
    out["log_tiles"] = xp.log2(tiles.per_sm[3])
    return out


def _clipped(value: Any, limit: float, xp: Arith) -> Any:
    return xp.maximum(xp.minimum(value, limit), -limit)

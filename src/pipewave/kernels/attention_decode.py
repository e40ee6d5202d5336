"""Decode: every request brings one query and streams its cache, split over SMs where requests are few."""

from __future__ import annotations

import numpy as np

from pipewave.demand import Array
from pipewave.kernels.attention_engines import Engine, engine_of
from pipewave.kernels.attention_features import Estimate, setting
from pipewave.kernels.attention_shape import Shape
from pipewave.kernels.attention_split import Grid, part_blocks
from pipewave.kernels.base import Context
from pipewave.kernels.estimate import combine, launch_s
from pipewave.kernels.residency import COLD, SERVING, l2_bytes, missing_share

LAUNCHES = 3.0
PORT_BYTES_PER_CLK = 40.0  # that an SM streams with softmax between its loads
BLOCK_CYCLES = 500.0  # of latency in a block that the next one's loads do not hide
MEMORY_SHARE = 0.9


def estimate(shape: Shape, ctx: Context) -> Estimate:
    """Base seconds and features of calls whose requests bring one query each."""
    gpu, engine, requests, layout = ctx.gpu, engine_of(ctx, int(shape.layout.dim)), shape.requests, shape.layout
    hertz, launch, slots = gpu.sustained_clock_mhz * 1e6, launch_s(gpu), gpu.sms * engine.decode_ctas
    row_tiles = np.ceil(shape.group / engine.decode_rows)
    units = layout.kv_heads * row_tiles
    blocks = np.ceil(shape.seen / engine.decode_kv)
    steps, deepest = requests.total(blocks) * units, requests.largest(blocks)
    grid = Grid(gpu.sms, shape.batch, units, steps, deepest, shape.group, layout.window > 0)
    part = np.minimum(part_blocks(engine, grid), deepest)
    ctas = requests.total(np.ceil(blocks / requests.spread(part))) * units
    whole = shape.batch * units
    waves = ctas / slots
    block_s = (engine.decode_kv * layout.cached * layout.kv_bytes / PORT_BYTES_PER_CLK + BLOCK_CYCLES) / hertz
    shared = np.clip(ctas / gpu.sms, 1.0, engine.decode_ctas)
    span = np.maximum(steps / slots, part * np.ceil(waves) * np.minimum(1.0, steps / (ctas * part) + 0.3))
    stream = span * shared * block_s
    merged = ctas > whole
    merge = np.where(merged, 8.0 * ctas / whole * shape.batch * layout.heads * layout.dim_v / (1e9 * gpu.l2_gbps), 0.0)
    missing = 1.0 if ctx.protocol in (COLD, SERVING) else missing_share(l2_bytes(gpu), shape.moved)
    dram = shape.moved * missing / (MEMORY_SHARE * 1e9 * gpu.dram_gbps)
    compute = steps * _block_cycles(engine, ctx) / (gpu.sms * hertz)
    base = (LAUNCHES + merged) * launch + combine(combine(dram, stream), compute) + merge
    keys = shape.keys / shape.batch
    sizes = {
        "base": base * 1e6,
        "dram": dram / launch,
        "memory": shape.moved / (1e9 * gpu.dram_gbps) / launch,
        "stream": stream / launch,
        "unsplit": np.maximum(steps / slots, deepest) * block_s / launch,
        "compute": compute / launch,
        "merge": merge / launch,
        "splits": ctas / whole,
        "waves": waves,
        "whole_waves": whole / gpu.sms,
        "part": part,
        "deepest": deepest,
        "footprint": shape.moved / l2_bytes(gpu),
        "group": shape.group,
        "kv_heads": layout.kv_heads,
        "batch": shape.batch,
        "keys": keys,
        "uneven": deepest * engine.decode_kv / keys,
        "reach": np.where(layout.window > 0, layout.window / requests.largest(requests.kv), 16.0),
        "dim": np.full(len(keys), layout.dim),
    }
    plain = {
        "merged": merged * 1.0,
        "round_off": _round_off(waves),
        "whole_round_off": _round_off(whole / gpu.sms),
        "row_fill": shape.group / (row_tiles * engine.decode_rows),
        "windowed": (layout.window > 0) * 1.0,
    }
    return Estimate(base, sizes, plain | setting(ctx, engine, shape, len(keys)))


def _round_off(waves: Array) -> Array:
    """Places of the last wave that stay empty, as a factor of one and more; at most 4."""
    return np.minimum(np.ceil(waves) / np.maximum(waves, 1e-9), 4.0)


def _block_cycles(engine: Engine, ctx: Context) -> float:
    """SM cycles of one row tile against one block of keys."""
    products = 4.0 * engine.dim / ctx.gpu.flops_per_clk_per_sm("bf16")
    return engine.decode_rows * engine.decode_kv * (engine.tensor_cost * products + 1.0 / ctx.gpu.xu_per_clk_per_sm)

"""Prefill, chunked and mixed batches: query tiles over KV tiles, dealt to the SMs."""

from __future__ import annotations

import numpy as np

from pipewave.demand import Array
from pipewave.gpus import GPU
from pipewave.kernels.attention_engines import Engine, engine_of
from pipewave.kernels.attention_features import Estimate, setting
from pipewave.kernels.attention_shape import Shape
from pipewave.kernels.attention_tiles import tile_steps
from pipewave.kernels.base import Context
from pipewave.kernels.estimate import combine, launch_s
from pipewave.kernels.residency import COLD, SERVING, l2_bytes, missing_share

LAUNCHES = 3.5  # kernels a framework puts in the graph around and including attention, in launch times
TILE_CYCLES = 3000.0  # first loads, last stores and the pipeline's fill of one query tile
MEMORY_SHARE = 0.8  # of datasheet bandwidth that a streaming kernel reaches


def estimate(shape: Shape, ctx: Context) -> Estimate:
    """Base seconds and features of calls that bring more than one query a request."""
    gpu, engine = ctx.gpu, engine_of(ctx, int(shape.layout.dim))
    tile_q = _tile_rows(engine, shape)
    slots = gpu.sms * engine.ctas_per_sm
    tiles, steps, longest = _tiles(shape, engine, tile_q)
    waves, load = tiles / slots, steps / slots
    rounds = np.ceil(waves)
    even = steps / (tiles * longest)  # 1: all tiles alike, whole waves count; less: the scheduler fills gaps
    tail = 0.3 if engine.sorts else 0.6
    span = np.maximum(load + even * even * (rounds - waves) * (steps / tiles) + tail * (1 - even) * longest, longest)
    hertz = gpu.sustained_clock_mhz * 1e6
    shared = np.clip(tiles / gpu.sms, 1.0, engine.ctas_per_sm)
    compute = span * shared * tile_q * step_cycles(engine, gpu, _math(ctx, engine)) / hertz
    fixed = rounds * (TILE_CYCLES / hertz)
    moved = shape.moved
    memory = moved * _missing(ctx, moved) / (MEMORY_SHARE * 1e9 * gpu.dram_gbps)
    kv_traffic = steps * (engine.tile_kv * (shape.layout.dim + shape.layout.dim_v) * shape.layout.kv_bytes)
    l2 = kv_traffic / (1e9 * gpu.l2_gbps)
    launch = launch_s(gpu)
    base = LAUNCHES * launch + combine(compute + fixed, memory)
    q, kv = shape.tokens / shape.batch, shape.keys / shape.batch
    sizes = {
        "base": base * 1e6,
        "compute": compute / launch,
        "fixed": fixed / launch,
        "memory": moved / (1e9 * gpu.dram_gbps) / launch,
        "l2_time": l2 / launch,
        "waves": waves,
        "span": span / load,
        "longest": longest,
        "fill": shape.pairs / (steps * tile_q * engine.tile_kv),
        "footprint": moved / l2_bytes(gpu),
        "group": shape.group,
        "kv_heads": shape.layout.kv_heads,
        "batch": shape.batch,
        "queries": q,
        "keys": kv,
        "history": kv / q,
        "reach": np.where(shape.layout.window > 0, shape.layout.window / kv, 16.0),
        "dim": np.full(len(q), shape.layout.dim),
    }
    plain = {"round_off": rounds / np.maximum(waves, 1e-9), "windowed": (shape.layout.window > 0) * 1.0, "even": even}
    plain["round_off"] = np.minimum(plain["round_off"], 4.0)
    return Estimate(base, sizes, plain | setting(ctx, engine, shape, len(q)))


def step_cycles(engine: Engine, gpu: GPU, math: str) -> float:
    """SM cycles for one query row against one KV tile: products and the exponentials they do not hide."""
    products = 4.0 * engine.dim / gpu.flops_per_clk_per_sm(math)
    return engine.tile_kv * (engine.tensor_cost * products + engine.exp_cost / gpu.xu_per_clk_per_sm)


def _math(ctx: Context, engine: Engine) -> str:
    return "fp8" if engine.fp8 and ctx.gpu.supports("fp8") else "bf16"


def _tile_rows(engine: Engine, shape: Shape) -> Array:
    """Query rows of a tile; FlashInfer takes smaller ones for short prompts."""
    if engine.name != "flashinfer":
        return np.full(len(shape.layout.heads), float(engine.tile_q))
    packed = shape.tokens * shape.group / shape.batch
    return np.where(packed > 64, float(engine.tile_q), np.where(packed > 16, 64.0, 16.0))


def _tiles(shape: Shape, engine: Engine, tile_q: Array) -> tuple[Array, Array, Array]:
    """Tiles of all heads, the KV tiles they visit, and those of the longest tile, per call."""
    requests = shape.requests
    rows = np.maximum(np.floor(tile_q / shape.group), 1.0) if engine.packs else tile_q
    units = shape.layout.kv_heads if engine.packs else shape.layout.heads
    tiles, steps, longest = tile_steps(
        requests.q, requests.kv, shape.window, requests.spread(rows), engine.tile_kv, shape.layout.causal
    )
    return requests.total(tiles) * units, requests.total(steps) * units, requests.largest(longest)


def _missing(ctx: Context, footprint: Array) -> Array | float:
    """Share of the bytes that the L2 does not hold when the kernel starts."""
    return 1.0 if ctx.protocol in (COLD, SERVING) else missing_share(l2_bytes(ctx.gpu), footprint)

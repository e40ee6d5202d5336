"""Prefill, chunked and mixed batches: query tiles over KV tiles, dealt to the SMs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipewave.demand import Array
from pipewave.kernels.attention_engines import Engine
from pipewave.kernels.attention_setting import Estimate, Setting, overlapped, reach
from pipewave.kernels.attention_shape import Shape
from pipewave.kernels.attention_split import FEWEST_BLOCKS, FULL
from pipewave.kernels.attention_tiles import tile_steps

LAUNCHES = 3.5  # kernels a framework puts in the graph around and including attention, in launch times
MEMORY_SHARE = 0.8  # of datasheet bandwidth that a streaming kernel reaches
SMALL_TILE = 64.0  # rows of the tile that FlashAttention 3 and FlashInfer take for few queries
PARTIAL_BYTES = 8.0  # of one output element of a part: written and read in 32 bits
TAIL_SORTED, TAIL = 0.3, 0.6  # share of the longest block that the last SM runs alone


@dataclass(frozen=True, slots=True)
class Work:
    """Thread blocks of all heads per call."""

    rows: Array | float  # of a query tile
    blocks: Array
    steps: Array  # KV tiles that all blocks visit
    longest: Array  # of them, by one block
    parts: Array | float  # blocks per query tile: 1 where the keys of a tile are not split


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds by cause. `span`: steps on the busiest place over the mean."""

    compute: Array
    fixed: Array
    memory: Array
    merge: Array | float
    span: Array
    waves: Array
    rounds: Array


def estimate(shape: Shape, setting: Setting) -> Estimate:
    """Base seconds and features of calls that bring more than one query a request."""
    work = _work(shape, setting)
    times = _times(shape, work, setting)
    busy = overlapped(times.compute + times.fixed, times.memory * setting.missing(shape.moved))
    base = LAUNCHES * setting.launch_s + busy + times.merge
    return Estimate(base, _sizes(shape, work, times, setting, base), _plain(shape, work, times))


def _work(shape: Shape, setting: Setting) -> Work:
    engine, requests, layout = setting.engine, shape.requests, shape.layout
    height = _tile_rows(engine, shape)
    queries = height / shape.group if engine.packs else height  # packed rows of a query may straddle tiles
    units = layout.kv_heads if engine.packs else layout.heads
    spread = queries if isinstance(queries, float) else requests.spread(queries)
    window = shape.window if engine.skips else None
    tiles, steps, longest = tile_steps(requests.q, requests.kv, window, spread, engine.prefill.keys, layout.causal)
    blocks, all_steps, deepest = requests.total(tiles) * units, requests.total(steps) * units, requests.largest(longest)
    if not engine.splits:
        return Work(height, blocks, all_steps, deepest, 1.0)
    return _split(Work(height, blocks, all_steps, deepest, 1.0), shape, setting, tiles, units)


def _split(work: Work, shape: Shape, setting: Setting, tiles: Array, units: Array) -> Work:
    """The same with long KV sequences cut where query tiles leave SMs idle (rule in `attention_split`)."""
    requests, sms = shape.requests, setting.gpu.sms
    depth = np.ceil(requests.kv / setting.engine.prefill.keys)
    splits = (requests.largest(tiles) * units < FULL * sms) & (work.longest > FEWEST_BLOCKS)
    if not splits.any():
        return work
    part = np.where(splits, np.ceil(requests.total(tiles * depth) * units * (1.1 / sms)), np.inf)
    blocks = requests.total(tiles * np.maximum(np.ceil(depth / requests.spread(part)), 1.0)) * units
    return Work(work.rows, blocks, work.steps, np.minimum(work.longest, part), blocks / work.blocks)


def _tile_rows(engine: Engine, shape: Shape) -> Array | float:
    """Query rows of a tile; FlashInfer and FlashAttention 3 take smaller ones for few queries."""
    rows = float(engine.prefill.rows)
    if engine.name == "flashinfer":
        packed = shape.tokens * shape.group / shape.batch
        return np.where(packed > SMALL_TILE, rows, np.where(packed > 16, SMALL_TILE, 16.0))
    if engine.name == "fa3":
        packed = shape.requests.largest(shape.requests.q) * shape.group
        return np.where(packed > SMALL_TILE, rows, SMALL_TILE)
    return rows


def _times(shape: Shape, work: Work, setting: Setting) -> Times:
    engine, layout, sms = setting.engine, shape.layout, setting.gpu.sms
    slots = sms * engine.prefill.ctas
    waves, load, mean = work.blocks * (1.0 / slots), work.steps * (1.0 / slots), work.steps / work.blocks
    rounds = np.ceil(waves)
    even = mean / work.longest  # 1: all blocks alike, whole waves count; less: the scheduler fills gaps
    tail = (TAIL_SORTED if engine.sorts else TAIL) * (work.longest - mean)
    span = np.maximum(load + even * even * (rounds - waves) * mean + tail, work.longest)
    cycles = span * work.rows * setting.row_step_cycles
    if engine.prefill.ctas > 1:
        cycles = cycles * np.minimum(np.maximum(work.blocks * (1.0 / sms), 1.0), engine.prefill.ctas)
    merge: Array | float = 0.0
    if not isinstance(work.parts, float):
        partial = work.parts * shape.tokens * layout.heads * (PARTIAL_BYTES * layout.dim_v / setting.l2_rate)
        merge = np.where(work.parts > 1.0, partial + setting.launch_s, 0.0)
    return Times(
        compute=cycles * (1.0 / setting.hertz),
        fixed=rounds * (engine.prefill.fixed_cycles / setting.hertz),
        memory=shape.moved * (1.0 / (MEMORY_SHARE * setting.dram_rate)),
        merge=merge,
        span=span / load,
        waves=waves,
        rounds=rounds,
    )


def _sizes(shape: Shape, work: Work, times: Times, setting: Setting, base: Array) -> dict[str, Array]:
    """What the net sees as logarithms: times in launches, counts, lengths."""
    layout, keys, ones = shape.layout, setting.engine.prefill.keys, np.ones(len(base))
    launches = 1.0 / setting.launch_s
    q, kv = shape.tokens / shape.batch, shape.keys / shape.batch
    l2_bytes = work.steps * (keys * layout.cached * layout.kv_bytes)
    return {
        "base": base * 1e6,
        "compute": times.compute * launches,
        "fixed": times.fixed * launches,
        "memory": times.memory * launches,
        "l2_time": l2_bytes * (launches / setting.l2_rate),
        "merge": times.merge * launches * ones,
        "waves": times.waves,
        "span": times.span,
        "longest": work.longest,
        "parts": work.parts * ones,
        "fill": shape.pairs / (work.steps * work.rows * keys),
        "footprint": shape.moved * (1.0 / setting.l2_bytes),
        "group": shape.group,
        "kv_heads": layout.kv_heads,
        "batch": shape.batch,
        "queries": q,
        "keys": kv,
        "uneven": shape.requests.largest(shape.requests.q) / q,
        "reach": reach(shape, kv),
        "dim": layout.dim * ones,
    }


def _plain(shape: Shape, work: Work, times: Times) -> dict[str, Array]:
    return {
        "round_off": np.minimum(times.rounds / times.waves, 4.0),
        "even": work.steps / (work.blocks * work.longest),
    }

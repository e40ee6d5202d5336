"""Decode: every request brings one query and streams its cache, split over SMs where requests are few."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipewave.demand import Array
from pipewave.kernels.attention_setting import Estimate, Setting, overlapped, reach
from pipewave.kernels.attention_shape import Shape
from pipewave.kernels.attention_split import Grid, part_blocks
from pipewave.kernels.attention_tiles import visible_keys

LAUNCHES = 3.2
ALONE_CYCLES = 2400.0  # of SM time for one head in a kernel that takes heads one by one
MEMORY_SHARE = 0.9  # of datasheet bandwidth that a streaming kernel reaches
PARTIAL_BYTES = 8.0  # of one output element of a part: written and read in 32 bits
LOCAL = 8192.0  # keys of Llama 4's local attention


@dataclass(frozen=True, slots=True)
class Work:
    """Thread blocks of all heads per call; KV tiles are the engine's."""

    alone: NDArray[np.bool_]  # heads are taken one by one
    row_fill: Array  # share of a row tile that queries fill
    whole: Array  # blocks when nothing is split
    blocks: Array
    steps: Array  # KV tiles that all blocks visit
    deepest: Array  # of them, for one request
    part: Array  # of them, by one block


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds by cause; `unsplit` is what `stream` would be with one block a request and KV head."""

    stream: Array
    unsplit: Array
    fixed: Array
    dram: Array
    compute: Array
    merge: Array


def estimate(shape: Shape, setting: Setting) -> Estimate:
    """Base seconds and features of calls whose requests bring one query each."""
    work = _work(shape, setting)
    times = _times(shape, work, setting)
    busy = overlapped(times.dram, times.stream, times.compute)
    base = LAUNCHES * setting.launch_s + busy + times.fixed + times.merge
    return Estimate(base, _sizes(shape, work, times, setting, base), _plain(work, setting))


def _work(shape: Shape, setting: Setting) -> Work:
    engine, requests, layout = setting.engine, shape.requests, shape.layout
    keys, rows = engine.decode.keys, engine.decode.rows
    alone = (shape.group < engine.groups[0]) | (shape.group > engine.groups[1])
    row_tiles = np.ceil(shape.group * (1.0 / rows))
    units = np.where(alone, layout.heads, layout.kv_heads * row_tiles)
    visited = np.ceil(visible_keys(requests.q, requests.kv, _window(shape, setting)) * (1.0 / keys))
    held = np.ceil(requests.kv * (1.0 / keys))
    steps, deepest = requests.total(visited) * units, requests.largest(visited)
    windowed = np.zeros(len(steps)) if layout.window is None else layout.window
    grid = Grid(setting.gpu.sms, shape.batch, units, steps, deepest, requests.largest(held), shape.group, windowed)
    part = part_blocks(engine.name, grid)
    cut = held if engine.name == "fmha" else visited  # XQA cuts before it applies a window
    return Work(
        alone=alone,
        row_fill=shape.group / (row_tiles * rows),
        whole=grid.tasks,
        blocks=requests.total(np.ceil(cut / requests.spread(part))) * units,
        steps=steps,
        deepest=deepest,
        part=np.minimum(part, deepest),
    )


def _window(shape: Shape, setting: Setting) -> Array | float | None:
    """The window a kernel applies; SGLang passes local attention to FlashAttention only."""
    if shape.window is None or setting.framework != "sglang" or setting.engine.name.startswith("fa"):
        return shape.window
    return np.where(shape.window >= LOCAL, 0.0, shape.window)


def _times(shape: Shape, work: Work, setting: Setting) -> Times:
    tile, layout, sms, hertz = setting.engine.decode, shape.layout, setting.gpu.sms, setting.hertz
    block_s = tile.keys * layout.cached * layout.kv_bytes / (tile.bytes_per_clk * hertz)
    load, per_sm = work.steps * (1.0 / sms), work.blocks * (1.0 / sms)
    waves = np.maximum(np.floor(per_sm * (1.0 / tile.ctas)), 1.0)
    busiest = work.part * np.minimum(np.maximum(per_sm, 1.0), tile.ctas) * waves
    partial = work.blocks / work.whole * shape.batch * layout.heads * (PARTIAL_BYTES * layout.dim_v / setting.l2_rate)
    dram = shape.moved * setting.missing(shape.moved)
    return Times(
        stream=np.maximum(load, busiest) * block_s,
        unsplit=np.maximum(load, work.deepest) * block_s,
        fixed=per_sm * np.where(work.alone, ALONE_CYCLES, tile.fixed_cycles) * (1.0 / hertz),
        dram=dram * (1.0 / (MEMORY_SHARE * setting.dram_rate)),
        compute=work.steps * (setting.block_cycles / (sms * hertz)),
        merge=np.where(work.blocks > work.whole, partial + setting.launch_s, 0.0),
    )


def _sizes(shape: Shape, work: Work, times: Times, setting: Setting, base: Array) -> dict[str, Array]:
    """What the net sees as logarithms: times in launches, counts, lengths."""
    layout, launches, tile = shape.layout, 1.0 / setting.launch_s, setting.engine.decode
    keys = shape.keys / shape.batch
    sizes: dict[str, Array] = {
        "base": 1e6 * base,
        "dram": times.dram * launches,
        "memory": shape.moved * (launches / setting.dram_rate),
        "stream": times.stream * launches,
        "fixed": times.fixed * launches,
        "unsplit": times.unsplit * launches,
        "compute": times.compute * launches,
        "merge": times.merge * launches,
        "splits": work.blocks / work.whole,
        "waves": work.blocks * (1.0 / (setting.gpu.sms * tile.ctas)),
        "whole_waves": work.whole * (1.0 / setting.gpu.sms),
        "part": work.part,
        "deepest": work.deepest,
        "footprint": shape.moved * (1.0 / setting.l2_bytes),
        "group": shape.group,
        "kv_heads": layout.kv_heads,
        "batch": shape.batch,
        "keys": keys,
        "uneven": work.deepest * tile.keys / keys,
        "reach": reach(shape, shape.requests.largest(shape.requests.kv)),
        "dim": np.full(len(keys), layout.dim),
    }
    return sizes


def _plain(work: Work, setting: Setting) -> dict[str, Array]:
    sms = setting.gpu.sms
    return {
        "merged": (work.blocks > work.whole).astype(np.float64),
        "alone": work.alone.astype(np.float64),
        "round_off": _round_off(work.blocks * (1.0 / (sms * setting.engine.decode.ctas))),
        "whole_round_off": _round_off(work.whole * (1.0 / sms)),
        "row_fill": work.row_fill,
    }


def _round_off(waves: Array) -> Array:
    """Places of the last wave that stay empty, as a factor of one and more; at most 4."""
    return np.minimum(np.ceil(waves) / waves, 4.0)

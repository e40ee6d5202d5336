"""Decode: every request brings one query and streams its cache, split over SMs where requests are few."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from pipewave.kernels.attention.setting import AttentionSetting, Estimate, reach
from pipewave.kernels.attention.split import Grid, fa3_splits, part_blocks
from pipewave.kernels.attention.tasks import Alike, Amount, AnyRequests, Shape, visible_keys
from pipewave.kernels.base import features_of
from pipewave.physics.arith import SCALAR, Arith
from pipewave.physics.cache import DECODE_DRAM_SHARE
from pipewave.physics.overlap import overlapped
from pipewave.software.rule_values import DecodeCycles

ALONE_CYCLES = 2400.0  # of SM time for one head in a kernel that takes heads one by one
PARTIAL_BYTES = 8.0  # of one output element of a part: written and read in 32 bits
# Longest cache over the mean of its batch, at most, in the rows that nets were trained on; those of others are even.
# Rows of ragged batches are cold: under `graph` nets know even ones alone.
UNEVEN, UNEVEN_WARM = {"fa3": 24.0}, {"fa3": 2.1}
LAST_BLOCK_SHARE = 0.4  # of the time of a block among many that it takes when the others are done


class DecodeWork(NamedTuple):
    """Thread blocks of all heads per call; KV tiles are the engine's."""

    alone: Amount  # 1 where heads are taken one by one
    row_fill: Amount  # share of a row tile that queries fill
    whole: Amount  # blocks when nothing is split
    blocks: Amount
    steps: Amount  # KV tiles that all blocks visit
    deepest: Amount  # of them, for one request
    part: Amount  # of them, by one block
    beyond: Amount  # of them, by the longest block of the true lengths
    merged: Amount  # 1 where a second kernel merges parts, if only parts of one


def estimate(shape: Shape, setting: AttentionSetting) -> Estimate:
    """Base seconds and features of calls whose requests bring one query each."""
    if setting.engine.alone_decode is not None:
        return Estimate(segments_s(shape, setting, setting.engine.alone_decode), {}, {})
    work, xp, tile = _work(shape, setting), shape.xp, setting.engine.decode
    block_s = tile.keys * shape.layout.cached * shape.layout.kv_bytes / (tile.bytes_per_clk * setting.hertz)
    times = _times(shape, work, setting, block_s)
    busy = overlapped(3, times["dram"], times["stream"], times["compute"])
    base = setting.decode_companions.launches * setting.launch_s + busy + times["fixed"] + times["merge"]
    # Copies beside the kernel, in passes over what is new at the rate of DRAM.
    base = base + setting.decode_companions.bytes(*shape.new_bytes) * (1.0 / setting.dram_rate)
    launches = 1.0 / setting.launch_s
    sizes = {"base": 1e6 * base} | {name: took * launches for name, took in times.items()}
    keys, window = shape.keys / shape.batch, reach(shape.layout, shape.requests.largest(shape.requests.kv), xp)
    known: dict[str, Any] = {"shape": shape, "work": work, "setting": setting, "tile": tile, "keys": keys}
    sizes |= features_of("attention_decode", xp=xp, reach=window, **known)
    longest = LAST_BLOCK_SHARE * work.beyond * block_s
    plain = {
        "merged": work.merged,
        "alone": work.alone,
        "round_off": _round_off(work.blocks / (setting.sms * tile.ctas), xp),
        "whole_round_off": _round_off(work.whole / setting.sms, xp),
        "row_fill": work.row_fill,
    }
    return Estimate(xp.maximum(base, longest), sizes, plain)


def _evened(tiles: Amount, requests: AnyRequests, most: float) -> Amount:
    """Tiles of requests drawn towards the mean of their call until the largest is `most` times it; the sum is kept.

    A net knows no batches less even than its rows. Beyond them the SMs that are done take what is left, so that time
    follows the sum, as skewed batches on eight GPUs do (`tests/kernels/test_kernel_attention_uneven.py`).
    """
    if isinstance(requests, Alike):
        return tiles
    mean, largest, xp = requests.total(tiles) / requests.batch, requests.largest(tiles), requests.xp
    wide = largest > most * mean * (1.0 + 1e-9)
    if not xp.any(wide):
        return tiles
    share = xp.where(wide, (most - 1.0) * mean / xp.maximum(largest - mean, 1e-9), 1.0)
    middle = requests.spread(mean)
    return np.asarray(middle + (tiles - middle) * requests.spread(share))


def _work(shape: Shape, setting: AttentionSetting) -> DecodeWork:
    engine, requests, layout, xp = setting.engine, shape.requests, shape.layout, shape.xp
    keys, rows, each = engine.decode.keys, engine.decode.rows, requests.each
    alone = (shape.group < engine.groups[0]) | (shape.group > engine.groups[1])
    row_tiles = xp.ceil(shape.group / rows)
    windowed = 0.0 if layout.window is None else layout.window
    separate = alone if engine.windows_packed else alone | (windowed > 0)
    units = xp.where(separate, layout.heads, layout.kv_heads * row_tiles)
    most = (UNEVEN_WARM if setting.warm else UNEVEN).get(engine.name, 1.0)
    window = shape.window
    if window is not None and setting.widest_window is not None:  # from which the kernel applies none
        per = each if isinstance(window, np.ndarray) else SCALAR  # one for all, or of each group
        window = per.where(window >= setting.widest_window, 0.0, window)
    longest = each.ceil(visible_keys(requests.q, requests.kv, window, each) * (1.0 / keys))
    stored = each.ceil(requests.kv * (1.0 / keys))
    visited, held = _evened(longest, requests, most), _evened(stored, requests, most)
    steps, deepest = requests.total(visited) * units, requests.largest(visited)
    history = requests.largest(held)
    grid = Grid(setting.sms, shape.batch, units, steps, deepest, history, shape.group, windowed, alone, xp)
    true = replace(grid, deepest=requests.largest(longest), history=requests.largest(stored))
    part = part_blocks(engine.split, grid)
    cut = visited
    if engine.split == "xqa":  # it cuts before it applies a window
        cut = each.where(requests.spread(alone), visited, held)
    blocks = requests.total(each.ceil(cut / requests.spread(part))) * units
    return DecodeWork(
        alone=alone * 1.0,
        row_fill=shape.group / (row_tiles * rows),
        whole=grid.tasks,
        blocks=blocks,
        steps=steps,
        deepest=deepest,
        part=_longest_part(engine.split, deepest, part, xp),
        beyond=_longest_part(engine.split, true.deepest, part_blocks(engine.split, true), xp),
        merged=(fa3_splits(grid) if engine.split == "fa3" else blocks > grid.tasks) * 1.0,
    )


def _longest_part(rule: str, deepest: Amount, part: Amount, xp: Arith) -> Amount:
    """KV tiles of the longest part; FlashAttention 3 makes the parts of a sequence alike."""
    longest = xp.minimum(part, deepest)
    return xp.ceil(deepest / xp.ceil(deepest / longest)) if rule == "fa3" else longest


def _times(shape: Shape, work: DecodeWork, setting: AttentionSetting, block_s: float) -> dict[str, Amount]:
    """Seconds by cause; `unsplit`: `stream` with a block a request and KV head; `block_s`: of an SM for a KV tile."""
    tile, layout, sms, hertz = setting.engine.decode, shape.layout, setting.sms, setting.hertz
    xp, ctas = shape.xp, float(tile.ctas)
    load, per_sm = work.steps / sms, work.blocks / sms
    busiest = work.part * xp.minimum(xp.maximum(per_sm, 1.0), ctas) * xp.maximum(xp.floor(per_sm / ctas), 1.0)
    partial = work.blocks / work.whole * shape.batch * layout.heads * (PARTIAL_BYTES * layout.dim_v / setting.l2_rate)
    dram = shape.moved * setting.missing(shape.moved, xp)
    cycles = tile.fixed_cycles + work.alone * (ALONE_CYCLES - tile.fixed_cycles)
    return {
        "dram": dram / (DECODE_DRAM_SHARE * setting.dram_rate),
        "memory": shape.moved / setting.dram_rate,
        "stream": xp.maximum(load, busiest) * block_s,
        "fixed": per_sm * cycles / hertz,
        "unsplit": xp.maximum(load, work.deepest) * block_s,
        "compute": work.steps * (setting.block_cycles / (sms * hertz)),
        "merge": work.merged * setting.launch_s + (work.blocks > work.whole) * partial,
    }


def _round_off(waves: Amount, xp: Arith) -> Amount:
    """Places of the last wave that stay empty, as a factor of one and more; at most 4."""
    return xp.minimum(xp.ceil(waves) / waves, 4.0)


# vLLM's Triton kernel, where physics answers alone: segments of the whole cache, walked tile by tile.
#
# Rules of its source (0.22.1, `triton_unified_attention.py` and `triton_attn.py`): where the KV heads of all requests
# are fewer than a grid, each request's cache is cut into sixteen segments of tiles of 16 keys, before a window is
# applied; a second kernel sums them up. Otherwise one block walks a request's visible keys in tiles of 32.

GRID = 128.0  # blocks of requests and KV heads up to which caches are cut
SEGMENTS = 16.0
NARROW, WIDE = 16.0, 32.0  # keys of a tile, cut and whole
WIDE_WHEN_CUT = (1024.0, (128.0, 256.0))  # Gemma 3's window and heads, whose tiles are wide always
SEGMENT_BYTES = 4.0  # of an element of a segment's result


class Walk(NamedTuple):
    """Tiles of `keys` that blocks walk."""

    keys: Amount
    cut: Amount  # whether caches are cut
    longest: Amount  # tiles of one block
    tiles: Amount  # of all blocks


def segments_s(shape: Shape, setting: AttentionSetting, alone: DecodeCycles) -> Amount:
    """Time of calls whose requests bring one query each."""
    walk, layout, xp = walked(shape), shape.layout, shape.xp
    tile_s = (
        alone.tile_cycles.fixed + alone.tile_cycles.per_head_element * layout.dim * walk.keys / NARROW
    ) / setting.hertz
    stream = tile_s * xp.maximum(walk.longest, walk.tiles / (setting.sms * alone.blocks_per_sm))
    dram = shape.moved * setting.missing(shape.moved, xp) / setting.dram_rate
    partial = shape.batch * layout.heads * (SEGMENTS * SEGMENT_BYTES * layout.dim_v)
    merge = walk.cut * (setting.launch_s + partial / (alone.merge_dram_share * setting.dram_rate))
    return setting.decode_companions.launches * setting.launch_s + overlapped(2, stream, dram, xp=xp) + merge


def walked(shape: Shape) -> Walk:
    """How caches are cut and walked."""
    requests, layout, xp, per = shape.requests, shape.layout, shape.xp, shape.requests.each
    cut = (shape.batch * layout.kv_heads <= GRID) * 1.0
    window, dims = WIDE_WHEN_CUT
    wide = layout.window == window if layout.window is not None and layout.dim in dims else False
    keys = xp.where(cut > 0, NARROW + (WIDE - NARROW) * wide, WIDE)
    each, whole = requests.spread(keys), requests.spread(cut)
    seen = visible_keys(requests.q, requests.kv, shape.window, per)
    segment = per.where(whole > 0, per.ceil(requests.kv / (SEGMENTS * each)), math.inf)  # tiles of it
    visible = per.ceil(seen / each)
    blocks = per.maximum(per.ceil(visible / segment), 1.0)
    longest = per.minimum(visible, segment)
    tiles = requests.total(blocks * longest) * layout.kv_heads
    return Walk(keys, cut, requests.largest(longest), tiles)

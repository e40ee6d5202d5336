"""Decode of vLLM's Triton kernel where physics answers alone: segments of the whole cache, walked tile by tile.

Rules of its source (0.22.1, `triton_unified_attention.py` and `triton_attn.py`): where the KV heads of all requests are
fewer than a grid, each request's cache is cut into sixteen segments of tiles of 16 keys, before a window is applied; a
second kernel sums them up. Otherwise one block walks a request's visible keys in tiles of 32.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pipewave.kernels.attention.engine import AloneDecode
from pipewave.kernels.attention.requests import Amount
from pipewave.kernels.attention.setting import AttentionSetting
from pipewave.kernels.attention.shape import Heads, Shape
from pipewave.kernels.attention.tiles import visible_keys
from pipewave.physics.overlap import overlapped

GRID = 128.0  # blocks of requests and KV heads up to which caches are cut
SEGMENTS = 16.0
NARROW, WIDE = 16.0, 32.0  # keys of a tile, cut and whole
WIDE_WHEN_CUT = (1024.0, (128.0, 256.0))  # Gemma 3's window and heads, whose tiles are wide always
PARTIAL_BYTES = 4.0  # of an element of a segment's result


class Walk(NamedTuple):
    """Tiles of `keys` that blocks walk."""

    keys: Amount
    cut: Amount  # whether caches are cut
    longest: Amount  # tiles of one block
    tiles: Amount  # of all blocks


def seconds(shape: Shape, setting: AttentionSetting, alone: AloneDecode) -> Amount:
    """Time of calls whose requests bring one query each."""
    walk, layout, xp = walked(shape), shape.layout, shape.requests.xp
    tile_s = (alone.tile + alone.tile_dim * layout.dim * walk.keys / NARROW) / setting.hertz
    stream = tile_s * xp.maximum(walk.longest, walk.tiles / (setting.sms * alone.resident))
    dram = shape.moved * setting.missing(shape.moved, xp) / setting.dram_rate
    partial = shape.batch * layout.heads * (SEGMENTS * PARTIAL_BYTES * layout.dim_v)
    merge = walk.cut * (setting.launch_s + partial / (alone.merging * setting.dram_rate))
    return setting.decode_companions.launches * setting.launch_s + overlapped(2, stream, dram, xp=xp) + merge


def walked(shape: Shape) -> Walk:
    """How caches are cut and walked."""
    requests, layout, xp = shape.requests, shape.layout, shape.requests.xp
    cut = (shape.batch * layout.kv_heads <= GRID) * 1.0
    keys = xp.where(cut > 0, _narrow(layout), WIDE)
    each, whole = requests.spread(keys), requests.spread(cut)
    seen = visible_keys(requests.q, requests.kv, shape.window)
    segment = np.where(whole > 0, np.ceil(requests.kv / (SEGMENTS * each)), np.inf)  # tiles of it
    visible = np.ceil(seen / each)
    blocks = np.maximum(np.ceil(visible / segment), 1.0)
    longest = np.minimum(visible, segment)
    tiles = requests.total(blocks * longest) * layout.kv_heads
    return Walk(keys, cut, requests.largest(longest), tiles)


def _narrow(layout: Heads) -> Amount:
    """Keys of a tile where caches are cut."""
    window, dims = WIDE_WHEN_CUT
    if layout.window is None or layout.dim not in dims:
        return NARROW
    return NARROW + (WIDE - NARROW) * (layout.window == window)

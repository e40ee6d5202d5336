"""Which query-key pairs and which KV tiles a request visits: closed forms, no loop over tiles.

A query at position p of a request with `kv` keys, of which the last `q` are its own, sees the keys up to its own
position (causal), or all of them, and at most the last `window` of those. Where no window is given (None) all are seen;
an entry of 0 says so for one request.
"""

from __future__ import annotations

import math

import numpy as np

from pipewave.physics.demand import Array

Steps = tuple[Array, Array, Array]


def visible_pairs(q: Array, kv: Array, window: Array | float | None, causal: bool) -> Array:
    """Query-key pairs a request must score."""
    full = q * (kv - 0.5 * (q - 1.0)) if causal else q * kv
    if window is None:
        return full
    reach = np.where(window > 0, np.minimum(window, kv), kv)
    if not causal:
        return np.minimum(full, q * reach)
    short = np.clip(reach - (kv - q), 0.0, q)  # first queries still see fewer keys than the window
    first = kv - q + 1
    return np.where(window > 0, short * first + short * (short - 1) / 2 + (q - short) * reach, full)


def visible_keys(q: Array, kv: Array, window: Array | float | None) -> Array:
    """Keys that any query of a request sees."""
    return kv if window is None else np.where(window > 0, np.minimum(kv, window + q - 1), kv)


def tile_steps(
    q: Array, kv: Array, window: Array | float | None, rows: Array | float, keys: float, causal: bool
) -> Steps:
    """Query tiles of a request, the KV tiles they visit in all, and those of its longest tile.

    `rows`: queries a tile holds (fewer than its height where heads are packed into it); `keys`: keys of a KV tile.
    Sums use the mean rounding loss over a whole period of tile offsets, so that they are exact there.
    """
    tiles = np.ceil(q / rows)
    whole = np.ceil(kv / keys)
    if not causal:
        return tiles, tiles * whole, whole
    before, others = kv - q, tiles - 1.0
    # All tiles but the last end at before + (t + 1) · rows keys; the last at kv.
    steps = others * ((before + rows * tiles * 0.5) * (1.0 / keys) + _mean_excess(before, rows, keys)) + whole
    if window is None:
        return tiles, steps, whole
    hidden = np.where(window > 0, _hidden_tiles(before - window + 1, tiles, rows, keys), 0.0)
    longest = np.where(window > 0, np.minimum(whole, np.ceil((window + rows) / keys) + 1), whole)
    return tiles, np.maximum(steps - hidden, tiles), longest


def _mean_excess(offset: Array, stride: Array | float, keys: float) -> Array | float:
    """Mean of ceil(x / keys) - x / keys over x = offset + stride, offset + 2 · stride, ... for a whole period."""
    common = math.gcd(int(stride), int(keys)) if isinstance(stride, float) else np.gcd(stride.astype(int), int(keys))
    if isinstance(stride, float) and common == 1:  # every phase occurs
        return (keys - 1.0) * (0.5 / keys)
    phase = np.remainder(offset, common)
    return ((phase > 0) * (2.0 * (common - phase)) + (keys - common)) * (0.5 / keys)


def _hidden_tiles(start: Array, tiles: Array, rows: Array | float, keys: float) -> Array:
    """KV tiles wholly before the window of a query tile, summed: tile t hides floor((start + t · rows) / keys)."""
    first = np.clip(np.ceil(-start / rows), 0, tiles)
    count = tiles - first
    keys_hidden = count * (start + rows * (tiles - 1 + first) / 2)
    return np.asarray(np.maximum(keys_hidden / keys - count * 0.5 * (1 - 1 / keys), 0.0))

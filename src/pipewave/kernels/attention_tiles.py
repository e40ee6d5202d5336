"""Which query-key pairs and which KV tiles a request visits: closed forms, no loop over tiles.

A query at position p of a request with `kv` keys, of which the last `q` are its own, sees the keys up to its own
position (causal), or all of them, and at most the last `window` of those.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pipewave.demand import Array


def visible_pairs(q: Array, kv: Array, window: Array, causal: bool) -> Array:
    """Query-key pairs a request must score. `window` keys at most per query; 0 means all."""
    full = q * kv - (q * (q - 1) / 2 if causal else 0.0)
    if not window.any():
        return np.asarray(full)
    reach = np.where(window > 0, np.minimum(window, kv), kv)
    if not causal:
        return np.minimum(full, q * reach)
    short = np.clip(reach - (kv - q), 0.0, q)  # first queries still see fewer keys than the window
    first = kv - q + 1
    return np.where(window > 0, short * first + short * (short - 1) / 2 + (q - short) * reach, full)


def visible_keys(q: Array, kv: Array, window: Array) -> Array:
    """Keys that any query of a request sees."""
    return np.where(window > 0, np.minimum(kv, window + q - 1), kv)


def tile_steps(
    q: Array, kv: Array, window: Array, rows: Array, keys: float, causal: bool
) -> tuple[Array, Array, Array]:
    """Query tiles of a request, the KV tiles they visit in all, and those of its longest tile.

    `rows`: queries a tile holds (fewer than its height where heads are packed into it); `keys`: keys of a KV tile.
    Sums use the mean rounding loss over a whole period of tile offsets, so that they are exact there.
    """
    tiles = np.ceil(q / rows)
    whole = np.ceil(kv / keys)
    if not causal:
        return tiles, tiles * whole, whole
    before = kv - q
    # All tiles but the last end at before + (t + 1) · rows keys; the last at kv.
    steps = (tiles - 1) * (before + rows * tiles / 2) / keys + (tiles - 1) * _mean_excess(before, rows, keys) + whole
    if not window.any():
        return tiles, steps, whole
    hidden = np.where(window > 0, _hidden_tiles(before - window + 1, tiles, rows, keys), 0.0)
    longest = np.where(window > 0, np.minimum(whole, np.ceil((window + rows) / keys) + 1), whole)
    return tiles, np.maximum(steps - hidden, tiles), longest


def _mean_excess(offset: Array, stride: Array, keys: float) -> Array:
    """Mean of ceil(x / keys) - x / keys over x = offset + stride, offset + 2 · stride, ... for a whole period."""
    common = np.gcd(stride.astype(np.int64), int(keys)).astype(float)
    phase = offset % common
    return np.asarray(np.where(phase == 0, keys - common, keys + common - 2 * phase) / (2 * keys))


def _hidden_tiles(start: Array, tiles: Array, rows: Array, keys: float) -> Array:
    """KV tiles wholly before the window of a query tile, summed: tile t hides floor((start + t · rows) / keys)."""
    first = np.clip(np.ceil(-start / rows), 0, tiles)
    count = tiles - first
    keys_hidden = count * (start + rows * (tiles - 1 + first) / 2)
    return np.asarray(np.maximum(keys_hidden / keys - count * 0.5 * (1 - 1 / keys), 0.0))


def brute_steps(q: int, kv: int, window: int, rows: int, keys: int) -> tuple[int, int, int]:
    """What `tile_steps` sums, tile by tile, for one causal request."""
    visits = []
    for top in range(0, q, rows):
        last = min(kv - q + top + rows, kv)
        first = max(kv - q + top - window + 1, 0) if window else 0
        visits.append(-(-last // keys) - first // keys)
    return len(visits), sum(visits), max(visits)


__all__ = ["NDArray", "brute_steps", "tile_steps", "visible_keys", "visible_pairs"]

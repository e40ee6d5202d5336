"""FlashInfer FA3 (Hopper prefill): persistent CTAs, one per SM, filled by a min-heap on their cost so far.

Heads are scheduled one by one (no packing of a GQA group). Above 8192 tiles one head stands for all and is not scaled
up, as published. Only one of K and V is counted in the bytes.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from paper.demand import Demand, Load
from paper.hardware import Hardware
from pipewave.errors import BadInput

Ints = NDArray[np.int64]
ELEMENT_BYTES = 2
MAX_TILES_ALL_HEADS = 8192
MAX_TASKS = 20_000_000


def demand(
    hw: Hardware, q_lens: Ints, kv_lens: Ints, *, heads: int, head_dim: int, paged: bool, causal: bool = True
) -> Demand:
    """Demand of one call of `heads` query heads."""
    rows, cols = tile_shape(head_dim, paged, causal)
    works = -(-int(q_lens.sum()) // rows) + len(q_lens) - 1
    scheduled_heads = 1 if works > MAX_TILES_ALL_HEADS else heads
    if works * scheduled_heads > MAX_TASKS:
        raise BadInput(f"more than {MAX_TASKS} attention tasks in one call: use shorter q_lens", field="q_lens")
    iterations, cost = head_tasks(q_lens, kv_lens, rows, cols, causal)
    iterations = np.tile(iterations, scheduled_heads)
    sm = fill_least_loaded(np.tile(cost, scheduled_heads), hw.sms)

    steps = iterations.astype(np.float64)
    work = steps > 0
    mma = 4 * rows * cols * head_dim * steps
    exp = work * (rows * cols + (steps - 1) * rows * (4 + cols) + 8 * rows)
    read = work * (ELEMENT_BYTES * head_dim * (rows + steps * cols))
    return Demand(tensor_ops=Load.of(mma, sm), xu_ops=Load.of(exp, sm), read_bytes=Load.of(read, sm))


def tile_shape(head_dim: int, paged: bool, causal: bool) -> tuple[int, int]:
    """Query rows and KV columns of a tile."""
    if head_dim == 64:
        return (192, 96) if paged else (192, 128)
    if head_dim == 128:
        return (128, 96) if paged else (128, 128) if causal else (128, 192)
    if head_dim >= 256:
        return (128, 32) if paged else (128, 64)
    raise BadInput(f"head_dim={head_dim}: the paper's FA3 has 64, 128 and 256", field="head_dim")


def head_tasks(q_lens: Ints, kv_lens: Ints, rows: int, cols: int, causal: bool) -> tuple[Ints, Ints]:
    """KV iterations and scheduling cost of one head's tiles, in the order they are handed out.

    Longest KV first; within a request the last query tile, which sees most keys, first.
    """
    order = np.argsort(-kv_lens, kind="stable")
    q, kv = q_lens[order], kv_lens[order]
    tiles = _ceil(q, rows)
    request = np.repeat(np.arange(len(q)), tiles)
    last = np.repeat(np.cumsum(tiles), tiles) - 1
    tile = last - np.arange(len(request))
    seen = np.minimum((tile + 1) * rows + (kv - q)[request], kv[request]) if causal else kv[request]
    return _ceil(np.maximum(seen, 0), cols), rows * np.maximum(seen, 0)


def fill_least_loaded(cost: Iterable[int] | Ints, sms: int) -> Ints:
    """SM of every task when each goes to the SM with the least cost so far, the lowest number first among equals."""
    heap = [(0, sm) for sm in range(sms)]
    placed: list[int] = []
    for more in np.asarray(cost).tolist():
        load, sm = heap[0]
        heapq.heapreplace(heap, (load + more, sm))
        placed.append(sm)
    return np.asarray(placed, dtype=np.int64)


def _ceil(a: Ints, b: Ints | int) -> Ints:
    return -(-a // b)

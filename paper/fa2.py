"""FlashInfer FA2 (prefill, and decode everywhere) under the hardware scheduler.

A CTA is one (request, query tile, KV chunk, KV head).

Two published bugs are the default, because the released data and checkpoints contain them, and can be switched off:
* `schedule="lock_step"`: CTAs retire in whole waves instead of one by one, which inflates the busiest SM;
* `kv_split_unit="tokens"`: FlashInfer splits the KV length in pages, which yields far fewer chunks in small decodes.
Only one of K and V is counted in the bytes, and two CTAs per SM are assumed whatever the tile needs.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from paper.demand import Demand, Load
from paper.hardware import Hardware
from pipewave.errors import BadInput

Ints = NDArray[np.int64]
Schedule = Literal["lock_step", "work_conserving"]
KvSplitUnit = Literal["tokens", "pages"]
CTAS_PER_SM = 2
ELEMENT_BYTES = 2
PAGE_TOKENS = 16
MIN_CHUNK_TOKENS = 128
MAX_TASKS = 20_000_000
# Exponentials and rescaling, counted on the 128-row tile and applied to every tile, as published.
XU_PER_ITERATION, XU_PER_TASK = 36 * 128, 128 * 128


@dataclass(frozen=True, slots=True)
class Options:
    """The published behaviour, or FlashInfer's."""

    schedule: Schedule = "lock_step"
    kv_split_unit: KvSplitUnit = "tokens"


@dataclass(frozen=True, slots=True)
class QueryTile:
    """Rows of packed queries and columns of keys that one CTA handles per iteration."""

    rows: int
    cols: int


def demand(
    hw: Hardware,
    q_lens: Ints,
    kv_lens: Ints,
    *,
    heads: int,
    kv_heads: int,
    head_dim: int,
    paged: bool,
    options: Options = Options(),
) -> Demand:
    """Demand of one causal call; query heads of a group are packed into the tile's rows."""
    group = heads // kv_heads
    tile = choose_tile(hw, q_lens * group, head_dim)
    chunk = kv_chunk(hw, _ceil(q_lens * group, tile.rows), kv_lens, kv_heads, paged, options.kv_split_unit)
    iterations = np.repeat(task_iterations(q_lens, kv_lens, group, tile, chunk), kv_heads)
    sm = place(iterations, hw.sms, options.schedule)

    steps = iterations.astype(np.float64)
    work = steps > 0  # empty CTAs take a slot, but no operations
    mma = 4 * tile.rows * tile.cols * head_dim * steps * (33 / 32)
    exp = work * (XU_PER_ITERATION * steps + XU_PER_TASK + tile.rows)
    read = work * (ELEMENT_BYTES * head_dim * (tile.rows + steps * tile.cols))
    return Demand(tensor_ops=Load.of(mma, sm), xu_ops=Load.of(exp, sm), read_bytes=Load.of(read, sm))


def choose_tile(hw: Hardware, packed_rows: Ints, head_dim: int) -> QueryTile:
    """FlashInfer's tile: rows by the mean packed query length, columns by what shared memory and registers hold."""
    mean_rows = int(packed_rows.sum()) // len(packed_rows)
    rows = 128 if mean_rows > 64 and head_dim < 256 else 64 if mean_rows > 16 else 16
    warps_kv = 1 if rows > 16 else 4
    mma_q = 2 if rows > 64 else 1
    query_bytes = ELEMENT_BYTES * rows * head_dim
    step_bytes = 2 * ELEMENT_BYTES * head_dim * 16 * warps_kv
    shared = hw.smem_kb_per_sm * 1024
    budget = shared // 2 if shared >= 2 * (query_bytes + step_bytes) else shared
    most = min((budget - query_bytes) // step_bytes, 8 // mma_q)
    fits = [v for v in range(1, most + 1) if _registers_allow(v, mma_q, head_dim // 16)]
    if not fits:
        raise BadInput(f"head_dim={head_dim}: no FA2 tile fits {hw.name}", field="head_dim")
    return QueryTile(rows=rows, cols=16 * fits[-1] * warps_kv)


def _registers_allow(mma_kv: int, mma_q: int, mma_d: int) -> bool:
    odd_on_64 = mma_d == 4 and mma_kv % 2 == 1
    return mma_d >= 4 and not odd_on_64 and mma_q * (8 * mma_d + 8 * mma_kv) < 256


def kv_chunk(hw: Hardware, q_tiles: Ints, kv_lens: Ints, kv_heads: int, paged: bool, unit: KvSplitUnit) -> int:
    """KV tokens per chunk: the fewest for which all CTAs still fit on the GPU at once, found by bisection."""
    page = PAGE_TOKENS if paged else 1
    scale = page if unit == "pages" else 1
    lengths = _ceil(kv_lens, scale)
    most_ctas = CTAS_PER_SM * hw.sms // kv_heads
    low, high = max(MIN_CHUNK_TOKENS // page, 1), int(lengths.max())
    while low < high:
        middle = (low + high) // 2
        if int((q_tiles * _ceil(lengths, middle)).sum()) > most_ctas:
            low = middle + 1
        else:
            high = middle
    return low * scale


def task_iterations(q_lens: Ints, kv_lens: Ints, group: int, tile: QueryTile, chunk: int) -> Ints:
    """KV iterations of every (request, query tile, chunk) in launch order; zero where the causal mask hides all."""
    q_tiles, chunks = _ceil(q_lens * group, tile.rows), _ceil(kv_lens, chunk)
    per_request = q_tiles * chunks
    if int(per_request.sum()) > MAX_TASKS:
        raise BadInput(f"more than {MAX_TASKS} attention tasks in one call: use shorter q_lens", field="q_lens")
    request = np.repeat(np.arange(len(q_lens)), per_request)
    rank = np.arange(len(request)) - np.repeat(np.cumsum(per_request) - per_request, per_request)
    q_tile, chunk_index = rank // chunks[request], rank % chunks[request]
    start = chunk_index * chunk
    visible = (kv_lens - q_lens)[request] + _ceil((q_tile + 1) * tile.rows, group) - start
    length = np.minimum(chunk, kv_lens[request] - start)
    return _ceil(np.minimum(length, np.maximum(visible, 0)), tile.cols)


def place(iterations: Ints, sms: int, schedule: Schedule) -> Ints:
    """SM of every CTA: the first 2·SMs dealt round, the rest as slots come free."""
    if schedule == "work_conserving":
        return _as_slots_free(iterations, sms)
    index = np.arange(len(iterations))
    return np.where(index < CTAS_PER_SM * sms, index % sms, index // CTAS_PER_SM % sms)


def _as_slots_free(iterations: Ints, sms: int) -> Ints:
    cost = iterations.tolist()
    resident = CTAS_PER_SM * sms
    sm = [i % sms for i in range(min(len(cost), resident))]
    busy = [(done, where) for done, where in zip(cost, sm, strict=False)]
    heapq.heapify(busy)
    for more in cost[resident:]:
        done, where = busy[0]
        heapq.heapreplace(busy, (done + more, where))
        sm.append(where)
    return np.asarray(sm, dtype=np.int64)


def _ceil(a: Ints, b: Ints | int) -> Ints:
    return -(-a // b)

"""Decode attention: one query a sequence over a paged KV cache, split along the cache, then reduced."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def decode(
    q, k_cache, v_cache, o, part, part_log, tables, lens, scale, heads, kv_heads, table_width, SPLITS,
    HEAD_DIM: tl.constexpr, PAGE: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """One block attends one KV head's query group to one split of one sequence.

    q, o: [batch, heads, HEAD_DIM]; k_cache, v_cache: [pages, PAGE, kv_heads, HEAD_DIM]; tables: [batch, table_width];
    lens: [batch]. With SPLITS > 1 the partial results go to part [batch, heads, SPLITS, HEAD_DIM] (float32) and
    their log2-sum-exp to part_log [batch, heads, SPLITS]; a split beyond the sequence's end leaves -inf there.
    """
    seq = tl.program_id(0)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    group = heads // kv_heads
    length = tl.load(lens + seq)
    # Splits hold whole BLOCK_N steps, so that only a sequence's last step is partial.
    span = tl.cdiv(tl.cdiv(length, SPLITS), BLOCK_N) * BLOCK_N
    start = split * span
    stop = min(start + span, length)
    h = tl.arange(0, BLOCK_H)
    d = tl.arange(0, HEAD_DIM)
    q_row = seq * heads + kv_head * group + h
    real = h < group
    query = tl.load(q + q_row[:, None] * HEAD_DIM + d[None, :], mask=real[:, None], other=0.0)
    scale *= LOG2E
    acc = tl.zeros((BLOCK_H, HEAD_DIM), dtype=tl.float32)
    total = tl.zeros((BLOCK_H,), dtype=tl.float32)
    peak = tl.full((BLOCK_H,), -1.0e30, dtype=tl.float32)
    for begin in range(start, stop, BLOCK_N):
        n = begin + tl.arange(0, BLOCK_N)
        inside = n < stop
        number = tl.load(tables + seq * table_width + n // PAGE, mask=inside, other=0).to(tl.int64)
        row = ((number * PAGE + n % PAGE) * kv_heads + kv_head) * HEAD_DIM
        k = tl.load(k_cache + row[None, :] + d[:, None], mask=inside[None, :], other=0.0)
        score = tl.where(inside[None, :], tl.dot(query, k) * scale, -1.0e30)
        top = tl.maximum(peak, tl.max(score, 1))
        p = tl.math.exp2(score - top[:, None])
        fade = tl.math.exp2(peak - top)
        total = total * fade + tl.sum(p, 1)
        v = tl.load(v_cache + row[:, None] + d[None, :], mask=inside[:, None], other=0.0)
        acc = tl.dot(p.to(v.dtype), v, acc * fade[:, None])
        peak = top
    if SPLITS == 1:
        out = (acc / total[:, None]).to(o.dtype.element_ty)
        tl.store(o + q_row[:, None] * HEAD_DIM + d[None, :], out, mask=real[:, None])
    else:
        slot = q_row * SPLITS + split
        some = total > 0.0
        log = tl.where(some, peak + tl.math.log2(tl.where(some, total, 1.0)), float("-inf"))
        tl.store(part + slot[:, None] * HEAD_DIM + d[None, :], acc / tl.where(some, total, 1.0)[:, None],
                 mask=real[:, None])  # fmt: skip
        tl.store(part_log + slot, log, mask=real)


@triton.jit
def reduce(part, part_log, o, SPLITS, HEAD_DIM: tl.constexpr):
    """o[row] = Σ_s part[row, s] · 2^log[row, s] / Σ_s 2^log[row, s]; one block a (sequence, head)."""
    row = tl.program_id(0)
    d = tl.arange(0, HEAD_DIM)
    peak = -1.0e30
    for split in range(SPLITS):
        peak = tl.maximum(peak, tl.load(part_log + row * SPLITS + split))
    acc = tl.zeros((HEAD_DIM,), dtype=tl.float32)
    total = 0.0
    for split in range(SPLITS):
        weight = tl.math.exp2(tl.load(part_log + row * SPLITS + split) - peak)
        acc += weight * tl.load(part + (row * SPLITS + split) * HEAD_DIM + d)
        total += weight
    tl.store(o + row * HEAD_DIM + d, (acc / total).to(o.dtype.element_ty))


def run(q: Any, cache: tuple[Any, Any], out: Any, tables: Any, lens: Any, config: dict[str, int]) -> Any:
    """Launch on torch tensors laid out as in `decode`; `cache` is (k_cache, v_cache); scale is 1 / √head_dim."""
    import torch

    batch, heads, dim = q.shape
    page, kv_heads = cache[0].shape[1:3]
    splits = config["SPLITS"]
    part = torch.empty((batch, heads, splits, dim), dtype=torch.float32, device=q.device)
    part_log = torch.empty((batch, heads, splits), dtype=torch.float32, device=q.device)
    extra = {key: config[key] for key in ("num_warps", "num_stages") if key in config}
    block_h = max(16, triton.next_power_of_2(heads // kv_heads))
    decode[(batch, kv_heads, splits)](
        q, *cache, out, part, part_log, tables, lens, dim**-0.5, heads, kv_heads, tables.shape[1], splits,
        HEAD_DIM=dim, PAGE=page, BLOCK_H=block_h, BLOCK_N=config["BLOCK_N"], **extra,
    )  # fmt: skip
    if splits > 1:
        reduce[(batch * heads,)](part, part_log, out, splits, HEAD_DIM=dim, num_warps=4)
    return out

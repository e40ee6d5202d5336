"""FlashAttention forward over prompts: O = softmax(scale · Q Kᵀ) V, online softmax, grouped heads.

Queries are the last `q_len` positions of a sequence of `kv_len` (q_len < kv_len: a chunk behind a cached prefix).
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def attend(
    acc, total, peak, q, k_at, v_at, scale, row_step, start, stop, last, kv_len,
    MASK: tl.constexpr, CAUSAL: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Add keys [start, stop) to the running (acc, total, peak). `last` is each query's last visible key if CAUSAL."""
    for begin in range(start, stop, BLOCK_N):
        n = begin + tl.arange(0, BLOCK_N)
        if MASK:
            k = tl.load(k_at + n[None, :] * row_step, mask=(n < kv_len)[None, :], other=0.0)
        else:
            k = tl.load(k_at + n[None, :] * row_step)
        score = tl.dot(q, k) * scale
        if MASK:
            seen = (n < kv_len)[None, :]
            if CAUSAL:
                seen = seen & (n[None, :] <= last[:, None])
            score = tl.where(seen, score, -1.0e30)
        top = tl.maximum(peak, tl.max(score, 1))
        p = tl.math.exp2(score - top[:, None])
        fade = tl.math.exp2(peak - top)
        total = total * fade + tl.sum(p, 1)
        acc = acc * fade[:, None]
        if MASK:
            v = tl.load(v_at + n[:, None] * row_step, mask=(n < kv_len)[:, None], other=0.0)
        else:
            v = tl.load(v_at + n[:, None] * row_step)
        acc = tl.dot(p.to(v.dtype), v, acc)
        peak = top
    return acc, total, peak


@triton.jit
def prefill(
    q, k, v, o, scale, q_len, kv_len, heads, kv_heads, HEADS_FIRST,
    HEAD_DIM: tl.constexpr, CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """q, o: [batch, q_len, heads, HEAD_DIM]; k, v: [batch, kv_len, kv_heads, HEAD_DIM]; contiguous.

    HEADS_FIRST orders the blocks at run time: 0 walks one head's queries first, 1 walks the heads first and starts with
    the last queries, which see the most keys (longest work first).
    """
    pid = tl.program_id(0)
    rows = tl.cdiv(q_len, BLOCK_M)
    pairs = tl.num_programs(0) // rows
    row = pid % rows
    pair = pid // rows
    if HEADS_FIRST != 0:
        row = rows - 1 - pid // pairs
        pair = pid % pairs
    batch, head = pair // heads, pair % heads
    kv_head = head // (heads // kv_heads)
    m = row * BLOCK_M + tl.arange(0, BLOCK_M)
    d = tl.arange(0, HEAD_DIM)
    q_row = (batch * q_len + m) * heads + head
    kv_base = (batch * kv_len * kv_heads + kv_head).to(tl.int64) * HEAD_DIM
    row_step = kv_heads * HEAD_DIM
    query = tl.load(q + q_row[:, None] * HEAD_DIM + d[None, :], mask=(m < q_len)[:, None], other=0.0)
    # exp2 is one instruction, exp is two: log2(e) goes into the scale.
    scale *= LOG2E
    k_at = k + kv_base + d[:, None]
    v_at = v + kv_base + d[None, :]
    acc = tl.zeros((BLOCK_M, HEAD_DIM), dtype=tl.float32)
    total = tl.zeros((BLOCK_M,), dtype=tl.float32)
    peak = tl.full((BLOCK_M,), -1.0e30, dtype=tl.float32)
    last = m + kv_len - q_len
    whole = kv_len // BLOCK_N * BLOCK_N
    stop = kv_len
    if CAUSAL:
        whole = min(kv_len, row * BLOCK_M + kv_len - q_len + 1) // BLOCK_N * BLOCK_N
        stop = min(kv_len, (row + 1) * BLOCK_M + kv_len - q_len)
    acc, total, peak = attend(
        acc, total, peak, query, k_at, v_at, scale, row_step, 0, whole, last, kv_len, False, CAUSAL, BLOCK_N
    )
    acc, total, peak = attend(
        acc, total, peak, query, k_at, v_at, scale, row_step, whole, stop, last, kv_len, True, CAUSAL, BLOCK_N
    )
    out = (acc / total[:, None]).to(o.dtype.element_ty)
    tl.store(o + q_row[:, None] * HEAD_DIM + d[None, :], out, mask=(m < q_len)[:, None])


def run(q: Any, k: Any, v: Any, out: Any, causal: bool, config: dict[str, int]) -> Any:
    """Launch on torch tensors laid out as in `prefill`; scale is 1 / √head_dim."""
    batch, q_len, heads, dim = q.shape
    grid = (batch * heads * -(-q_len // config["BLOCK_M"]),)
    extra = {key: config[key] for key in ("num_warps", "num_stages") if key in config}
    prefill[grid](
        q, k, v, out, dim**-0.5, q_len, k.shape[1], heads, k.shape[2], config["HEADS_FIRST"],
        HEAD_DIM=dim, CAUSAL=causal, BLOCK_M=config["BLOCK_M"], BLOCK_N=config["BLOCK_N"], **extra,
    )  # fmt: skip
    return out

"""Six textbook kernels written from their formulas: products, persistent and grouped ones, attention, norm, softmax."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def matmul(a, b, c, M, N, K, stride_am, stride_bk, stride_cm,
           BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr):  # fmt: skip
    """C = A · B, blocks walked in bands of GROUP_M rows."""
    pid = tl.program_id(0)
    rows, cols = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    band = pid // (GROUP_M * cols)
    height = min(rows - band * GROUP_M, GROUP_M)
    inside = pid % (GROUP_M * cols)
    m = ((band * GROUP_M + inside % height) * BLOCK_M + tl.arange(0, BLOCK_M)) % M
    n = (inside // height * BLOCK_N + tl.arange(0, BLOCK_N)) % N
    k = tl.arange(0, BLOCK_K)
    x_at, y_at = a + m[:, None] * stride_am + k[None, :], b + k[:, None] * stride_bk + n[None, :]
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for step in range(tl.cdiv(K, BLOCK_K)):
        left = K - step * BLOCK_K
        x = tl.load(x_at, mask=k[None, :] < left, other=0.0)
        y = tl.load(y_at, mask=k[:, None] < left, other=0.0)
        acc = tl.dot(x, y, acc)
        x_at += BLOCK_K
        y_at += BLOCK_K * stride_bk
    m = (band * GROUP_M + inside % height) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = inside // height * BLOCK_N + tl.arange(0, BLOCK_N)
    tl.store(c + m[:, None] * stride_cm + n[None, :], acc.to(tl.bfloat16), mask=(m[:, None] < M) & (n[None, :] < N))


@triton.jit
def persistent_matmul(a, b, c, M, N, K, NUM_SMS: tl.constexpr,
                      BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):  # fmt: skip
    """C = A · Bᵀ, a fixed number of blocks that take tile after tile."""
    cols, trips = tl.cdiv(N, BLOCK_N), tl.cdiv(K, BLOCK_K)
    tiles = tl.cdiv(M, BLOCK_M) * cols
    k = tl.arange(0, BLOCK_K)
    for tile in range(tl.program_id(0), tiles, NUM_SMS):
        m = tile // cols * BLOCK_M + tl.arange(0, BLOCK_M)
        n = tile % cols * BLOCK_N + tl.arange(0, BLOCK_N)
        acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for step in range(trips):
            at = step * BLOCK_K + k
            x = tl.load(a + (m % M)[:, None] * K + at[None, :], mask=at[None, :] < K, other=0.0)
            y = tl.load(b + (n % N)[:, None] * K + at[None, :], mask=at[None, :] < K, other=0.0)
            acc = tl.dot(x, y.T, acc)
        tl.store(c + m[:, None] * N + n[None, :], acc.to(tl.bfloat16), mask=(m[:, None] < M) & (n[None, :] < N))


@triton.jit
def grouped_matmul(a_list, b_list, c_list, sizes, group, NUM_SMS: tl.constexpr,
                   BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):  # fmt: skip
    """C_g = A_g · B_g for addresses and sizes (m, n, k) that lie on the device."""
    tile = tl.program_id(0)
    before = 0
    for g in range(group):
        m_size, n_size, k_size = tl.load(sizes + 3 * g), tl.load(sizes + 3 * g + 1), tl.load(sizes + 3 * g + 2)
        cols = tl.cdiv(n_size, BLOCK_N)
        tiles = tl.cdiv(m_size, BLOCK_M) * cols
        while tile >= before and tile < before + tiles:
            a = tl.load(a_list + g).to(tl.pointer_type(tl.bfloat16))
            b = tl.load(b_list + g).to(tl.pointer_type(tl.bfloat16))
            c = tl.load(c_list + g).to(tl.pointer_type(tl.bfloat16))
            m = (tile - before) // cols * BLOCK_M + tl.arange(0, BLOCK_M)
            n = (tile - before) % cols * BLOCK_N + tl.arange(0, BLOCK_N)
            k = tl.arange(0, BLOCK_K)
            acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
            for step in range(tl.cdiv(k_size, BLOCK_K)):
                at = step * BLOCK_K + k
                x = tl.load(a + (m % m_size)[:, None] * k_size + at[None, :], mask=at[None, :] < k_size, other=0.0)
                y = tl.load(b + at[:, None] * n_size + (n % n_size)[None, :], mask=at[:, None] < k_size, other=0.0)
                acc = tl.dot(x, y, acc)
            inside = (m[:, None] < m_size) & (n[None, :] < n_size)
            tl.store(c + m[:, None] * n_size + n[None, :], acc.to(tl.bfloat16), mask=inside)
            tile += NUM_SMS
        before += tiles


@triton.jit
def attention(q, k, v, o, scale, heads, N_CTX, CAUSAL: tl.constexpr, HEAD_DIM: tl.constexpr,
              BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):  # fmt: skip
    """Online softmax over keys, one block of queries of one head a program; [batch · heads, N_CTX, HEAD_DIM]."""
    start, head = tl.program_id(0) * BLOCK_M, tl.program_id(1).to(tl.int64)
    base = head * N_CTX * HEAD_DIM
    m, d, n0 = start + tl.arange(0, BLOCK_M), tl.arange(0, HEAD_DIM), tl.arange(0, BLOCK_N)
    query = tl.load(q + base + m[:, None] * HEAD_DIM + d[None, :], mask=m[:, None] < N_CTX, other=0.0)
    peak, total = tl.full((BLOCK_M,), float("-inf"), tl.float32), tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, HEAD_DIM), tl.float32)
    stop = min(start + BLOCK_M, N_CTX) if CAUSAL else N_CTX
    for begin in range(0, stop, BLOCK_N):
        n = begin + n0
        key = tl.load(k + base + n[None, :] * HEAD_DIM + d[:, None], mask=n[None, :] < N_CTX, other=0.0)
        score = tl.dot(query, key) * scale
        seen = n[None, :] < N_CTX
        if CAUSAL:
            seen = seen & (n[None, :] <= m[:, None])
        score = tl.where(seen, score, float("-inf"))
        top = tl.maximum(peak, tl.max(score, 1))
        p, fade = tl.exp2(score - top[:, None]), tl.exp2(peak - top)
        value = tl.load(v + base + n[:, None] * HEAD_DIM + d[None, :], mask=n[:, None] < N_CTX, other=0.0)
        acc = tl.dot(p.to(value.dtype), value, acc * fade[:, None])
        total, peak = total * fade + tl.sum(p, 1), top
    tl.store(o + base + m[:, None] * HEAD_DIM + d[None, :], (acc / total[:, None]).to(tl.bfloat16),
             mask=m[:, None] < N_CTX)  # fmt: skip


@triton.jit
def layer_norm(x, y, w, b, mean, rstd, stride, N, eps, BLOCK_SIZE: tl.constexpr):
    """(x − mean) / std · w + b, a row a program, in three passes over its columns."""
    row = tl.program_id(0).to(tl.int64)
    x += row * stride
    y += row * stride
    total = tl.zeros((BLOCK_SIZE,), tl.float32)
    for begin in range(0, N, BLOCK_SIZE):
        at = begin + tl.arange(0, BLOCK_SIZE)
        total += tl.load(x + at, mask=at < N, other=0.0).to(tl.float32)
    middle = tl.sum(total, 0) / N
    square = tl.zeros((BLOCK_SIZE,), tl.float32)
    for begin in range(0, N, BLOCK_SIZE):
        at = begin + tl.arange(0, BLOCK_SIZE)
        off = tl.where(at < N, tl.load(x + at, mask=at < N, other=0.0).to(tl.float32) - middle, 0.0)
        square += off * off
    scale = 1 / tl.sqrt(tl.sum(square, 0) / N + eps)
    tl.store(mean + row, middle)
    tl.store(rstd + row, scale)
    for begin in range(0, N, BLOCK_SIZE):
        at = begin + tl.arange(0, BLOCK_SIZE)
        weight, bias = tl.load(w + at, mask=at < N), tl.load(b + at, mask=at < N)
        value = (tl.load(x + at, mask=at < N, other=0.0).to(tl.float32) - middle) * scale
        tl.store(y + at, (value * weight + bias).to(tl.bfloat16), mask=at < N)


@triton.jit
def softmax(out, x, x_stride, out_stride, rows, cols, BLOCK_SIZE: tl.constexpr):
    """Softmax of rows, each program every so many rows."""
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0)):
        at = tl.arange(0, BLOCK_SIZE)
        value = tl.load(x + row * x_stride + at, mask=at < cols, other=float("-inf")).to(tl.float32)
        power = tl.exp(value - tl.max(value, 0))
        tl.store(out + row * out_stride + at, (power / tl.sum(power, 0)).to(tl.bfloat16), mask=at < cols)

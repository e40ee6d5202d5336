"""Dense GEMM: C[m, n] = scale · Σ_k A[m, k] · W[n, k], float32 accumulation."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from lab.own_kernels.kernels.moe_experts import block_of


@triton.jit
def gemm(
    a, w, c, scale, M, N, K, GROUP_M,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """A, W and C are contiguous. GROUP_M orders the blocks at run time: it needs no binary of its own."""
    row, col = block_of(tl.program_id(0), tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N), GROUP_M)
    # Rows and columns beyond the edge wrap around: their loads stay legal and their results are not stored.
    m = (row * BLOCK_M + tl.arange(0, BLOCK_M)) % M
    n = (col * BLOCK_N + tl.arange(0, BLOCK_N)) % N
    k = tl.arange(0, BLOCK_K)
    a_at = a + m[:, None] * K + k[None, :]
    w_at = w + n[None, :] * K + k[:, None]
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for done in range(0, K, BLOCK_K):
        inside = k < K - done
        x = tl.load(a_at, mask=inside[None, :], other=0.0)
        y = tl.load(w_at, mask=inside[:, None], other=0.0)
        acc = tl.dot(x, y, acc)
        a_at += BLOCK_K
        w_at += BLOCK_K
    m = row * BLOCK_M + tl.arange(0, BLOCK_M)
    n = col * BLOCK_N + tl.arange(0, BLOCK_N)
    out = (acc * scale).to(c.dtype.element_ty)
    tl.store(c + m[:, None] * N + n[None, :], out, mask=(m < M)[:, None] & (n < N)[None, :])


def blocks(m: int, n: int, block_m: int, block_n: int) -> int:
    """Thread blocks of one launch."""
    return -(-m // block_m) * -(-n // block_n)


def run(a: Any, w: Any, out: Any, config: dict[str, int], scale: float = 1.0) -> Any:
    """Launch on torch tensors A[m, k], W[n, k] and C[m, n]; all contiguous."""
    (m, k), n = a.shape, w.shape[0]
    tile = {key: config[key] for key in ("BLOCK_M", "BLOCK_N", "BLOCK_K")}
    grid = (blocks(m, n, tile["BLOCK_M"], tile["BLOCK_N"]),)
    extra = {key: config[key] for key in ("num_warps", "num_stages") if key in config}
    gemm[grid](a, w, out, scale, m, n, k, config["GROUP_M"], **tile, **extra)
    return out

"""The grouped GEMM of a fused MoE layer, run twice: w13 (gate and up together) and w2 (down).

Rows are (token, choice) pairs sorted by expert, each expert's share padded to whole blocks, so that a block works
for one expert. The grid covers the most blocks the routing could need: the host never waits to learn how many it did.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from lab.own_kernels.kernels.moe_experts import block_of


@triton.jit
def grouped_gemm(
    a, w, c, weights, sorted_ids, expert_ids, used_rows, bound_rows, pairs, N, K, top_k, weigh, GROUP_M,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """C[p, n] = Σ_k A[p // top_k, k] · W[e(p), n, k], times weights[p] if `weigh`; p counts (token, choice) pairs."""
    row, col = block_of(tl.program_id(0), tl.cdiv(bound_rows, BLOCK_M), tl.cdiv(N, BLOCK_N), GROUP_M)
    if row * BLOCK_M >= tl.load(used_rows):
        return
    pair = tl.load(sorted_ids + row * BLOCK_M + tl.arange(0, BLOCK_M))
    real = pair < pairs
    expert = tl.load(expert_ids + row).to(tl.int64)
    n = (col * BLOCK_N + tl.arange(0, BLOCK_N)) % N
    k = tl.arange(0, BLOCK_K)
    a_at = a + (pair // top_k)[:, None] * K + k[None, :]
    w_at = w + expert * N * K + n[None, :] * K + k[:, None]
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for done in range(0, K, BLOCK_K):
        inside = k < K - done
        x = tl.load(a_at, mask=real[:, None] & inside[None, :], other=0.0)
        y = tl.load(w_at, mask=inside[:, None], other=0.0)
        acc = tl.dot(x, y, acc)
        a_at += BLOCK_K
        w_at += BLOCK_K
    if weigh != 0:
        acc *= tl.load(weights + pair, mask=real, other=0.0)[:, None]
    n = col * BLOCK_N + tl.arange(0, BLOCK_N)
    at = c + pair[:, None] * N + n[None, :]
    tl.store(at, acc.to(c.dtype.element_ty), mask=real[:, None] & (n < N)[None, :])


def bound(pairs: int, experts: int, block_m: int) -> int:
    """Rows that the padded sort can need at most, whatever the routing (a multiple of block_m)."""
    # At most min(pairs, experts) experts are chosen; each wastes at most block_m - 1 rows.
    most = pairs + min(pairs, experts) * (block_m - 1)
    return -(-most // block_m) * block_m


def align(chosen: Any, experts: int, block_m: int) -> tuple[Any, Any, Any]:
    """Sort (token, choice) pairs by expert, padded to blocks.

    Args:
        chosen: integer tensor [tokens, top_k] of expert numbers.

    Returns:
        sorted_ids [bound] of pair numbers (padding holds `pairs`), expert_ids [bound / block_m], used_rows [1]; int32.
    """
    import torch

    flat = chosen.reshape(-1).long()
    pairs = flat.numel()
    counts = torch.bincount(flat, minlength=experts)
    padded = -(-counts // block_m) * block_m
    order = torch.argsort(flat, stable=True)
    owner = flat[order]
    shift = (padded.cumsum(0) - padded) - (counts.cumsum(0) - counts)
    rows = bound(pairs, experts, block_m)
    sorted_ids = torch.full((rows,), pairs, dtype=torch.int32, device=flat.device)
    sorted_ids[torch.arange(pairs, device=flat.device) + shift[owner]] = order.int()
    expert_ids = torch.zeros(rows // block_m, dtype=torch.int32, device=flat.device)
    owners = torch.repeat_interleave(torch.arange(experts, device=flat.device), padded // block_m)
    expert_ids[: owners.numel()] = owners.int()
    return sorted_ids, expert_ids, padded.sum().reshape(1).int()


def run(a: Any, w: Any, out: Any, weights: Any, routing: tuple[Any, Any, Any], top_k: int, weigh: bool,
        config: dict[str, int]) -> Any:  # fmt: skip
    """Launch on A[rows, k], W[experts, n, k], C[pairs, n]; `routing` comes from `align` with the same BLOCK_M."""
    sorted_ids, expert_ids, used_rows = routing
    n, k = w.shape[1], w.shape[2]
    tile = {key: config[key] for key in ("BLOCK_M", "BLOCK_N", "BLOCK_K")}
    rows = sorted_ids.numel()
    grid = (rows // tile["BLOCK_M"] * -(-n // tile["BLOCK_N"]),)
    extra = {key: config[key] for key in ("num_warps", "num_stages") if key in config}
    grouped_gemm[grid](
        a, w, out, weights, sorted_ids, expert_ids, used_rows, rows, out.shape[0], n, k, top_k, int(weigh),
        config["GROUP_M"], **tile, **extra,
    )  # fmt: skip
    return out

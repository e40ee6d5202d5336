"""A MoE layer for few tokens: two launches, nothing sorted. Weights are streamed once and multiplied by plain FMAs.

With so few rows the tensor core would work on padding; what counts is how many bytes are under way, so many small
programs read rows of weights straight into registers.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["top_k"])
def few_up(x, w, out, chosen, WIDE, K, top_k, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    """out[p, n] = SiLU(x[t] · gate[e, n]) · (x[t] · up[e, n]) of pair p = program 0; w is [experts, 2 · WIDE, K]."""
    pair = tl.program_id(0)
    expert = tl.load(chosen + pair).to(tl.int64)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    gate_at = w + (expert * 2 * WIDE + n % WIDE)[:, None] * K + k[None, :]
    x_at = x + (pair // top_k).to(tl.int64) * K + k
    gate = tl.zeros((BLOCK_N, BLOCK_K), dtype=tl.float32)
    high = tl.zeros((BLOCK_N, BLOCK_K), dtype=tl.float32)
    for done in range(0, K, BLOCK_K):
        inside = k < K - done
        a = tl.load(x_at + done, mask=inside, other=0.0).to(tl.float32)[None, :]
        g = tl.load(gate_at + done, mask=inside[None, :], other=0.0)
        u = tl.load(gate_at + WIDE.to(tl.int64) * K + done, mask=inside[None, :], other=0.0)
        gate += g.to(tl.float32) * a
        high += u.to(tl.float32) * a
    g = tl.sum(gate, 1)
    y = g * tl.sigmoid(g) * tl.sum(high, 1)
    tl.store(out + pair.to(tl.int64) * WIDE + n, y.to(out.dtype.element_ty), mask=n < WIDE)


@triton.jit
def few_down(y, w, out, weights, chosen, H, K, TOP_K: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    """out[t, n] = Σ_j weights[t, j] · (y[t, j] · w[e(t, j), n]) of token t = program 0; w is [experts, H, K]."""
    token = tl.program_id(0)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    acc = tl.zeros((BLOCK_N, BLOCK_K), dtype=tl.float32)
    for done in range(0, K, BLOCK_K):
        inside = k < K - done
        for j in tl.static_range(TOP_K):
            pair = token * TOP_K + j
            expert = tl.load(chosen + pair).to(tl.int64)
            a = tl.load(y + pair.to(tl.int64) * K + k + done, mask=inside, other=0.0).to(tl.float32)
            b_at = w + (expert * H + n % H)[:, None] * K + k[None, :] + done
            b = tl.load(b_at, mask=inside[None, :], other=0.0)
            acc += b.to(tl.float32) * (a * tl.load(weights + pair))[None, :]
    tl.store(out + token.to(tl.int64) * H + n, tl.sum(acc, 1).to(out.dtype.element_ty), mask=n < H)


def launch_few_up(x: Any, w13: Any, out: Any, chosen: Any, config: dict[str, int]) -> Any:
    """out[pairs, WIDE] in the order of `chosen` [tokens, top_k]."""
    inter, n = w13.shape[1] // 2, config["BLOCK_N"]
    few_up[(chosen.numel(), -(-inter // n))](
        x, w13, out, chosen, inter, w13.shape[2], chosen.shape[1], BLOCK_N=n, BLOCK_K=config["BLOCK_K"],
        num_warps=config["num_warps"],
    )  # fmt: skip
    return out


def launch_few_down(y: Any, w2: Any, out: Any, weights: Any, chosen: Any, config: dict[str, int]) -> Any:
    """out[tokens, H] from y[pairs, WIDE]."""
    h, n = w2.shape[1], config["BLOCK_N"]
    few_down[(chosen.shape[0], -(-h // n))](
        y, w2, out, weights, chosen, h, w2.shape[2], TOP_K=chosen.shape[1], BLOCK_N=n, BLOCK_K=config["BLOCK_K"],
        num_warps=config["num_warps"],
    )  # fmt: skip
    return out

"""The two products of a MoE layer as Hopper likes them: weights (and sorted rows) arrive by bulk tensor copies.

`up` multiplies gathered tokens by gate and up weights together and writes SiLU(gate) · up, sorted by expert: half the
intermediate, one launch less, and dense rows for `down` to copy in bulk. A launch may have one program a tile or one a
multiprocessor (LOOP); programs walk the tiles either way. With SWAP the weights are the left operand, so that few
tokens fill the short side of the tensor core's instruction and weights go to it straight from shared memory.

`few_up` and `few_down` are for few tokens: nothing is sorted, weights are streamed once and multiplied by plain FMAs.
The tensor core would work on padding; what counts is how many bytes are under way, so many small programs read rows of
weights straight into registers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import triton
import triton.language as tl

from lab.own_kernels.kernels.moe_sort import Blocks, Sorted

UP, DOWN = 0, 1  # the two tables of blocks
WIDTH = 1024  # columns that a program of `total` sums


@triton.jit
def block_of(pid, rows, cols, group):
    """Walk the rows × cols grid of blocks in bands of `group` rows, so that neighbours share operands in L2."""
    band = group * cols
    first = pid // band * group
    height = min(rows - first, group)
    return first + pid % band % height, pid % band // height


@triton.jit(do_not_specialize=["top_k", "GROUP_M"])
def up(
    x, w, out, order, ends, experts, rows, used, WIDE, K, top_k, GROUP_M,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, SWAP: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """out[r, n] = SiLU(x[t] · gate[e, n]) · (x[t] · up[e, n]); w describes [experts · 2 · WIDE, K], gate above up."""
    cols = tl.cdiv(WIDE, BLOCK_N)
    blocks = tl.load(used)
    k = tl.arange(0, BLOCK_K)
    for tile in tl.range(tl.program_id(0), blocks * cols, tl.num_programs(0)):
        block, col = block_of(tile, blocks, cols, GROUP_M)
        expert = tl.load(experts + block)
        row = tl.load(rows + block) + tl.arange(0, BLOCK_M)
        real = row < tl.load(ends + expert)
        # Rows of the next expert are multiplied too and not stored: loads without a mask are cheaper.
        token = tl.load(order + row, mask=real, other=0) // top_k
        x_at = x + token.to(tl.int64)[:, None] * K + k[None, :]
        at = expert * 2 * WIDE + col * BLOCK_N
        shape: tl.constexpr = (BLOCK_N, BLOCK_M) if SWAP else (BLOCK_M, BLOCK_N)
        gate = tl.zeros(shape, dtype=tl.float32)
        high = tl.zeros(shape, dtype=tl.float32)
        for done in range(0, K, BLOCK_K):
            a = tl.load(x_at + done) if EVEN else tl.load(x_at + done, mask=(k < K - done)[None, :], other=0.0)
            g = w.load([at, done])
            u = w.load([at + WIDE, done])
            if SWAP:
                gate = tl.dot(g, a.T, gate)
                high = tl.dot(u, a.T, high)
            else:
                gate = tl.dot(a, g.T, gate)
                high = tl.dot(a, u.T, high)
        n = col * BLOCK_N + tl.arange(0, BLOCK_N)
        y = (gate * tl.sigmoid(gate) * high).to(out.dtype.element_ty)
        if SWAP:
            tl.store(out + row[None, :] * WIDE + n[:, None], y, mask=real[None, :] & (n < WIDE)[:, None])
        else:
            tl.store(out + row[:, None] * WIDE + n[None, :], y, mask=real[:, None] & (n < WIDE)[None, :])


@triton.jit(do_not_specialize=["top_k", "GROUP_M"])
def down(
    y, w, out, weights, order, ends, experts, rows, used, H, K, top_k, GROUP_M,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, SWAP: tl.constexpr, ADD: tl.constexpr,
    LOOP: tl.constexpr,
):  # fmt: skip
    """out[p] = weights[p] · (y[r] · w[e]) for the pair p of sorted row r; with ADD it is added to out[p // top_k].

    y describes [pairs, K] and w [experts · H, K].
    """
    cols = tl.cdiv(H, BLOCK_N)
    blocks = tl.load(used)
    for tile in tl.range(tl.program_id(0), blocks * cols, tl.num_programs(0), flatten=LOOP):
        block, col = block_of(tile, blocks, cols, GROUP_M)
        expert = tl.load(experts + block)
        first = tl.load(rows + block)
        at = expert * H + col * BLOCK_N
        shape: tl.constexpr = (BLOCK_N, BLOCK_M) if SWAP else (BLOCK_M, BLOCK_N)
        acc = tl.zeros(shape, dtype=tl.float32)
        for done in range(0, K, BLOCK_K):
            a = y.load([first, done])
            b = w.load([at, done])
            acc = tl.dot(b, a.T, acc) if SWAP else tl.dot(a, b.T, acc)
        row = first + tl.arange(0, BLOCK_M)
        real = row < tl.load(ends + expert)
        pair = tl.load(order + row, mask=real, other=0)
        share = tl.load(weights + pair, mask=real, other=0.0)
        n = col * BLOCK_N + tl.arange(0, BLOCK_N)
        to = (pair // top_k if ADD else pair).to(tl.int64) * H
        if SWAP:
            z = (acc * share[None, :]).to(out.dtype.element_ty)
            tl.store(out + to[None, :] + n[:, None], z, mask=real[None, :] & (n < H)[:, None])
        else:
            z = (acc * share[:, None]).to(out.dtype.element_ty)
            where = out + to[:, None] + n[None, :]
            if ADD:
                tl.atomic_add(where, z, mask=real[:, None] & (n < H)[None, :], sem="relaxed")
            else:
                tl.store(where, z, mask=real[:, None] & (n < H)[None, :])


@triton.jit
def total(part, out, H, TOP_K: tl.constexpr, BLOCK: tl.constexpr):
    """out[t] = Σ_j part[t · TOP_K + j], in float32."""
    token = tl.program_id(0).to(tl.int64)
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK,), dtype=tl.float32)
    for j in tl.static_range(TOP_K):
        acc += tl.load(part + (token * TOP_K + j) * H + n, mask=n < H, other=0.0).to(tl.float32)
    tl.store(out + token * H + n, acc.to(out.dtype.element_ty), mask=n < H)


def described(matrix: Any, rows: int, cols: int) -> Any:
    """Describe a contiguous 2-D matrix for bulk copies of [rows, cols] boxes; beyond its edge lie zeros."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    return TensorDescriptor(matrix, list(matrix.shape), [matrix.shape[1], 1], [rows, cols])


def launch_up(x: Any, w13: Any, out: Any, s: Sorted, top_k: int, config: dict[str, int], sms: int) -> Any:
    """out[pairs, WIDE] from x[tokens, K] and w13[experts, 2 · WIDE, K]; with LOOP a program for each of `sms`."""
    e, twice, k = w13.shape
    m, n, depth = config["BLOCK_M"], config["BLOCK_N"], config["BLOCK_K"]
    up[programs(s.blocks[UP], twice // 2, config, sms)](
        x, described(w13.view(e * twice, k), n, depth), out, s.order, s.ends, *s.blocks[UP], twice // 2, k,
        top_k, config["GROUP_M"], BLOCK_M=m, BLOCK_N=n, BLOCK_K=depth, SWAP=config["SWAP"], EVEN=k % depth == 0,
        num_warps=config["num_warps"], num_stages=config["num_stages"],
    )  # fmt: skip
    return out


def launch_down(y: Any, w2: Any, out: Any, weights: Any, s: Sorted, top_k: int, config: dict[str, int],
                sms: int) -> Any:  # fmt: skip
    """Write out[pairs, H] from sorted y[pairs, K] and w2[experts, H, K]; with ADD, add to out[tokens, H] instead."""
    e, h, k = w2.shape
    m, n, depth = config["BLOCK_M"], config["BLOCK_N"], config["BLOCK_K"]
    down[programs(s.blocks[DOWN], h, config, sms)](
        described(y, m, depth), described(w2.view(e * h, k), n, depth), out, weights, s.order, s.ends,
        *s.blocks[DOWN], h, k, top_k, config["GROUP_M"], BLOCK_M=m, BLOCK_N=n, BLOCK_K=depth, SWAP=config["SWAP"],
        ADD=config["ADD"], LOOP=config["LOOP"], num_warps=config["num_warps"], num_stages=config["num_stages"],
    )  # fmt: skip
    return out


def programs(blocks: Blocks, cols: int, config: Mapping[str, int], sms: int) -> tuple[int, int, int]:
    """Programs to launch: one a tile that there may be, or at most one a multiprocessor."""
    tiles = max(1, blocks.experts.numel() * -(-cols // config["BLOCK_N"]))
    return min(tiles, sms) if config["LOOP"] else tiles, 1, 1


def launch_total(part: Any, out: Any, top_k: int) -> Any:
    """out[tokens, H] from part[tokens · top_k, H]."""
    tokens, h = out.shape
    total[(tokens, -(-h // WIDTH))](part, out, h, TOP_K=top_k, BLOCK=WIDTH)
    return out


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

"""Launches of kernels of flash-linear-attention, SGLang, Unsloth and torchao, operands as these projects make them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lab.any_kernel.subjects import Call, Shape, bf16, power

BUCKET = 65_536  # rows that share a choice upstream
GROUP = 4  # heads of a query that share keys


def l2norm_call(torch: Any, s: Shape) -> Call:
    """Rows of a head each, several of them a block."""
    rows, cols = s["rows"], s["cols"]
    x, y, rstd = bf16(torch, rows, cols), bf16(torch, rows, cols), torch.empty(rows, device="cuda")
    grid = lambda meta: (-(-rows // meta["BT"]),)  # noqa: E731
    return grid, (x, y, rstd, 1e-6, rows), {"D": cols, "BD": power(cols), "NB": -(-rows // BUCKET)}


def gated_call(torch: Any, s: Shape) -> Call:
    """silu(e) · g of as many values."""
    count = s["n"]
    e, g, h = (bf16(torch, count) for _ in range(3))
    return lambda meta: (-(-count // meta["BLOCK_SIZE"]),), (e, g, h, count), {"LONG_INDEXING": 0}


def prefill_call(torch: Any, s: Shape) -> Call:
    """Prompts of one length, packed one after the other; lengths lie on the device."""
    batch, heads, length = s["batch"], s["heads"], s["length"]
    q, out = bf16(torch, batch * length, heads, 128), bf16(torch, batch * length, heads, 128)
    k, v = (bf16(torch, batch * length, heads // GROUP, 128) for _ in range(2))
    start = torch.tensor([i * length for i in range(batch)], dtype=torch.int32, device="cuda")
    lengths = torch.tensor([length] * batch, dtype=torch.int32, device="cuda")
    grid = lambda meta: (batch, heads, -(-length // meta["BLOCK_M"]))  # noqa: E731
    wide, narrow = heads * 128, heads // GROUP * 128
    strides = (wide, 128, narrow, 128, narrow, 128, wide, 128)
    return grid, (q, k, v, 0.0884, start, lengths, out, *strides), {
        "kv_group_num": GROUP, "BLOCK_DMODEL": 128, "IS_CAUSAL": True, "Lk": 128}  # fmt: skip


def prefill_trips(given: Mapping[str, Any]) -> Any:
    """Trips of a mean and of the longest block under a causal mask: what the source cannot tell, for lengths lie on the
    device.
    """
    rows = -(-given["grid:length"] // given["BLOCK_M"])
    return (rows + 1) * given["BLOCK_M"] / (2 * given["BLOCK_N"]), rows * given["BLOCK_M"] / given["BLOCK_N"]


def int8_call(torch: Any, s: Shape) -> Call:
    """A · Bᵀ in one byte, sums in 32 bits."""
    m, n, k = s["m"], s["n"], s["k"]
    a, b = (torch.randint(-8, 8, (rows, k), dtype=torch.int8, device="cuda") for rows in (m, n))
    c = torch.empty(m, n, dtype=torch.int32, device="cuda")
    grid = lambda meta: (-(-m // meta["BLOCK_M"]) * -(-n // meta["BLOCK_N"]),)  # noqa: E731
    return grid, (a, b, c, m, n, k, k, 1, 1, k, n, 1), {}

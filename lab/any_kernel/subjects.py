"""The kernels of the comparison: where each comes from, its configurations, its shapes, and how it is launched.

The first configuration is the author's own where they have a fixed one; `default` says which is theirs where it depends
on the shape. Shapes are drawn; anchors and tests come from two streams.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from lab.any_kernel.wheels import load

Shape = dict[str, int]
Config = dict[str, int]
Call = tuple[Any, tuple[Any, ...], dict[str, Any]]  # grid, arguments, keyword arguments
SMS = 132
MOST_PRODUCTS, MOST_SCORES = 2**39, 2**31


@dataclass(frozen=True)
class Subject:
    """One kernel. `launch(torch, shape)` makes the tensors and returns grid, arguments and keyword arguments."""

    name: str
    project: str
    kernel: Callable[[], Any]
    configs: tuple[Config, ...]
    key: tuple[str, ...]
    draw: Callable[[random.Random], Shape]
    launch: Callable[[Any, Shape], Call]
    default: Callable[[Shape], Config] | None = None
    trips: Any = None

    def shapes(self, count: int, seed: int) -> list[Shape]:
        """Distinct shapes of a stream."""
        pick, found = random.Random(seed), dict[tuple[int, ...], Shape]()
        while len(found) < count:
            shape = self.draw(pick)
            found[tuple(shape.values())] = shape
        return list(found.values())

    def author(self, shape: Shape) -> int:
        """Number of the author's configuration at a shape."""
        return 0 if self.default is None else self.configs.index(self.default(shape))


def tutorial(name: str) -> Callable[[], Any]:
    """A kernel of `tutorials`."""

    def found() -> Any:
        from lab.any_kernel import tutorials

        return getattr(tutorials, name)

    return found


def cut(module: str, name: str) -> Callable[[], Any]:
    """A kernel cut from a wheel."""
    return lambda: getattr(load(module), name)


def spread(pick: random.Random, low: int, high: int, step: int = 1) -> int:
    """A number drawn evenly in its logarithm, a multiple of `step`."""
    value = math.exp(pick.uniform(math.log(low), math.log(high)))
    return max(low, round(value / step) * step)


def tiles(m: tuple[int, ...], n: tuple[int, ...], k: tuple[int, ...], most: int = 128 * 256, *, names: str = "BLOCK_{}",
          each: int = 2, **more: tuple[int, ...]) -> tuple[Config, ...]:  # fmt: skip
    """Tiles of a product that fit an SM: shared memory for all stages, accumulators in registers."""
    found = []
    for bm, bn, bk, stages in product(m, n, k, (3, 4)):
        warps = 8 if bm * bn >= 128 * 128 else 4
        if bm * bn <= most and stages * (bm + bn) * bk * each <= 200_000:
            found.append({names.format("M"): bm, names.format("N"): bn, names.format("K"): bk, "num_warps": warps,
                          "num_stages": stages})  # fmt: skip
    rest = [dict(zip(more, values, strict=True)) for values in product(*more.values())]
    return tuple({**one, **each_more} for one in found for each_more in rest)


def first(default: Config, configs: tuple[Config, ...]) -> tuple[Config, ...]:
    """Configurations with the author's default in front."""
    return (default, *(one for one in configs if one != default))


def bf16(torch: Any, *size: int) -> Any:
    """Random values."""
    return torch.empty(*size, dtype=torch.bfloat16, device="cuda").normal_(0, 0.5)


def product_shape(pick: random.Random, step: int = 64) -> Shape:
    """Rows of a step, widths of layers; products that would hold the card for more than about a millisecond are drawn
    again, since they cost as much to record as many small ones.
    """
    while True:
        m, n, k = spread(pick, 1, 8192), spread(pick, 512, 16384, step), spread(pick, 512, 16384, step)
        if m * n * k <= MOST_PRODUCTS:
            return {"m": m, "n": n, "k": k}


def sequences(pick: random.Random) -> Shape:
    """A batch of prompts of one length, of up to about a millisecond."""
    while True:
        batch, heads, length = spread(pick, 1, 16), pick.choice((4, 8, 16, 32)), spread(pick, 128, 8192)
        if batch * heads * length**2 <= MOST_SCORES:
            return {"batch": batch, "heads": heads, "length": length}


def matmul_call(torch: Any, s: Shape) -> Call:
    """A launch of matmul at a shape."""
    m, n, k = s["m"], s["n"], s["k"]
    a, b, c = bf16(torch, m, k), bf16(torch, k, n), bf16(torch, m, n)
    return lambda meta: (-(-m // meta["BLOCK_M"]) * -(-n // meta["BLOCK_N"]),), (a, b, c, m, n, k, k, n, n), {}


def flag_gems_call(torch: Any, s: Shape) -> Call:
    """A launch of flag gems at a shape."""
    grid, (a, b, c, m, n, k, *_), _ = matmul_call(torch, s)
    return grid, (a, b, c, m, n, k, k, 1, n, 1, n, 1), {}


def persistent_call(torch: Any, s: Shape) -> Call:
    """A launch of persistent at a shape."""
    m, n, k = s["m"], s["n"], s["k"]
    grid = lambda meta: (min(SMS, -(-m // meta["BLOCK_M"]) * -(-n // meta["BLOCK_N"])),)  # noqa: E731
    return grid, (bf16(torch, m, k), bf16(torch, n, k), bf16(torch, m, n), m, n, k), {"NUM_SMS": SMS}


def grouped_call(torch: Any, s: Shape) -> Call:
    """A launch of grouped at a shape."""
    g, m, n, k = s["g"], s["m"], s["n"], s["k"]
    a, b, c = bf16(torch, g, m, k), bf16(torch, g, k, n), bf16(torch, g, m, n)
    lists = [torch.tensor([part.data_ptr() for part in each], device="cuda") for each in (a, b, c)]
    sizes = torch.tensor([[m, n, k]] * g, dtype=torch.int32, device="cuda")
    sizes.held = a, b, c  # the addresses are of these: they must live as long
    grid = lambda _meta: (SMS + 0 * (g + m + n + k),)  # noqa: E731  the sizes lie on the device: the grid names them
    return grid, (*lists, sizes, g), {"NUM_SMS": SMS}


def grouped_trips(given: Mapping[str, Any]) -> Any:
    """Trips of a mean block of the grouped product: what the source cannot tell, since sizes lie on the device."""
    m, n, k = given["grid:m"], given["grid:n"], given["grid:k"]
    tiles_each = -(-m // given["BLOCK_M"]) * -(-n // given["BLOCK_N"])
    return -(-(tiles_each * given["group"]) // SMS) * -(-k // given["BLOCK_K"])


def attention_call(torch: Any, s: Shape) -> Call:
    """A launch of attention at a shape."""
    heads, length = s["batch"] * s["heads"], s["length"]
    q, k, v, o = (bf16(torch, heads, length, 128) for _ in range(4))
    grid = lambda meta: (-(-length // meta["BLOCK_M"]), heads)  # noqa: E731
    return grid, (q, k, v, o, 0.1275, s["heads"], length), {"CAUSAL": True, "HEAD_DIM": 128}


def layer_norm_call(torch: Any, s: Shape) -> Call:
    """A launch of layer norm at a shape."""
    rows, cols = s["rows"], s["cols"]
    x, y, w, b = bf16(torch, rows, cols), bf16(torch, rows, cols), bf16(torch, cols), bf16(torch, cols)
    mean, rstd = torch.empty(rows, device="cuda"), torch.empty(rows, device="cuda")
    return (rows,), (x, y, w, b, mean, rstd, cols, cols, 1e-5), {}


def softmax_call(torch: Any, s: Shape) -> Call:
    """A launch of softmax at a shape."""
    rows, cols = s["rows"], s["cols"]
    x, out = bf16(torch, rows, cols), bf16(torch, rows, cols)
    grid = lambda _meta: (min(rows, SMS * 4),)  # noqa: E731
    return grid, (out, x, cols, cols, rows, cols), {"BLOCK_SIZE": power(cols)}


def power(number: int) -> int:
    """The least power of two not below a number."""
    return 1 << (number - 1).bit_length()


def rms_norm_call(torch: Any, s: Shape) -> Call:
    """A launch of rms norm at a shape."""
    rows, cols = s["rows"], s["cols"]
    x, y, w, rstd = (bf16(torch, rows, cols), bf16(torch, rows, cols), bf16(torch, cols),
                     torch.empty(rows, device="cuda"))  # fmt: skip
    return (rows,), (y, cols, x, cols, w, 1, rstd, 1, cols, 1e-6, 0.0), {
        "casting_mode": 0, "elementwise_affine": True, "BLOCK_SIZE": power(cols)}  # fmt: skip


def swiglu_call(torch: Any, s: Shape) -> Call:
    """A launch of swiglu at a shape."""
    rows, cols = s["rows"], s["cols"]
    a, b, c = (bf16(torch, rows, cols) for _ in range(3))
    return (rows,), (a, b, c, cols, 1.0), {"n_cols": cols, "BLOCK_SIZE": power(cols)}


def cross_entropy_call(torch: Any, s: Shape) -> Call:
    """A launch of cross entropy at a shape."""
    rows, cols = s["rows"], s["cols"]
    x, y = bf16(torch, rows, cols), torch.randint(0, cols, (rows,), device="cuda")
    loss = torch.zeros(rows, device="cuda")
    given = (x, cols, y, 1, None, loss, None, 1, None, 0, None, 0, cols, float(rows), float(rows), 0.0, -100)
    return (rows,), given, {
        "lse_square_scale": 0.0, "label_smoothing": 0.0, "reduction": "mean", "softcap": None, "RETURN_Z_LOSS": False,
        "RETURN_TOKEN_ACCURACY": False, "RETURN_PREDICTED_TOKENS": False, "HAS_WEIGHT": False,
        "HAS_SOFTCAPPING": False, "HAS_GRADIENTS": True}  # fmt: skip


def liger_warps(shape: Shape, cols: str = "cols") -> int:
    """Warps by the width of a row, as Liger sets them."""
    block = power(shape[cols])
    return 32 if block >= 32768 else 16 if block >= 8192 else 8 if block >= 2048 else 4


def chunk_call(torch: Any, s: Shape) -> Call:
    """A launch of chunk at a shape."""
    batch, length, heads = s["batch"], s["length"], s["heads"]
    q, k, v, o = (bf16(torch, batch, length, heads, 128) for _ in range(4))
    h = bf16(torch, batch, -(-length // 64), heads, 128, 128)
    g = torch.zeros(batch, length, heads, device="cuda")
    grid = lambda meta: (-(-128 // meta["BV"]) * -(-length // 64), batch * heads)  # noqa: E731
    return grid, (q, k, v, h, g, None, o, None, None, 0.09, length), {
        "H": heads, "HV": heads, "K": 128, "V": 128, "BT": 64, "STATE_V_FIRST": False}  # fmt: skip


def fp8(torch: Any, *size: int) -> Any:
    """Random values in one byte."""
    return torch.empty(*size, device="cuda").normal_(0, 0.5).to(torch.float8_e4m3fn)


def block_fp8_call(torch: Any, s: Shape) -> Call:
    """A launch of block fp8 at a shape."""
    m, n, k = s["m"], s["n"], s["k"]
    a, b, c = fp8(torch, m, k), fp8(torch, n, k), bf16(torch, m, n)
    a_scale, b_scale = torch.ones(m, -(-k // 128), device="cuda"), torch.ones(-(-n // 128), -(-k // 128), device="cuda")
    grid = lambda meta: (-(-m // meta["BLOCK_SIZE_M"]) * -(-n // meta["BLOCK_SIZE_N"]),)  # noqa: E731
    strides = (k, 1, 1, k, n, 1, a_scale.stride(0), 1, 1, b_scale.stride(0))
    return grid, (a, b, c, a_scale, b_scale, m, n, k, 128, 128, *strides), {}


def routed_rows(torch: Any, m: int, e: int, top_k: int, block: int) -> tuple[Any, Any, Any]:
    """Tokens sorted by expert and padded to whole blocks, the expert of each block, and rows in all; even routing."""
    chosen = np.argsort(np.random.default_rng(m).random((m, e)), axis=1)[:, :top_k].reshape(-1)
    ids, experts = [], []
    for expert in range(e):
        mine = np.flatnonzero(chosen == expert)
        padded = -(-len(mine) // block) * block
        ids.append(np.concatenate([mine, np.full(padded - len(mine), m * top_k)]))
        experts += [expert] * (padded // block)
    rows = np.concatenate(ids).astype(np.int32)
    return (torch.from_numpy(rows).cuda(), torch.tensor(experts, dtype=torch.int32).cuda(),
            torch.tensor([len(rows)], dtype=torch.int32).cuda())  # fmt: skip


def fused_moe_call(torch: Any, s: Shape) -> Call:
    """Blocks of 64 rows in every configuration, since the routing is sorted for them."""
    import triton.language as tl

    m, e, top_k, n, k, block = s["m"], s["e"], 8, s["n"], s["k"], MOE_ROWS
    a, b, c = bf16(torch, m, k), bf16(torch, e, n, k), bf16(torch, m, top_k, n)
    ids, experts, rows = routed_rows(torch, m, e, top_k, block)
    weights, padded, pairs = torch.rand(m, top_k, device="cuda"), ids.numel(), m * top_k
    grid = lambda meta: (-(-padded // meta["BLOCK_SIZE_M"]) * -(-n // meta["BLOCK_SIZE_N"]),)  # noqa: E731
    strides = (k, 1, n * k, 1, k, n, 1, 0, 0, 0, 0, 0, 0, 0)
    given = (a, b, c, None, None, None, weights, ids, experts, rows, n, k, padded, pairs, *strides)
    return grid, given, {
        "group_n": 0, "group_k": 0, "naive_block_assignment": False, "SPLIT_K": 1, "MUL_ROUTED_WEIGHT": False,
        "top_k": top_k, "compute_type": tl.bfloat16, "use_fp8_w8a8": False, "use_int8_w8a8": False,
        "use_int8_w8a16": False, "per_channel_quant": False, "HAS_BIAS": False}  # fmt: skip


MOE_ROWS = 64
WARPS = tuple({"num_warps": warps} for warps in (1, 2, 4, 8, 16, 32))


def rows_shape(pick: random.Random, cols: tuple[int, ...] = (1024, 1536, 2048, 2560, 3072, 4096, 5120, 6144, 8192),
               most: int = 32768) -> Shape:  # fmt: skip
    """Rows of a batch, a width in use."""
    return {"rows": spread(pick, 64, most), "cols": pick.choice(cols)}


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

"""What is stated of our own shipped kernels: fields of their shapes, counts of a launch, what runs without tuning.

Counts of other kernels are read from their source (`tune.source`). Ours are stated: routing and cache lengths are
hidden in tensors, which no source tells, and reading 90 tiles takes 0.2 s at each load and needs triton. The functions
run on traced numbers (`source.traced`), so that they become the same formulas as those that are read. Defaults are the
rules of vLLM and SGLang.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from pipewave.tune.law.anchors import Ints
from pipewave.tune.law.wave import LaunchCounts
from pipewave.tune.source.traced import cdiv, greatest, least

Numbers = Mapping[str, Any]
LINE = 128  # bytes of a cache line
PARTS = (0.1, 0.3, 0.5, 0.7, 0.9)  # of the range of sequence lengths: where splits of decode are counted
SHAPE_FIELDS: dict[str, tuple[str, ...]] = {
    "gemm": ("m", "n", "k"),
    "moe": ("m", "e", "top_k", "hidden", "inter"),
    "prefill": ("batch", "q_len", "kv_len", "heads", "kv_heads"),
    "decode": ("batch", "kv_len", "heads", "kv_heads"),
}
LOAD_FIELDS = {"decode": ("longest",), "moe": ("counts",)}  # what may be said of a launch beyond its shape
Shape = Mapping[str, int]
Values = tuple[int, ...]  # in the order of a kernel's parameters
MOE_CROWDED = 128  # tokens for each expert there is, from where on it walks tiles in bands


def family(kernel: str) -> str:
    """The key of `SHAPE_FIELDS` for a kernel's name."""
    return kernel.split("_")[0]


def is_up(kernel: str) -> bool:
    """Whether a MoE kernel is the first product of a layer, gate and up."""
    return kernel == "moe_w13"


def gemm(s: Numbers, c: Numbers, width: int) -> LaunchCounts:
    """Dense GEMM of operands of `width` bytes: one block an output tile, one trip a slice of K."""
    m, n, k = s["m"], s["n"], s["k"]
    rows, cols, trips = cdiv(m, c["BLOCK_M"]), cdiv(n, c["BLOCK_N"]), cdiv(k, c["BLOCK_K"])
    row_bytes = k * width + (k * width % LINE > 0) * LINE * trips  # rows that start inside a line ask for one more
    dram = (m * k + n * k) * width + 2 * m * n
    return LaunchCounts(rows * cols, trips, trips, dram, (rows * n + cols * m) * row_bytes)


def active_experts(m: Any, e: Any, top_k: Any) -> Any:
    """Experts that at least one of m tokens chooses, in expectation, every expert being as likely."""
    return e * (1.0 - (1.0 - top_k / (e + 1e-9)) ** m)


def expert_rows(pairs: Any, active: Any, block_m: Any) -> Any:
    """Blocks of rows that `pairs` rows over `active` experts fill: a part-filled block each, half on average."""
    return active + greatest(pairs / block_m - 0.5 * active, 0.0)


def routed(counts: Iterable[int], sizes: Iterable[int]) -> dict[str, int]:
    """The load of a routing, from the tokens that each expert got, for blocks of some sizes."""
    used = [count for count in counts if count > 0]
    return {"active": len(used)} | {f"rows_{size}": sum(cdiv(count, size) for count in used) for size in sizes}


def moe(s: Numbers, c: Numbers, *, up: bool) -> LaunchCounts:
    """A product of experts, rows padded to whole blocks: by the routing where `s` has it, else in expectation."""
    m, e, top_k = s["m"], s["e"], s["top_k"]
    n, k = (2 * s["inter"], s["hidden"]) if up else (s["hidden"], s["inter"])
    pairs, block = m * top_k, c["BLOCK_M"]
    active = s["active"] if "active" in s else active_experts(m, e, top_k)
    rows = s[f"rows_{block}"] if "active" in s else expert_rows(pairs, active, block)
    cols, trips = cdiv(n, c["BLOCK_N"]), cdiv(k, c["BLOCK_K"])
    bound = (pairs + least(pairs, e) * (block - 1)) // block + 1
    dram = 2 * (active * n * k + m * (k if up else top_k * k) + pairs * n)
    moved = 2 * (rows * n + cols * pairs) * k
    return LaunchCounts(rows * cols, trips, trips, dram, moved, (bound - rows) * cols)


def prefill(s: Numbers, c: Numbers, head_dim: int, causal: bool) -> LaunchCounts:
    """FlashAttention forward: a block attends BLOCK_M queries of one head, a trip BLOCK_N keys."""
    q, kv, block_m, block_n = s["q_len"], s["kv_len"], c["BLOCK_M"], c["BLOCK_N"]
    blocks, longest = s["batch"] * s["heads"] * cdiv(q, block_m), cdiv(kv, block_n)
    trips, masked = longest, (kv % block_n > 0) * 1
    if causal:  # row i sees the prefix and (i + 1) blocks of queries, the last one what is left
        first = least(q, block_m)
        trips, masked = (kv - q + 0.5 * (first + q)) / block_n + 0.5, first / block_n + 0.5
    dram = 4 * head_dim * s["batch"] * (q * s["heads"] + kv * s["kv_heads"])
    return LaunchCounts(blocks, trips, longest, dram, 0, blocks * masked)


def decode(s: Numbers, c: Numbers, head_dim: int) -> LaunchCounts:
    """Paged decode: a block attends one KV head's queries to one split of one sequence; `idle` counts reduced rows.
    `kv_len` is the mean of the lengths, `longest` the longest: lengths are taken as spread evenly about the mean.
    """
    kv, splits, step, groups = s["kv_len"], c["SPLITS"], c["BLOCK_N"], s["batch"] * s["kv_heads"]
    last = s.get("longest", kv)
    each = [cdiv(greatest(kv + (2 * part - 1) * (last - kv), 1), step) for part in PARTS]
    used = sum(cdiv(trips, cdiv(trips, splits)) for trips in each) / len(each)
    trips = sum(each) / len(each) / used
    dram = 4 * head_dim * groups * kv
    idle = s["batch"] * s["heads"] * splits if splits > 1 else 0
    return LaunchCounts(groups * used, trips, cdiv(last, splits * step), dram, groups * splits, idle)


def stated(kernel: str) -> Callable[[Numbers, Numbers], LaunchCounts]:
    """Counts of one of our own kernels from the numbers of a launch and a configuration's parameters."""
    kind = family(kernel)
    if kind == "gemm":
        return lambda s, c: gemm(s, c, 1 if kernel == "gemm_fp8" else 2)
    if kind == "moe":
        return lambda s, c: moe(s, c, up=is_up(kernel))
    dim = int(kernel.rsplit("_", 1)[1])
    return lambda s, c: prefill(s, c, dim, "causal" in kernel) if kind == "prefill" else decode(s, c, dim)


def flops(kernel: str, c: Numbers, counts: LaunchCounts) -> Any:
    """FLOPs of a launch of one of our own kernels, padding included."""
    per_row = 4 * int(kernel.rsplit("_", 1)[1]) if family(kernel) in ("prefill", "decode") else 2 * c["BLOCK_K"]
    return per_row * c.get("BLOCK_M", 16) * c["BLOCK_N"] * counts.blocks * counts.trips


def _gemm_fp8(shape: Shape) -> Values:
    """vLLM's rule for its scaled Triton GEMM: tile by the next power of two of M, narrow N first."""
    rows = 1 << max(shape["m"] - 1, 0).bit_length()
    if rows <= 32:
        return (64, 64, 256, 4, 3, 1) if shape["n"] < 8192 else (64, 128, 256, 4, 3, 1)
    if rows <= 64:
        return (64, 64, 256, 4, 3, 1)
    return (64, 128, 128, 4, 3, 1) if rows <= 128 else (128, 128, 128, 4, 3, 1)


def _moe(shape: Shape) -> Values:
    """What vLLM 0.22 runs without a tuned file: tiles grow with tokens."""
    m = shape["m"]
    rows = next((rows for most, rows in ((32, 16), (96, 32), (512, 64)) if m <= most), 128)
    cols, depth = (64, 128) if m <= 64 else (128, 64)
    group = 16 if m // max(shape["e"], 1) > MOE_CROWDED else 1
    return (rows, cols, depth, 4 if m <= 128 else 8, 4 if m <= 32 else 3, group)


_RULES: Mapping[str, Callable[[Shape], Values]] = {
    "gemm": lambda _: (128, 128, 64, 8, 3, 8),  # vLLM's fixed tile for its persistent bf16 Triton GEMM
    "gemm_fp8": _gemm_fp8, "moe": _moe,
    # The fixed tile of vLLM's and SGLang's Triton prefill kernel on GPUs since Ampere.
    "prefill": lambda shape: (128, 128, 4 if shape["head_dim"] <= 64 else 8, 1, 0),
    "decode": lambda _: (32, 4, 2, 8),  # SGLang's Triton decode kernel, with its 8 splits
}  # fmt: skip


def default(kernel: str, shape: Shape) -> Values:
    """Values of the default configuration of a kernel at a shape."""
    kind = family(kernel)
    width = {"head_dim": int(kernel.rsplit("_", 1)[1])} if kind in ("prefill", "decode") else {}
    return _RULES.get(kernel, _RULES[kind])({**shape, **width})


def defaults(kernel: str, config: Mapping[str, Ints], shape: Mapping[str, Any]) -> Ints:
    """Number [s] of the default among configurations [c] given as columns, at shapes given as columns."""
    position = {row: i for i, row in enumerate(zip(*(values.tolist() for values in config.values()), strict=True))}
    rows = zip(*(np.asarray(values).reshape(-1).tolist() for values in shape.values()), strict=True)
    return np.array([position[default(kernel, dict(zip(shape, row, strict=True)))] for row in rows])

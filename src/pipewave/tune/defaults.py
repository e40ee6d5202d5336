"""What runs without tuning: the rules of vLLM and SGLang, and ours for our own fused MoE layer, by kernel and shape."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipewave.tune.law.launch_counts import family

Ints = NDArray[np.int64]
Shape = Mapping[str, int]
Values = tuple[int, ...]  # in the order of a kernel's parameters
MOE_CROWDED = 128  # tokens for each expert there is, from where on it walks tiles in bands


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


def _rows(shape: Shape) -> int:
    """Rows of a tile of the fused layer that suit the tokens of an expert."""
    each = shape["m"] * shape["top_k"] / shape["e"]
    return next((size for size in (16, 64) if each <= size), 128)


def _moe_up(shape: Shape) -> Values:
    tile = {16: (16, 64, 128, 4, 5, 1), 64: (64, 128, 64, 4, 5, 0), 128: (128, 128, 64, 8, 4, 0)}[_rows(shape)]
    return (*tile, 8, 0)


def _moe_down(shape: Shape) -> Values:
    tile = {16: (16, 128, 128, 4, 3, 0), 64: (64, 128, 64, 4, 3, 0), 128: (128, 128, 64, 4, 3, 0)}[_rows(shape)]
    return (*tile, 0, 0, 8)


_RULES: Mapping[str, Callable[[Shape], Values]] = {
    "gemm": lambda _: (128, 128, 64, 8, 3, 8),  # vLLM's fixed tile for its persistent bf16 Triton GEMM
    "gemm_fp8": _gemm_fp8, "moe": _moe, "moe_up": _moe_up, "moe_down": _moe_down,
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

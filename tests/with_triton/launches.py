"""Kernels and launches that several tests read."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from pipewave.tune.source.inspect import Shaped

CDIV = triton.cdiv


@triton.jit
def two_ways(x, n, BLOCK: tl.constexpr):
    if n > 100:
        for _ in range(0, n, BLOCK):
            tl.load(x + tl.arange(0, BLOCK))
    else:
        tl.load(x + tl.arange(0, BLOCK))


def dense(m: int, n: int, k: int) -> tuple[Any, dict[str, Any]]:
    named = {"a": Shaped(m * k, 2), "w": Shaped(n * k, 2), "c": Shaped(m * n, 2), "scale": 1.0, "M": m, "N": n, "K": k,
             "GROUP_M": 4}  # fmt: skip
    return lambda c: (CDIV(m, c["BLOCK_M"]) * CDIV(n, c["BLOCK_N"]),), named

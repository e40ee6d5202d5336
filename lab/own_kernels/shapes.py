"""Shapes to measure: random draws from each kernel's declared domain.

Test shapes and anchors come from different random streams; the seed is fixed before anything is fitted.
A shape is a dict of integers; `FIELDS` names them per kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from pipewave.tune.shipped_kernels import family

Shape = dict[str, int]
Rng = np.random.Generator

GEMM_LAYERS = (  # (n, k) of linear layers, as sharded in practice
    (4096, 4096), (6144, 4096), (28672, 4096), (14336, 4096), (4096, 14336), (4096, 7168), (1280, 8192), (8192, 1024),
    (8192, 8192), (7168, 8192), (8192, 3584), (10240, 8192), (2048, 2048), (5120, 5120), (3456, 5120), (5120, 1728),
    (2112, 7168), (7168, 2048), (7168, 2304), (4608, 7168), (1536, 2048), (2560, 2560), (9728, 2560), (12288, 4096),
)  # fmt: skip
MOE_LAYERS = (  # (experts, chosen, hidden, intermediate on one GPU)
    (8, 2, 4096, 1792), (8, 2, 4096, 3584), (8, 2, 6144, 2048), (16, 2, 4096, 800), (32, 4, 2880, 1440),
    (64, 6, 2048, 1408), (60, 4, 2048, 1408), (64, 8, 2048, 1024), (128, 8, 2048, 768), (128, 8, 2048, 384),
    (128, 8, 4096, 384), (128, 8, 4096, 768), (160, 6, 5120, 384), (256, 8, 7168, 128), (256, 8, 7168, 256),
    (128, 4, 2880, 720), (16, 1, 5120, 2048), (72, 6, 4096, 512),
)  # fmt: skip
HEADS = ((32, 32), (32, 8), (32, 4), (16, 2), (8, 1), (28, 4), (64, 8), (40, 8), (16, 16), (8, 8), (12, 2), (48, 8))
OPS_LIMIT = 2.0e11  # keeps one timed call under about half a millisecond
BYTES_LIMIT = 1.9e9
FIELDS = {
    "gemm": ("m", "n", "k"),
    "moe": ("m", "e", "top_k", "hidden", "inter", "skew", "seed"),
    "prefill": ("batch", "q_len", "kv_len", "heads", "kv_heads", "head_dim", "causal"),
    "decode": ("batch", "kv_len", "spread", "heads", "kv_heads", "head_dim", "seed"),
}


def _log_int(rng: Rng, low: int, high: int, step: int = 1) -> int:
    """Draw log-uniformly from [low, high], rounded to a multiple of `step`."""
    value = math.exp(rng.uniform(math.log(low), math.log(high)))
    return max(step, round(value / step) * step)


def _gemm(rng: Rng, kernel: str) -> Shape | None:
    if rng.random() < 0.5:
        n, k = GEMM_LAYERS[rng.integers(len(GEMM_LAYERS))]
    else:
        n, k = _log_int(rng, 512, 16384, 64), _log_int(rng, 512, 16384, 64)
    m = _log_int(rng, 1, 8192)
    limit = OPS_LIMIT * (2 if kernel == "gemm_fp8" else 1)
    return {"m": m, "n": n, "k": k} if 2 * m * n * k <= limit else None


def _moe(rng: Rng, _kernel: str) -> Shape | None:
    if rng.random() < 0.5:
        e, top_k, hidden, inter = MOE_LAYERS[rng.integers(len(MOE_LAYERS))]
    else:
        e = int(rng.choice((8, 16, 32, 64, 128, 256)))
        top_k = int(rng.choice((1, 2, 4, 6, 8)))
        hidden, inter = _log_int(rng, 1024, 8192, 64), _log_int(rng, 128, 8192, 64)
    m = _log_int(rng, 1, 8192)
    skew, seed = int(rng.choice((0, 50, 100))), int(rng.integers(1 << 30))
    if 4 * m * top_k * hidden * inter > OPS_LIMIT or 4 * e * hidden * inter > BYTES_LIMIT:
        return None
    return {"m": m, "e": e, "top_k": top_k, "hidden": hidden, "inter": inter, "skew": skew, "seed": seed}


def _prefill(rng: Rng, kernel: str) -> Shape | None:
    heads, kv_heads = HEADS[rng.integers(len(HEADS))]
    batch, q_len = _log_int(rng, 1, 32), _log_int(rng, 16, 8192)
    prefix = _log_int(rng, 16, 8192) if rng.random() < 0.3 else 0
    causal, dim = int("causal" in kernel), int(kernel.rsplit("_", 1)[1])
    kv_len = q_len + prefix
    ops = 4 * batch * heads * dim * q_len * (kv_len - causal * q_len / 2)
    if ops > 0.7 * OPS_LIMIT or batch * kv_len > 65536 or batch * q_len * heads > 1 << 20:
        return None
    return {"batch": batch, "q_len": q_len, "kv_len": kv_len, "heads": heads, "kv_heads": kv_heads,
            "head_dim": dim, "causal": causal}  # fmt: skip


def _decode(rng: Rng, kernel: str) -> Shape | None:
    heads, kv_heads = HEADS[rng.integers(len(HEADS))]
    batch, kv_len = _log_int(rng, 1, 256), _log_int(rng, 32, 65536)
    dim, spread = int(kernel.rsplit("_", 1)[1]), int(rng.choice((0, 50)))
    if 4 * batch * kv_len * kv_heads * dim > 0.5 * BYTES_LIMIT:
        return None
    return {"batch": batch, "kv_len": kv_len, "spread": spread, "heads": heads, "kv_heads": kv_heads,
            "head_dim": dim, "seed": int(rng.integers(1 << 30))}  # fmt: skip


_DRAWS: dict[str, Callable[[Rng, str], Shape | None]] = {
    "gemm": _gemm, "moe": _moe, "prefill": _prefill, "decode": _decode
}  # fmt: skip


def draw(kernel: str, seed: int, count: int) -> list[Shape]:
    """Draw `count` shapes of a kernel's domain; moe_w13 and moe_w2 draw the same layers for one seed."""
    rng = np.random.default_rng([seed, len(family(kernel)), sum(map(ord, family(kernel)))])
    found: list[Shape] = []
    while len(found) < count:
        shape = _DRAWS[family(kernel)](rng, kernel)
        if shape is not None:
            found.append(shape)
    return found


def lengths(shape: Shape) -> np.ndarray:
    """Return the cached tokens of each sequence of a decode shape: kv_len ± spread %, at least 1."""
    rng = np.random.default_rng(shape["seed"])
    share = 1 + shape["spread"] / 100 * rng.uniform(-1, 1, shape["batch"])
    return np.maximum(1, np.rint(shape["kv_len"] * share)).astype(np.int32)

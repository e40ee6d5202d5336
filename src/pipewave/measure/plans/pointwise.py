"""Memory-bound kernels between the matrix products: norms, activation, rotary embedding, cache write."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pipewave.measure.job import Job
from pipewave.measure.plans.gemm import ms
from pipewave.measure.plans.size import Size

LARGEST = 1 << 29
NORM_DIMS = (1024, 1536, 2048, 2560, 2880, 3072, 3584, 4096, 5120, 6144, 7168, 8192, 12288, 16384)
ACTIVATION_DIMS = (512, 768, 1024, 1408, 1536, 2048, 2880, 3584, 4096, 5120, 6912, 7168, 8192, 9472, 11008, 12800,
                   13824, 14336, 16384, 18944, 27648, 28672)  # fmt: skip
ROPE_LAYOUTS = ((1, 1), (4, 1), (8, 1), (8, 8), (16, 2), (16, 8), (28, 4), (32, 4), (32, 8), (40, 8), (64, 8))
CACHE_HEADS = (1, 2, 4, 8, 16, 32)


def rmsnorm(rng: np.random.Generator, size: Size) -> Iterator[Job]:
    """RMSNorm with and without the fused residual addition, and the short rows of query-key norms."""
    for dim in NORM_DIMS:
        for fused in (False, True):
            for rows in ms(rng, size.per_pointwise):
                case = {"kernel": "rmsnorm", "rows": rows, "dim": dim, "dtype": "bf16", "fused_add": fused}
                yield from _fits(Job(case, "vllm"), rows * dim)
    for dim in (64, 128):
        for rows in ms(rng, size.per_pointwise):
            case = {"kernel": "rmsnorm", "rows": rows * 16, "dim": dim, "dtype": "bf16", "fused_add": False}
            yield Job(case, "vllm")


def silu_and_mul(rng: np.random.Generator, size: Size) -> Iterator[Job]:
    """SiLU of one half times the other."""
    for dim in ACTIVATION_DIMS:
        for rows in ms(rng, size.per_pointwise):
            case = {"kernel": "silu_and_mul", "rows": rows, "dim": dim, "dtype": "bf16"}
            yield from _fits(Job(case, "vllm"), rows * dim)


def rope(rng: np.random.Generator, size: Size) -> Iterator[Job]:
    """Rotary embedding in place over queries and keys."""
    for heads, kv_heads in ROPE_LAYOUTS:
        for head_dim in (64, 128):
            for rows in ms(rng, size.per_pointwise):
                case = {"kernel": "rope", "rows": rows, "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim}
                yield from _fits(Job(case | {"dtype": "bf16"}, "vllm"), rows * heads * head_dim)


def kv_write(rng: np.random.Generator, size: Size) -> Iterator[Job]:
    """Scatter of new keys and values into the paged cache."""
    for kv_heads in CACHE_HEADS:
        for head_dim in (64, 128):
            for rows in ms(rng, size.per_pointwise):
                case = {"kernel": "kv_write", "rows": rows, "kv_heads": kv_heads, "head_dim": head_dim}
                yield from _fits(Job(case | {"dtype": "bf16"}, "vllm"), rows * kv_heads * head_dim)


def _fits(job: Job, elements: int) -> Iterator[Job]:
    if elements <= LARGEST:
        yield job

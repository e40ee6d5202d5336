"""Matrix products of published models and random shapes, and the memory-bound kernels between them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from lab.plans import Size
from lab.plans.shapes import DENSE, LATENT, TENSOR_PARALLEL, projections
from pipewave.measure.plan import Job, rough_us

LONGEST_US = 8000.0
LARGEST_OPERAND = 1_000_000_000
MS_SERVED = np.array(
    [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 160, 192, 256, 320, 384, 512, 640, 768, 1024, 1280, 1536,
     2048, 3072, 4096, 5120, 6144, 8192, 12288, 16384, 32768]
)  # fmt: skip


def shapes(rng: np.random.Generator, random_pairs: int) -> list[tuple[int, int]]:
    """Distinct (n, k): every projection of every model and split, then log-uniform ones on grids of 16 to 128."""
    pairs = {pair for layer in DENSE for tp in TENSOR_PARALLEL for pair in projections(layer, tp)} | set(LATENT)
    known = sorted(pair for pair in pairs if pair[0] * pair[1] <= LARGEST_OPERAND)
    drawn = [_random_pair(rng) for _ in range(random_pairs)]
    return known + [pair for pair in dict.fromkeys(drawn) if pair not in pairs]


def _random_pair(rng: np.random.Generator) -> tuple[int, int]:
    step = int(rng.choice([16, 32, 64, 128]))
    n, k = (round(float(np.exp(rng.uniform(np.log(256), np.log(32768)))) / step) * step for _ in range(2))
    return max(n, step), max(k, step)


def ms(rng: np.random.Generator, count: int) -> list[int]:
    """`count` distinct token counts from 1 to 32768: two in three as servers use them, the rest log-uniform."""
    served = rng.choice(MS_SERVED, size=min(len(MS_SERVED), -(-2 * count // 3)), replace=False)
    odd = np.exp(rng.uniform(0, np.log(32768), size=count)).astype(int)
    return [int(m) for m in dict.fromkeys([*served.tolist(), *odd.tolist()])][:count]


def jobs(rng: np.random.Generator, size: Size) -> Iterator[Job]:
    """bf16 through cuBLAS everywhere; fp8 by CUTLASS with and without quantisation, cuBLASLt, and block scales."""
    for n, k in shapes(rng, size.random_pairs):
        for dtype, impl, share, quantize in (
            ("bf16", "cublas", 1.0, False),
            ("fp8", "cutlass", 0.55, False),
            ("fp8", "cutlass", 0.2, True),
            ("fp8", "torch_scaled_mm", 0.12, False),
            ("fp8_block", "cutlass", 0.2, False),
            ("fp16", "cublas", 0.08, False),
        ):
            if not _runs(dtype, n, k):
                continue
            for m in ms(rng, max(1, round(share * size.per_pair))):
                case = {"kernel": "gemm", "m": m, "n": n, "k": k, "dtype": dtype}
                case |= {"quantize": True} if quantize else {}
                if rough_us(case) <= LONGEST_US and m * max(k, n) <= LARGEST_OPERAND:
                    yield Job(case, impl)


def _runs(dtype: str, n: int, k: int) -> bool:
    grid = {"fp8": 16, "fp8_block": 128}.get(dtype, 1)
    return n % grid == 0 and k % grid == 0


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

"""Calls whose energy `lab.board_energy` counts: each of the contract with operands of its own, to be launched again and
again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

MIB = 1 << 20
Case = dict[str, Any]
Launch = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Subject:
    """A call as the contract writes it, what its operands hold, and a function that launches it `copies` times."""

    case: Case
    launch: Launch
    copies: int = 1  # of operands that take turns, so that weights come from DRAM
    data: str = "random"


def filled(data: str, *shape: int, dtype: Any = None) -> Any:
    """A tensor of normal numbers, of zeros, or of one constant."""
    import torch

    dtype = dtype or torch.bfloat16
    if data == "zeros":
        return torch.zeros(shape, device="cuda", dtype=torch.bfloat16).to(dtype)
    if data == "constant":
        return torch.full(shape, 0.01, device="cuda", dtype=torch.bfloat16).to(dtype)
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16).to(dtype)


def turns(bytes_each: float) -> int:
    """Sets of weights that together exceed the L2 several times; one where a single set does."""
    return max(1, min(32, int(256 * MIB // max(bytes_each, 1.0)))) if bytes_each < 128 * MIB else 1


def gemm(m: int, n: int, k: int, dtype: str = "bf16", data: str = "random", sets: int = 0) -> Subject:
    """A product as vLLM calls it: cuBLAS for 16-bit types, `_scaled_mm` with a scale a row for fp8. `sets` of weights,
    or as many as exceed the L2.
    """
    import torch

    case: Case = {"kernel": "gemm", "m": m, "n": n, "k": k, "dtype": dtype}
    size = 1 if dtype in ("fp8", "int8") else 2
    copies = sets or turns(float(n * k * size))
    if dtype == "fp8":
        x = filled(data, m, k, dtype=torch.float8_e4m3fn)
        ws = [filled(data, n, k, dtype=torch.float8_e4m3fn) for _ in range(copies)]
        sx, sw = torch.ones(m, 1, device="cuda"), torch.ones(1, n, device="cuda")

        def run() -> None:
            for w in ws:
                torch._scaled_mm(x, w.t(), scale_a=sx, scale_b=sw, out_dtype=torch.bfloat16, use_fast_accum=True)
    elif dtype == "int8":
        x8 = torch.randint(-127, 127, (m, k), device="cuda", dtype=torch.int8)
        ws = [torch.randint(-127, 127, (n, k), device="cuda", dtype=torch.int8) for _ in range(copies)]

        def run() -> None:
            for w in ws:
                torch._int_mm(x8, w.t())
    else:
        kind = torch.bfloat16 if dtype == "bf16" else torch.float16
        x, out = filled(data, m, k, dtype=kind), filled("zeros", m, n, dtype=kind)
        ws = [filled(data, n, k, dtype=kind) for _ in range(copies)]

        def run() -> None:
            for w in ws:
                torch.mm(x, w.t(), out=out)

    return Subject(case, run, copies, "resident" if sets == 1 else data)


def attention(batch: int, q: int, kv: int, heads: int, kv_heads: int, backend: str = "cudnn") -> Subject:
    """Prefill (q = kv) or decode (q = 1), causal, head width 128."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    kind = SDPBackend.CUDNN_ATTENTION if backend == "cudnn" else SDPBackend.FLASH_ATTENTION
    queries = filled("random", batch, heads, q, 128)
    copies = turns(float(batch * kv_heads * kv * 128 * 4)) if q == 1 else 1
    caches = [[filled("random", batch, kv_heads, kv, 128) for _ in range(2)] for _ in range(copies)]

    def run() -> None:
        with sdpa_kernel(kind):
            for k, v in caches:
                torch.nn.functional.scaled_dot_product_attention(
                    queries, k, v, is_causal=q > 1, enable_gqa=heads != kv_heads
                )

    case = {"kernel": "attention", "q_lens": [q] * batch, "kv_lens": [kv] * batch, "heads": heads}
    return Subject(case | {"kv_heads": kv_heads, "head_dim": 128, "dtype": "bf16", "impl": backend}, run, copies)


def experts(tokens: int, count: int, topk: int, hidden: int, inter: int) -> Subject:
    """Both grouped products of a mixture of experts, tokens spread evenly."""
    import torch

    rows = tokens * topk
    each = torch.full((count,), rows // count, device="cuda", dtype=torch.int32)
    each[: rows % count] += 1
    ends = each.cumsum(0).to(torch.int32)
    x, y = filled("random", rows, hidden), filled("random", rows, inter)
    up = filled("random", count, 2 * inter, hidden).transpose(1, 2)
    down = filled("random", count, hidden, inter).transpose(1, 2)

    def run() -> None:
        torch._grouped_mm(x, up, offs=ends)
        torch._grouped_mm(y, down, offs=ends)

    case = {"kernel": "fused_moe", "tokens": tokens, "experts": count, "topk": topk, "hidden": hidden}
    return Subject(case | {"inter": inter, "routing": "balanced", "dtype": "bf16", "impl": "grouped_mm"}, run)


def norm(rows: int, dim: int) -> Subject:
    """RMSNorm."""
    import torch

    weight = filled("random", dim)
    copies = turns(float(rows * dim * 4))
    xs = [filled("random", rows, dim) for _ in range(copies)]

    def run() -> None:
        for x in xs:
            torch.nn.functional.rms_norm(x, (dim,), weight, 1e-6)

    return Subject({"kernel": "rmsnorm", "rows": rows, "dim": dim, "dtype": "bf16"}, run, copies)


def stream(read: int, written: int) -> Subject:
    """A copy, a sum or a fill of so many bytes."""
    import torch

    source = torch.randn(max(read, written) // 4, device="cuda")
    target, total = torch.empty_like(source), torch.empty((), device="cuda")
    run: Launch
    if not read:
        run = target.zero_
    elif not written:
        run = lambda: torch.sum(source, dim=0, out=total)  # noqa: E731
    else:
        run = lambda: target.copy_(source)  # noqa: E731
    return Subject({"kernel": "elementwise", "bytes_read": read, "bytes_written": written}, run)


def subjects() -> Iterator[Callable[[], Subject]]:
    """Makers of all calls, short ones and long ones in turn, so that a card neither heats nor cools on the whole."""
    shapes = [
        (8192, 8192, 8192), (64, 14336, 4096), (4096, 4096, 4096), (1, 14336, 4096), (1024, 4096, 4096),
        (16, 14336, 4096), (2048, 28672, 8192), (256, 4096, 4096), (128, 128256, 4096), (64, 4096, 4096),
        (512, 512, 512), (8192, 1024, 8192),
    ]  # fmt: skip
    yield from (partial(gemm, *s) for s in shapes)
    yield from (partial(gemm, *s, dtype="fp8") for s in (shapes[0], shapes[1], shapes[4], shapes[3], shapes[6]))
    yield partial(gemm, 8192, 8192, 8192, "fp16")
    yield partial(gemm, 8192, 8192, 8192, "int8")
    yield from (partial(gemm, 8192, 8192, 8192, "bf16", d) for d in ("zeros", "constant"))
    yield partial(gemm, 64, 14336, 4096, "bf16", "zeros")
    yield partial(gemm, 8192, 8192, 8192, "fp8", "constant")
    for batch, length in ((4, 4096), (1, 16384), (16, 1024), (64, 256)):
        yield partial(attention, batch, length, length, 32, 8)
    yield partial(attention, 4, 4096, 4096, 32, 32, "flash")
    for batch, length in ((64, 4096), (256, 1024), (8, 16384), (1, 65536)):
        yield partial(attention, batch, 1, length, 32, 8, "flash")
    for tokens in (8192, 512, 64, 8):
        yield partial(experts, tokens, 128, 8, 2048, 768)
    yield partial(experts, 2048, 8, 2, 4096, 14336)
    yield from (partial(norm, *s) for s in ((8192, 8192), (512, 4096), (64, 4096), (1, 4096)))
    for read, written in (
        (1 << 30, 1 << 30),
        (1 << 30, 0),
        (0, 1 << 30),
        (16 * MIB, 16 * MIB),
        (MIB, MIB),
        (4096, 4096),
    ):
        yield partial(stream, read, written)


LLAMA_8B = {"qkv": (6144, 4096), "o": (4096, 4096), "gate_up": (28672, 4096), "down": (4096, 14336)}  # n, k
LLAMA_70B_TP8 = {"qkv": (1280, 8192), "o": (8192, 1024), "gate_up": (7168, 8192), "down": (8192, 3584)}
ROWS = {
    "bf16": (
        (LLAMA_8B["gate_up"], (1, 8, 16, 32, 64, 96, 128, 192, 256, 512, 1024, 2048)),
        (LLAMA_8B["o"], (1, 16, 64, 128, 256, 512, 2048)), (LLAMA_8B["qkv"], (8, 32, 96, 192, 1024)),
        (LLAMA_8B["down"], (1, 16, 64, 128, 256, 1024)), (LLAMA_70B_TP8["qkv"], (16, 64, 128, 256, 1024)),
        (LLAMA_70B_TP8["o"], (16, 64, 128, 256, 1024)), (LLAMA_70B_TP8["gate_up"], (16, 64, 128, 256)),
        (LLAMA_70B_TP8["down"], (16, 64, 128, 256, 512)),
    ),
    "fp8": (
        (LLAMA_8B["gate_up"], (1, 16, 64, 96, 128, 192, 256, 512, 1024)), (LLAMA_8B["o"], (1, 16, 64, 128, 256, 1024)),
        (LLAMA_8B["down"], (16, 64, 128, 256)), (LLAMA_8B["qkv"], (32, 64, 256)),
        (LLAMA_70B_TP8["gate_up"], (16, 64, 128, 256)),
    ),
}  # fmt: skip


def products() -> Iterator[Callable[[], Subject]]:
    """Makers of the products and experts of served models, few rows to many, types and shapes in turn."""
    made = [partial(gemm, m, *shape, dtype=dtype) for dtype, shapes in ROWS.items() for shape, ms in shapes for m in ms]
    made += [partial(gemm, m, 8192, 1024, sets=1) for m in (16, 64, 128, 256)]  # weights that stay in the L2
    many = [partial(experts, tokens, 128, 8, 2048, 768) for tokens in (1, 32, 128, 256, 2048)]
    many += [partial(experts, tokens, 8, 2, 4096, 14336) for tokens in (16, 256)]
    stride = 7  # neighbours of the list are measured apart
    for first in range(stride):
        yield from made[first::stride]
        yield from many[first : first + 1]

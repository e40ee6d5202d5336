"""The attention kernels in use, by name: tile sizes, how they pack grouped queries, how many fit an SM.

Tile sizes of FlashAttention 2 and 3 are those of their public sources (launch templates and `tile_size.h`), those of
FlashInfer follow from its rule on packed query rows and shared memory, those of the Triton kernels from SGLang's and
vLLM's block-size rules. TensorRT-LLM's generated kernels, its older FMHA and cuDNN are closed: theirs are the usual
tiles of their instruction sets, and the learned residual carries the difference.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

from pipewave.gpus import GPU
from pipewave.kernels.base import Context

ENGINES = ("fa2", "fa3", "fa4", "flashinfer", "trtllm_gen", "fmha", "triton", "unified", "cudnn")


@dataclass(frozen=True, slots=True)
class Engine:
    """What physics needs to know of an implementation on one GPU, for one head dimension."""

    name: str
    dim: int  # head dimension its tiles are padded to
    tile_q: int  # query rows of a prefill tile
    tile_kv: int  # keys a prefill tile visits at once
    packs: bool  # grouped query heads share the rows of a prefill tile
    ctas_per_sm: int
    tensor_cost: float  # time of the products of a long sequence over that at peak
    exp_cost: float  # share of the exponentials' time that the products do not hide
    decode_rows: int = 16  # query rows of a decode tile, grouped heads packed
    decode_kv: int = 64  # keys of a decode step, the unit of the KV split
    decode_ctas: int = 2  # decode blocks that share an SM
    sorts: bool = False  # longest tiles first, so that the last wave is short
    fp8: bool = False  # products run in fp8


@dataclass(frozen=True, slots=True)
class Case:
    """What picks an engine's tiles."""

    gpu: GPU
    head_dim: int
    causal: bool
    fp8: bool
    paged: bool


def engine_name(impl: str, framework: str, capability: int) -> str:
    """Which kernel an implementation's name means on a GPU of that compute capability."""
    if "triton" in impl:
        return "unified" if framework == "vllm" else "triton"
    for part, name in (("fa4", "fa4"), ("attention_v4", "fa4"), ("cudnn", "cudnn")):
        if part in impl:
            return name
    if "flashinfer" in impl and "trtllm" not in impl and not (framework == "vllm" and capability in (100, 103)):
        return "flashinfer"
    if "trtllm" in impl or framework == "trtllm" or "flashinfer" in impl:
        return "trtllm_gen" if capability in (100, 103) else "fmha"
    if "sdpa" in impl or "fa2" in impl or (capability != 90 and framework == "vllm"):
        return "fa2"
    return "fa3"


@lru_cache(maxsize=1024)
def engine_of(ctx: Context, head_dim: int) -> Engine:
    """The engine behind a context, tiled for a head of `head_dim`."""
    name = engine_name(ctx.impl, ctx.framework, ctx.gpu.compute_capability)
    causal = bool(ctx.option("causal", True))
    fp8 = _runs_fp8(ctx, name)
    return replace(_TILES[name](Case(ctx.gpu, head_dim, causal, fp8, causal)), fp8=fp8)


def _runs_fp8(ctx: Context, name: str) -> bool:
    """Whether products run in fp8: Hopper's and Blackwell's engines quantise the queries of an fp8 cache."""
    if ctx.dtype.startswith("fp8"):
        return True
    cached = ctx.option("kv_dtype") or ctx.dtype
    return (
        cached.startswith("fp8")
        and name in ("fa3", "fmha", "trtllm_gen")
        and ctx.gpu.compute_capability in (90, 100, 103)
    )


def _padded(dim: int, sizes: tuple[int, ...]) -> int:
    return next((size for size in sizes if size >= dim), dim)


def _resident(gpu: GPU, tile_q: int, tile_kv: int, dim: int, most: int) -> int:
    """Blocks per SM that shared memory allows: Q, K and V tiles of two bytes, a kilobyte for the system."""
    block = 2 * (tile_q + 2 * tile_kv) * dim + 1024
    return max(1, min(most, int(gpu.smem_kb_per_sm * 1024 // block)))


def _fa2(case: Case) -> Engine:
    dim = _padded(case.head_dim, (32, 64, 96, 128, 160, 192, 256))
    small = case.gpu.compute_capability not in (80, 90, 100, 103)
    if case.paged:  # paged caches go through the split kernel
        rows, keys = 64, 256 if dim <= 64 else (128 if dim <= 128 else 64)
    else:
        rows, keys = 128, 128 if dim <= 64 else 64
        if small and dim == 128:
            rows, keys = (64, 64) if case.causal else (128, 32)
        if small and dim > 192:
            rows = 64
    return Engine(
        "fa2",
        dim,
        rows,
        keys,
        False,
        _resident(case.gpu, rows, keys, dim, 2),
        1.4,
        1.0,
        64,
        keys,
        _resident(case.gpu, 64, keys, dim, 2),
    )


def _fa3(case: Case) -> Engine:
    if case.gpu.compute_capability != 90:
        return _fa3_ampere(case)
    dim = _padded(case.head_dim, (64, 96, 128, 192, 256))
    rows = 192 if dim <= 96 else 128
    keys = 128 if dim <= 128 else (96 if dim <= 192 else 64)
    if case.fp8:
        keys = 160 if dim <= 192 else 128
    elif not case.paged and dim == 128:
        keys = 128 if case.causal else 176
    if dim > 256:
        rows, keys = 64, 64
    return Engine(
        "fa3", dim, rows, keys, True, 1, 1.7 if case.fp8 else 1.2, 0.95, 64, 192 if dim == 64 else keys, 1, True
    )


def _fa3_ampere(case: Case) -> Engine:
    dim = _padded(case.head_dim, (64, 96, 128, 192, 256))
    keys = 112 if dim <= 64 else 64
    return Engine("fa3", dim, 128, keys, True, _resident(case.gpu, 128, keys, dim, 2), 1.3, 0.95, 64, keys, 1)


def _fa4(case: Case) -> Engine:
    dim = -(-case.head_dim // 16) * 16
    cost = 1.25 if case.gpu.compute_capability >= 100 else 3.0
    return Engine("fa4", dim, 256 if dim <= 128 else 128, 128, True, 1, cost, 0.7, 128, 128, 1, True)


def _flashinfer(case: Case) -> Engine:
    dim = case.head_dim
    rows = 128 if dim < 256 else 64
    room = case.gpu.smem_kb_per_sm * 1024
    most = 2 if room >= 2 * (2 * rows * dim + 64 * dim) else 1
    keys = 16 * max(1, min(int((room / most - 2 * rows * dim) // (64 * dim)), 4 if rows == 128 else 8))
    return Engine("flashinfer", dim, rows, keys, True, most, 1.35, 1.0, 16, 64, 4)


def _trtllm_gen(case: Case) -> Engine:
    dim = -(-case.head_dim // 16) * 16
    return Engine(
        "trtllm_gen", dim, 256 if dim <= 128 else 128, 128, False, 1, 1.8 if case.fp8 else 1.25, 0.9, 16, 128, 1, True
    )


def _fmha(case: Case) -> Engine:
    dim = -(-case.head_dim // 16) * 16
    hopper = case.gpu.compute_capability == 90
    rows, keys = (128, 128 if dim <= 128 else 64) if hopper or dim <= 64 else (64, 64)
    most = 1 if hopper else _resident(case.gpu, rows, keys, dim, 2)
    return Engine("fmha", dim, rows, keys, False, most, 2.0, 0.7, 16, 64, 2, hopper)


def _triton(case: Case) -> Engine:
    dim = 192 if case.head_dim == 192 else _padded(case.head_dim, (16, 32, 64, 128, 256, 512))
    large = case.gpu.compute_capability in (90, 100, 103)
    if large:
        rows, keys = (128, 64) if dim <= 256 else (32, 64)
    else:
        rows, keys = (64, 128) if dim <= 128 else ((64, 64) if dim <= 256 else (32, 32))
    legacy = {90: 1.6, 100: 4.0, 103: 4.0}.get(case.gpu.compute_capability, 1.0)  # products of the Ampere kind
    return Engine("triton", dim, rows, keys, False, _resident(case.gpu, rows, keys, dim, 2), 2.5 * legacy, 1.0, 16, 32)


def _unified(case: Case) -> Engine:
    legacy = {90: 1.6, 100: 4.0, 103: 4.0}.get(case.gpu.compute_capability, 1.0)
    dim = _padded(case.head_dim, (16, 32, 64, 128, 256, 512))
    return Engine("unified", dim, 16, 32, True, 4, 2.5 * legacy, 1.0, 16, 32)


def _cudnn(case: Case) -> Engine:
    return Engine("cudnn", case.head_dim, 128, 128, False, 1, 1.25, 0.9, 64, 128, 1, True)


_TILES: dict[str, Callable[[Case], Engine]] = {
    "fa2": _fa2,
    "fa3": _fa3,
    "fa4": _fa4,
    "flashinfer": _flashinfer,
    "trtllm_gen": _trtllm_gen,
    "fmha": _fmha,
    "triton": _triton,
    "unified": _unified,
    "cudnn": _cudnn,
}

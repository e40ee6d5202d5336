"""Tiles, packing and costs of each attention engine.

Tile sizes of FlashAttention 2 and 3 are those of their public sources (launch templates and `tile_size.h`), those of
FlashInfer follow from its rule on packed query rows and shared memory, those of the Triton kernels from SGLang's and
vLLM's block-size rules. TensorRT-LLM's generated kernels, its older FMHA with XQA for decode, and cuDNN are closed:
theirs are the usual tiles of their instruction sets. Costs are rounded from published efficiencies and measured rows
of one GPU each; the learned residual carries the rest.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from pipewave.kernels.attention.engine import Case, Engine, Tile

# Products of the kind Ampere introduced, which Triton kernels of the Ampere style issue everywhere, run below the peak
# of later tensor cores by this factor.
LEGACY = {"mma": 1.0, "wgmma": 1.6, "tcgen05": 4.0}


def fa2(case: Case) -> Engine:
    """FlashAttention 2; a paged cache goes through its split kernel with 64 query rows."""
    dim = case.padded(32, 64, 96, 128, 160, 192, 256)
    split_keys = 256 if dim <= 64 else (128 if dim <= 128 else 64)
    rows, keys = (64, split_keys) if case.paged else _fa2_contiguous(case, dim)
    ctas = case.resident(64, split_keys, dim, 2)
    return Engine(
        name="fa2",
        dim=dim,
        prefill=Tile(rows, keys, case.resident(rows, keys, dim, 2), 2300.0),
        decode=Tile(64, split_keys, ctas, 11_000.0 / ctas, 5.5 * ctas),
        packs=False,
        sorts=False,
        split="fa2",
        tensor_cost=1.4,
        exp_cost=1.0,
        windows_packed=False,
    )


def _fa2_contiguous(case: Case, dim: int) -> tuple[int, int]:
    small = case.gpu.smem_kb_per_sm < 128
    if small and dim == 128:
        return (64, 64) if case.causal else (128, 32)
    return (64 if small and dim > 192 else 128), (128 if dim <= 64 else 64)


_FA3_KEYS = {64: 128, 96: 128, 128: 128, 192: 96, 256: 64}
_FA3_KEYS_CONTIGUOUS = {64: 192, 96: 144, 128: 176, 192: 112, 256: 80}


def fa3(case: Case) -> Engine:
    """FlashAttention 3 on Hopper; its package also builds for Ampere, with tiles of its own."""
    if case.gpu.traits.mma != "wgmma":
        return _fa3_ampere(case)
    dim = case.padded(64, 96, 128, 192, 256)
    rows = 192 if dim <= 96 else 128
    keys = (_FA3_KEYS if case.paged or case.causal else _FA3_KEYS_CONTIGUOUS).get(dim, 64)
    if case.fp8:
        keys = 160 if dim <= 192 else 128
    if dim > 256:
        rows = 64
    return Engine(
        name="fa3",
        dim=dim,
        prefill=Tile(rows, keys, 1, 2000.0 + 10.0 * dim),
        decode=Tile(64, 192 if dim == 64 else keys, 1, 3500.0 + 18.0 * dim, 11.0 if case.fp8 else 22.0),
        packs=True,
        sorts=True,
        split="fa3",
        tensor_cost=1.7 if case.fp8 else 1.2,
        exp_cost=0.95,
        splits=case.paged,
    )


def _fa3_ampere(case: Case) -> Engine:
    dim = case.padded(64, 96, 128, 192, 256)
    keys = 112 if dim <= 64 else 64
    return Engine(
        name="fa3",
        dim=dim,
        prefill=Tile(128, keys, case.resident(128, keys, dim, 2), 2000.0),
        decode=Tile(64, keys, 1, 3500.0 + 18.0 * dim, 8.5),
        packs=True,
        sorts=False,
        split="fa3",
        tensor_cost=1.3,
        exp_cost=0.95,
        splits=case.paged,
    )


def fa4(case: Case) -> Engine:
    """FlashAttention 4: two query tiles in flight on data-centre Blackwell; a plain kernel on Hopper for wide heads."""
    dim = -(-case.head_dim // 16) * 16
    blackwell = case.gpu.traits.mma == "tcgen05"
    return Engine(
        name="fa4",
        dim=dim,
        prefill=Tile(256 if dim <= 128 else 128, 128, 1, 6000.0),
        decode=Tile(128, 128, 1, 6000.0),
        packs=True,
        sorts=True,
        split="even",
        tensor_cost=1.25 if blackwell else 3.0,
        exp_cost=0.7,
    )


def flashinfer(case: Case) -> Engine:
    """FlashInfer's FA2 template; decode with few heads a group takes its CUDA-core kernel in SGLang."""
    dim = case.head_dim
    rows = 128 if dim < 256 else 64
    room = case.gpu.smem_kb_per_sm * 1024
    ctas = 2 if room >= 2 * (2 * rows * dim + 64 * dim) else 1
    keys = 16 * max(1, min(int((room / ctas - 2 * rows * dim) // (64 * dim)), 4 if rows == 128 else 8))
    return Engine(
        name="flashinfer",
        dim=dim,
        prefill=Tile(rows, keys, ctas, 1500.0),
        decode=Tile(16, 64, 4, 40.0 * dim, 16.0),
        packs=True,
        sorts=False,
        split="flashinfer",
        tensor_cost=1.35,
        exp_cost=1.0,
        groups=(4.0, math.inf) if case.framework == "sglang" else (1.0, math.inf),
        skips=case.framework != "sglang",
        splits=True,
    )


def trtllm_gen(case: Case) -> Engine:
    """TensorRT-LLM's generated kernels for data-centre Blackwell."""
    dim = -(-case.head_dim // 16) * 16
    return Engine(
        name="trtllm_gen",
        dim=dim,
        prefill=Tile(256 if dim <= 128 else 128, 128, 1, 2000.0),
        decode=Tile(16, 128, 1, 1700.0 + 12.0 * dim, 30.0),
        packs=False,
        sorts=True,
        split="even",
        tensor_cost=1.8 if case.fp8 else 1.25,
        exp_cost=0.9,
        groups=(1.0, 32.0) if case.framework == "trtllm" and not case.latent else (1.0, math.inf),
    )


def fmha(case: Case) -> Engine:
    """TensorRT-LLM elsewhere: FMHA v2 for prompts, XQA for decode, a kernel per head for groups XQA does not take."""
    dim = -(-case.head_dim // 16) * 16
    hopper = case.gpu.traits.mma == "wgmma"
    rows, keys = (128, 128 if dim <= 128 else 64) if hopper or dim <= 64 else (64, 64)
    engine = Engine(
        name="fmha",
        dim=dim,
        prefill=Tile(rows, keys, 1 if hopper else case.resident(rows, keys, dim, 2), 3000.0 if hopper else 1000.0),
        decode=Tile(16, 64, 1, 6200.0 + 24.0 * dim),
        packs=False,
        sorts=hopper,
        split="xqa",
        tensor_cost=2.0,
        exp_cost=0.7,
        groups=(2.0, 32.0),
    )
    return _latent(engine, hopper) if case.latent else engine


def _latent(engine: Engine, hopper: bool) -> Engine:
    """Decode on compressed rows: split on Hopper; elsewhere one block walks a whole sequence."""
    decode = Tile(64, 64, 1, 6000.0, 20.0) if hopper else Tile(16, 64, 2, 3000.0, 7.0)
    return replace(engine, decode=decode, split="even" if hopper else "none", groups=(1.0, math.inf))


def triton(case: Case) -> Engine:
    """SGLang's Triton kernels."""
    dim = 192 if case.head_dim == 192 else case.padded(16, 32, 64, 128, 256, 512)
    if not case.paged:
        rows = keys = 128 if case.gpu.compute_capability >= 90 else 64  # its own rule asks for the number
    elif case.gpu.smem_kb_per_sm > 200:
        rows, keys = (128, 64) if dim <= 256 else (32, 64)
    else:
        rows, keys = (64, 128) if dim <= 128 else ((64, 64) if dim <= 256 else (32, 32))
    return Engine(
        name="triton",
        dim=dim,
        prefill=Tile(rows, keys, case.resident(rows, keys, dim, 2), 1000.0),
        decode=Tile(16, 32, 2, 5000.0, 14.0),
        packs=False,
        sorts=False,
        split="triton",
        tensor_cost=2.5 * LEGACY[case.gpu.traits.mma],
        exp_cost=1.0,
        skips=False,
    )


def unified(case: Case) -> Engine:
    """vLLM's Triton kernel for every phase."""
    dim = case.padded(16, 32, 64, 128, 256, 512)
    return Engine(
        name="unified",
        dim=dim,
        prefill=Tile(16, 32, 4, 1000.0),
        decode=Tile(16, 32, 2, 5000.0, 6.0),
        packs=True,
        sorts=False,
        split="unified",
        tensor_cost=2.5 * LEGACY[case.gpu.traits.mma],
        exp_cost=1.0,
    )


def cudnn(case: Case) -> Engine:
    """cuDNN behind PyTorch's scaled-dot-product attention."""
    cost = 1.25 if case.gpu.traits.asynchronous else 1.4
    return Engine(
        name="cudnn",
        dim=case.head_dim,
        prefill=Tile(128, 128, 1, 3000.0),
        decode=Tile(64, 128, 1, 6000.0),
        packs=False,
        sorts=True,
        split="even",
        tensor_cost=cost,
        exp_cost=0.9,
    )


TILINGS: dict[str, Callable[[Case], Engine]] = {
    "fa2": fa2,
    "fa3": fa3,
    "fa4": fa4,
    "flashinfer": flashinfer,
    "trtllm_gen": trtllm_gen,
    "fmha": fmha,
    "triton": triton,
    "unified": unified,
    "cudnn": cudnn,
}

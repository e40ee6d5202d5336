"""Tiles, packing and costs of each attention engine.

Tile sizes of FlashAttention 2 and 3 are those of their public sources (launch templates and `tile_size.h`), those of
FlashInfer follow from its rule on packed query rows and shared memory, those of the Triton kernels from SGLang's and
vLLM's block-size rules. TensorRT-LLM's generated kernels, its older FMHA with XQA for decode, and cuDNN are closed:
theirs are the usual tiles of their instruction sets. Costs are the rule `attention_costs`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from pipewave.kernels.attention.engine import AttentionKernel, Case, Tile


def fa2(case: Case) -> AttentionKernel:
    """FlashAttention 2; a paged cache goes through its split kernel with 64 query rows."""
    dim = case.padded(32, 64, 96, 128, 160, 192, 256)
    split_keys = 256 if dim <= 64 else (128 if dim <= 128 else 64)
    rows, keys = (64, split_keys) if case.paged else _fa2_contiguous(case, dim)
    costs, ctas = case.costs("fa2"), case.resident(64, split_keys, dim, 2)
    return AttentionKernel(
        name="fa2",
        dim=dim,
        prefill=Tile(rows, keys, case.resident(rows, keys, dim, 2), costs.prefill(dim)),
        decode=Tile(64, split_keys, ctas, costs.decode(dim) / ctas, costs.bytes_per_clk * ctas),
        packs=False,
        sorts=False,
        split="fa2",
        tensor_cost=costs.tensor,
        exp_cost=costs.exp,
        windows_packed=False,
    )


def _fa2_contiguous(case: Case, dim: int) -> tuple[int, int]:
    small = case.gpu.smem_kb_per_sm < 128
    if small and dim == 128:
        return (64, 64) if case.causal else (128, 32)
    return (64 if small and dim > 192 else 128), (128 if dim <= 64 else 64)


_FA3_KEYS = {64: 128, 96: 128, 128: 128, 192: 96, 256: 64}
_FA3_KEYS_CONTIGUOUS = {64: 192, 96: 144, 128: 176, 192: 112, 256: 80}


def fa3(case: Case) -> AttentionKernel:
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
    costs = case.costs("fa3")
    return AttentionKernel(
        name="fa3",
        dim=dim,
        prefill=Tile(rows, keys, 1, costs.prefill(dim)),
        decode=Tile(64, 192 if dim == 64 else keys, 1, costs.decode(dim), costs.bytes_per_clk),
        packs=True,
        sorts=True,
        split="fa3",
        tensor_cost=costs.tensor,
        exp_cost=costs.exp,
        splits=case.paged,
    )


def _fa3_ampere(case: Case) -> AttentionKernel:
    dim = case.padded(64, 96, 128, 192, 256)
    keys, costs = 112 if dim <= 64 else 64, case.costs("fa3")
    return AttentionKernel(
        name="fa3",
        dim=dim,
        prefill=Tile(128, keys, case.resident(128, keys, dim, 2), costs.prefill(dim)),
        decode=Tile(64, keys, 1, costs.decode(dim), costs.bytes_per_clk),
        packs=True,
        sorts=False,
        split="fa3",
        tensor_cost=costs.tensor,
        exp_cost=costs.exp,
        splits=case.paged,
    )


def fa4(case: Case) -> AttentionKernel:
    """FlashAttention 4: two query tiles in flight on data-centre Blackwell; a plain kernel on Hopper for wide heads."""
    dim = -(-case.head_dim // 16) * 16
    costs = case.costs("fa4")
    return AttentionKernel(
        name="fa4",
        dim=dim,
        prefill=Tile(256 if dim <= 128 else 128, 128, 1, costs.prefill(dim)),
        decode=Tile(128, 128, 1, costs.decode(dim), costs.bytes_per_clk),
        packs=True,
        sorts=True,
        split="even",
        tensor_cost=costs.tensor,
        exp_cost=costs.exp,
    )


def flashinfer(case: Case) -> AttentionKernel:
    """FlashInfer's FA2 template; decode with few heads a group takes its CUDA-core kernel in SGLang."""
    dim, costs = case.head_dim, case.costs("flashinfer")
    rows = 128 if dim < 256 else 64
    room = case.gpu.smem_kb_per_sm * 1024
    ctas = 2 if room >= 2 * (2 * rows * dim + 64 * dim) else 1
    keys = 16 * max(1, min(int((room / ctas - 2 * rows * dim) // (64 * dim)), 4 if rows == 128 else 8))
    return AttentionKernel(
        name="flashinfer",
        dim=dim,
        prefill=Tile(rows, keys, ctas, costs.prefill(dim)),
        decode=Tile(16, 64, 4, costs.decode(dim), costs.bytes_per_clk),
        packs=True,
        sorts=False,
        split="flashinfer",
        tensor_cost=costs.tensor,
        exp_cost=costs.exp,
        groups=(4.0, math.inf) if case.framework == "sglang" else (1.0, math.inf),
        skips=case.framework != "sglang",
        splits=True,
    )


def trtllm_gen(case: Case) -> AttentionKernel:
    """TensorRT-LLM's generated kernels for data-centre Blackwell."""
    dim, costs = -(-case.head_dim // 16) * 16, case.costs("trtllm_gen")
    return AttentionKernel(
        name="trtllm_gen",
        dim=dim,
        prefill=Tile(256 if dim <= 128 else 128, 128, 1, costs.prefill(dim)),
        decode=Tile(16, 128, 1, costs.decode(dim), costs.bytes_per_clk),
        packs=False,
        sorts=True,
        split="even",
        tensor_cost=costs.tensor,
        exp_cost=costs.exp,
        groups=(1.0, 32.0) if case.framework == "trtllm" and not case.latent else (1.0, math.inf),
    )


def fmha(case: Case) -> AttentionKernel:
    """TensorRT-LLM elsewhere: FMHA v2 for prompts, XQA for decode, a kernel per head for groups XQA does not take."""
    dim, costs = -(-case.head_dim // 16) * 16, case.costs("fmha")
    hopper = case.gpu.traits.mma == "wgmma"
    rows, keys = (128, 128 if dim <= 128 else 64) if hopper or dim <= 64 else (64, 64)
    engine = AttentionKernel(
        name="fmha",
        dim=dim,
        prefill=Tile(rows, keys, 1 if hopper else case.resident(rows, keys, dim, 2), costs.prefill(dim)),
        decode=Tile(16, 64, 1, costs.decode(dim), costs.bytes_per_clk),
        packs=False,
        sorts=hopper,
        split="xqa",
        tensor_cost=costs.tensor,
        exp_cost=costs.exp,
        groups=(2.0, 32.0),
    )
    return _latent(engine, hopper) if case.latent else engine


def _latent(engine: AttentionKernel, hopper: bool) -> AttentionKernel:
    """Decode on compressed rows: split on Hopper; elsewhere one block walks a whole sequence."""
    rows, ctas = (64, 1) if hopper else (16, 2)
    decode = replace(engine.decode, rows=rows, ctas=ctas)
    return replace(engine, decode=decode, split="even" if hopper else "none", groups=(1.0, math.inf))


def triton(case: Case) -> AttentionKernel:
    """SGLang's Triton kernels."""
    dim = 192 if case.head_dim == 192 else case.padded(16, 32, 64, 128, 256, 512)
    costs = case.costs("triton")
    if not case.paged:
        rows = keys = 128 if case.gpu.compute_capability >= 90 else 64  # its own rule asks for the number
    elif case.gpu.smem_kb_per_sm > 200:
        rows, keys = (128, 64) if dim <= 256 else (32, 64)
    else:
        rows, keys = (64, 128) if dim <= 128 else ((64, 64) if dim <= 256 else (32, 32))
    return AttentionKernel(
        name="triton",
        dim=dim,
        prefill=Tile(rows, keys, case.resident(rows, keys, dim, 2), costs.prefill(dim)),
        decode=Tile(16, 32, 2, costs.decode(dim), costs.bytes_per_clk),
        packs=False,
        sorts=False,
        split="triton",
        tensor_cost=costs.tensor * case.legacy,
        exp_cost=costs.exp,
        skips=False,
    )


def unified(case: Case) -> AttentionKernel:
    """vLLM's Triton kernel for every phase."""
    dim = case.padded(16, 32, 64, 128, 256, 512)
    costs = case.costs("unified")
    return AttentionKernel(
        name="unified",
        dim=dim,
        prefill=Tile(16, 32, 4, costs.prefill(dim)),
        decode=Tile(16, 32, 2, costs.decode(dim), costs.bytes_per_clk),
        packs=True,
        sorts=False,
        split="unified",
        tensor_cost=costs.tensor * case.legacy,
        exp_cost=costs.exp,
    )


def cudnn(case: Case) -> AttentionKernel:
    """cuDNN behind PyTorch's scaled-dot-product attention."""
    dim, costs = case.head_dim, case.costs("cudnn")
    return AttentionKernel(
        name="cudnn",
        dim=dim,
        prefill=Tile(128, 128, 1, costs.prefill(dim)),
        decode=Tile(64, 128, 1, costs.decode(dim), costs.bytes_per_clk),
        packs=False,
        sorts=True,
        split="even",
        tensor_cost=costs.tensor,
        exp_cost=costs.exp,
    )


TILINGS: dict[str, Callable[[Case], AttentionKernel]] = {
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

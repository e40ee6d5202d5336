"""Attention libraries as data: tiles, pipelining and splitting of each, and which one a stack runs where."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

from pipewave.gpus import GPU
from pipewave.kernels.base import Context
from pipewave.software.rule_values import AttentionCosts, DecodeCycles
from pipewave.software.rules import constant

# What an attention kernel is to physics: its tiles, how it packs and splits, and its costs.

ENGINES = ("fa2", "fa3", "fa4", "flashinfer", "trtllm_gen", "fmha", "triton", "unified", "cudnn")
# Engines of one hand: a net that never saw one of them knows its relatives.
LINEAGES = {"flash": ("fa2", "fa3", "fa4"), "nvidia": ("trtllm_gen", "fmha"), "openai": ("triton", "unified")}
NARROW = 1024.0  # FLOP of 16 bits a clock that an SM of consumer parts does


@dataclass(frozen=True, slots=True)
class AttentionTile:
    """A thread block's work: `rows` of queries against `keys` at a time, `ctas` blocks to an SM.

    `fixed_cycles` is what an SM spends on a block besides its steps: first loads, the pipeline's fill, last stores.
    `bytes_per_clk` is the fastest an SM full of blocks streams keys and values.
    """

    rows: int
    keys: int
    ctas: int
    fixed_cycles: float
    bytes_per_clk: float = 20.0


class Alone(NamedTuple):
    """What an SM spends on prompts in an engine of which no row taught the nets on such parts, so that physics answers
    alone. In cycles.

    `step`, a KV tile of a block; `masked`: the same over that, under a window; `wave`: a wave of blocks besides its
    steps. `borrowed_from`: the architecture whose rows say so, where it is another.
    """

    step: float
    masked: float
    wave: float
    borrowed_from: str = ""


@dataclass(frozen=True, slots=True)
class AttentionKernel:
    """An implementation. The costs are times over those at the part's peak, in long sequences."""

    name: str
    dim: int  # head dimension its tiles are padded to
    prefill: AttentionTile
    decode: AttentionTile
    packs: bool  # grouped query heads share the rows of a prefill tile (in decode they always do)
    sorts: bool  # longest tiles first, so that the last wave is short
    split: str  # rule of `attention_split` for decode
    tensor_cost: float
    exp_cost: float  # share of the exponentials' time that the products do not hide
    fp8: bool = False  # products run in fp8
    groups: tuple[float, float] = (1.0, float("inf"))  # group sizes its decode tiles serve; others go head by head
    windows_packed: bool = True  # decode packs grouped heads under a window too
    skips: bool = True  # prefill leaves out the KV tiles before a window
    splits: bool = False  # prefill splits the keys of a tile where tiles are few
    heads_last: bool = False  # prefill walks all requests for one query head before the next
    lower: tuple[float, ...] = ()  # rows of prefill tiles for few packed queries, falling
    lower_by_mean: bool = False  # by those of the mean request, not of the one that brings most
    alone: Alone | None = None  # physics answers prompts alone, at these costs
    alone_decode: DecodeCycles | None = None  # and decode


@dataclass(frozen=True, slots=True)
class Case:
    """What picks an engine's tiles."""

    gpu: GPU
    head_dim: int
    causal: bool
    fp8: bool
    paged: bool
    latent: bool  # keys and values are one compressed row for all heads
    framework: str
    version: tuple[int, ...]

    def resident(self, rows: int, keys: int, dim: int, most: int) -> int:
        """Blocks per SM that shared memory allows: Q, K and V tiles of two bytes, a kilobyte for the system."""
        block = 2 * (rows + 2 * keys) * dim + 1024
        return max(1, min(most, int(self.gpu.smem_kb_per_sm * 1024 // block)))

    def rule(self, name: str, engine: str) -> Any:
        """What a rule says of an engine here; `wide`: more products a clock than consumer parts do."""
        return constant(
            name,
            engine=engine,
            mma=self.gpu.traits.mma,
            architecture=self.gpu.architecture,
            wide=self.gpu.flops_per_clk_per_sm("fp16") > NARROW,
            fp8=self.fp8,
            latent=self.latent,
            framework=self.framework,
            version=self.version,
        )

    def groups(self, engine: str) -> tuple[float, float]:
        """Heads of a group that the engine's decode kernel on tensor cores takes: at least, at most."""
        least, most = self.rule("attention_groups", engine)
        return least, math.inf if most is None else most

    def padded(self, *sizes: int) -> int:
        """The smallest of the sizes a kernel is built for that holds the head."""
        return next((size for size in sizes if size >= self.head_dim), self.head_dim)


# Tiles, packing and costs of each attention engine.
#
# Tile sizes of FlashAttention 2 and 3 are those of their public sources (launch templates and `tile_size.h`), those of
# FlashInfer follow from its rule on packed query rows and shared memory, those of the Triton kernels from SGLang's and
# vLLM's block-size rules. TensorRT-LLM's generated kernels, its older FMHA with XQA for decode, and cuDNN are closed:
# theirs are the usual tiles of their instruction sets. Costs are the rule `attention_costs`.

Blocks = tuple[int, int, int]  # rows of queries, keys at a time, blocks to an SM


def _kernel(
    case: Case, name: str, dim: int, prefill: Blocks, decode: Blocks, products: float = 1.0, **how: Any
) -> AttentionKernel:
    """An engine of these tiles at its costs; `products`: their time over that of the costs. `how`: other fields."""
    costs: AttentionCosts = case.rule("attention_costs", name)
    return AttentionKernel(
        name=name,
        dim=dim,
        prefill=AttentionTile(*prefill, costs.prefill_cycles.of(dim)),
        decode=AttentionTile(*decode, costs.decode_cycles.of(dim), costs.bytes_per_clk),
        tensor_cost=costs.tensor_factor * products,
        exp_cost=costs.exp_factor,
        **how,
    )


def fa2(case: Case) -> AttentionKernel:
    """FlashAttention 2; a paged cache goes through its split kernel with 64 query rows.

    Its grids are (tiles, requests, heads) with the heads outermost: `run_flash_splitkv_fwd` of its launch template.
    """
    dim = case.padded(32, 64, 96, 128, 160, 192, 256)
    split_keys = 256 if dim <= 64 else (128 if dim <= 128 else 64)
    rows, keys = (64, split_keys) if case.paged else _fa2_contiguous(case, dim)
    prefill, ctas = (rows, keys, case.resident(rows, keys, dim, 2)), case.resident(64, split_keys, dim, 2)
    how: dict[str, Any] = {"packs": False, "sorts": False, "split": "fa2", "windows_packed": False, "heads_last": True}
    engine = _kernel(case, "fa2", dim, prefill, (64, split_keys, ctas), **how)
    one = engine.decode  # costs are those of a block that has its SM to itself
    shared = replace(one, fixed_cycles=one.fixed_cycles / ctas, bytes_per_clk=one.bytes_per_clk * ctas)
    return replace(engine, decode=shared)


def _fa2_contiguous(case: Case, dim: int) -> tuple[int, int]:
    small = case.gpu.smem_kb_per_sm < 128
    if small and dim == 128:
        return (64, 64) if case.causal else (128, 32)
    return (64 if small and dim > 192 else 128), (128 if dim <= 64 else 64)


_FA3_KEYS = {64: 128, 96: 128, 128: 128, 192: 96, 256: 64}
# Rows of the tile for few queries. Heads of 96 have none: kernels of 192 rows decode them, as the names in our rows of
# another day say. Wider ones have none either, yet networks learned their rows over tiles of 64.
_FA3_LOW = {64: 64, 128: 64, 192: 64, 256: 64, 512: 64}
_FA3_KEYS_CONTIGUOUS = {64: 192, 96: 144, 128: 176, 192: 112, 256: 80}


def fa3(case: Case) -> AttentionKernel:
    """FlashAttention 3 on Hopper; its package also builds for Ampere, with tiles of its own."""
    dim, hopper = case.padded(64, 96, 128, 192, 256), case.gpu.traits.mma == "wgmma"
    if hopper:
        rows = 192 if dim <= 96 else (128 if dim <= 256 else 64)
        keys = (_FA3_KEYS if case.paged or case.causal else _FA3_KEYS_CONTIGUOUS).get(dim, 64)
        if case.fp8:
            keys = 160 if dim <= 192 else 128
        prefill, decode = (rows, keys, 1), (_FA3_LOW.get(dim, rows), 192 if dim == 64 else keys, 1)
    else:
        keys = 112 if dim <= 64 else 64
        prefill, decode = (128, keys, case.resident(128, keys, dim, 2)), (64, keys, 1)
    how: dict[str, Any] = {"packs": True, "sorts": hopper, "split": "fa3", "splits": case.paged, "lower": (64.0,)}
    return _kernel(case, "fa3", dim, prefill, decode, **how)


def fa4(case: Case) -> AttentionKernel:
    """FlashAttention 4: two query tiles in flight on data-centre Blackwell; a plain kernel on Hopper for wide heads."""
    dim = -(-case.head_dim // 16) * 16
    prefill = (256 if dim <= 128 else 128, 128, 1)
    return _kernel(case, "fa4", dim, prefill, (128, 128, 1), packs=True, sorts=True, split="even")


def flashinfer(case: Case) -> AttentionKernel:
    """FlashInfer's FA2 template; decode with few heads a group takes its CUDA-core kernel in SGLang."""
    dim = case.head_dim
    rows = 128 if dim < 256 else 64
    room = case.gpu.smem_kb_per_sm * 1024
    ctas = 2 if room >= 2 * (2 * rows * dim + 64 * dim) else 1
    keys = 16 * max(1, min(int((room / ctas - 2 * rows * dim) // (64 * dim)), 4 if rows == 128 else 8))
    how: dict[str, Any] = {"packs": True, "sorts": False, "split": "flashinfer", "splits": True}
    how |= {"skips": bool(case.rule("attention_skips", "flashinfer"))}  # keys before a window
    how |= {"lower": (64.0, 16.0), "lower_by_mean": True}
    groups = case.groups("flashinfer")
    return _kernel(case, "flashinfer", dim, (rows, keys, ctas), (16, 64, 4), groups=groups, **how)


def trtllm_gen(case: Case) -> AttentionKernel:
    """TensorRT-LLM's generated kernels for data-centre Blackwell."""
    dim = -(-case.head_dim // 16) * 16
    prefill = (256 if dim <= 128 else 128, 128, 1)
    how: dict[str, Any] = {"packs": False, "sorts": True, "split": "even", "groups": case.groups("trtllm_gen")}
    return _kernel(case, "trtllm_gen", dim, prefill, (16, 128, 1), **how)


def fmha(case: Case) -> AttentionKernel:
    """TensorRT-LLM elsewhere: FMHA v2 for prompts, XQA for decode, a kernel per head for groups XQA does not take."""
    dim, hopper = -(-case.head_dim // 16) * 16, case.gpu.traits.mma == "wgmma"
    rows, keys = (128, 128 if dim <= 128 else 64) if hopper or dim <= 64 else (64, 64)
    prefill = (rows, keys, 1 if hopper else case.resident(rows, keys, dim, 2))
    how: dict[str, Any] = {"packs": False, "sorts": hopper, "split": "xqa", "groups": (2.0, 32.0)}
    engine = _kernel(case, "fmha", dim, prefill, (16, 64, 1), **how)
    if not case.latent:
        return engine
    # Decode on compressed rows: split on Hopper; elsewhere one block walks a whole sequence.
    decode = replace(engine.decode, rows=64 if hopper else 16, ctas=1 if hopper else 2)
    return replace(engine, decode=decode, split="even" if hopper else "none", groups=(1.0, math.inf))


def triton(case: Case) -> AttentionKernel:
    """SGLang's Triton kernels."""
    dim = 192 if case.head_dim == 192 else case.padded(16, 32, 64, 128, 256, 512)
    rows, keys = _triton_tile(case, dim)
    prefill = (rows, keys, case.resident(rows, keys, dim, 2))
    how: dict[str, Any] = {"packs": False, "sorts": False, "split": "triton", "skips": False}
    return _kernel(
        case, "triton", dim, prefill, (16, 32, 2), float(case.rule("attention_legacy_products", "triton")), **how
    )


def _triton_tile(case: Case, dim: int) -> tuple[int, int]:
    if not case.paged:
        return (128, 128) if case.gpu.compute_capability >= 90 else (64, 64)  # its own rule asks for the number
    if case.gpu.smem_kb_per_sm > 200:
        return (128, 64) if dim <= 256 else (32, 64)
    return (64, 128) if dim <= 128 else ((64, 64) if dim <= 256 else (32, 32))


def unified(case: Case) -> AttentionKernel:
    """vLLM's Triton kernel for every phase."""
    dim = case.padded(16, 32, 64, 128, 256, 512)
    how: dict[str, Any] = {"packs": True, "sorts": False, "split": "unified"}
    if found := case.rule("attention_prefill_cycles", "unified"):
        borrowed = found.borrowed_from.get(case.gpu.architecture, "")
        how["alone"] = Alone(found.step_cycles.of(dim), found.window_factor, found.wave_cycles.of(dim), borrowed)
    how["alone_decode"] = case.rule("attention_decode_cycles", "unified")
    slower = float(case.rule("attention_legacy_products", "unified"))
    return _kernel(case, "unified", dim, (16, 32, 4), (16, 32, 2), slower, **how)


def cudnn(case: Case) -> AttentionKernel:
    """cuDNN behind PyTorch's scaled-dot-product attention."""
    how: dict[str, Any] = {"packs": False, "sorts": True, "split": "even"}
    return _kernel(case, "cudnn", case.head_dim, (128, 128, 1), (64, 128, 1), **how)


TILINGS: dict[str, Callable[[Case], AttentionKernel]] = {
    tiled.__name__: tiled for tiled in (fa2, fa3, fa4, flashinfer, trtllm_gen, fmha, triton, unified, cudnn)
}


# Which attention kernel runs an implementation's name on one GPU, tiled for one head dimension.


def engine_name(impl: str, framework: str, mma: str) -> str:
    """Which kernel an implementation's name means on a GPU of that tensor instruction."""
    return str(constant("attention_engine", impl=impl, framework=framework, mma=mma))


@lru_cache(maxsize=1024)
def engine_of(ctx: Context, head_dim: int, latent: bool = False) -> AttentionKernel:
    """The engine behind a context, tiled for a head of `head_dim`."""
    name = engine_name(ctx.impl, ctx.framework, ctx.gpu.traits.mma)
    causal = bool(ctx.option("causal", True))
    paged = causal and "sdpa" not in ctx.impl
    operands = ("queries" if ctx.dtype.startswith("fp8") else
                "cache" if str(ctx.option("kv_dtype")).startswith("fp8") else "none")  # fmt: skip
    facts = {"engine": name, "asynchronous": ctx.gpu.traits.asynchronous, "fp8": operands}
    fp8 = bool(constant("attention_fp8_products", **facts))
    case = Case(ctx.gpu, head_dim, causal, fp8, paged, latent, ctx.framework, ctx.version)
    return replace(TILINGS[name](case), fp8=fp8)

"""Which attention kernel runs, and what physics needs to know of it on one GPU for one head dimension."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from pipewave.gpus import GPU
from pipewave.kernels.base import Context

ENGINES = ("fa2", "fa3", "fa4", "flashinfer", "trtllm_gen", "fmha", "triton", "unified", "cudnn")
# Engines of one hand: a net that never saw one of them knows its relatives.
MAKERS = {"flash": ("fa2", "fa3", "fa4"), "nvidia": ("trtllm_gen", "fmha"), "openai": ("triton", "unified")}


@dataclass(frozen=True, slots=True)
class Tile:
    """A thread block's work: `rows` of queries against `keys` at a time, `ctas` blocks to an SM.

    `fixed_cycles` is what an SM spends on a block besides its steps: first loads, the pipeline's fill, last stores.
    `bytes_per_clk` is the fastest an SM full of blocks streams keys and values.
    """

    rows: int
    keys: int
    ctas: int
    fixed_cycles: float
    bytes_per_clk: float = 20.0


@dataclass(frozen=True, slots=True)
class Engine:
    """An implementation. The costs are times over those at the part's peak, in long sequences."""

    name: str
    dim: int  # head dimension its tiles are padded to
    prefill: Tile
    decode: Tile
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

    def resident(self, rows: int, keys: int, dim: int, most: int) -> int:
        """Blocks per SM that shared memory allows: Q, K and V tiles of two bytes, a kilobyte for the system."""
        block = 2 * (rows + 2 * keys) * dim + 1024
        return max(1, min(most, int(self.gpu.smem_kb_per_sm * 1024 // block)))

    def padded(self, *sizes: int) -> int:
        """The smallest of the sizes a kernel is built for that holds the head."""
        return next((size for size in sizes if size >= self.head_dim), self.head_dim)


def engine_name(impl: str, framework: str, mma: str) -> str:
    """Which kernel an implementation's name means on a GPU of that tensor instruction."""
    if "triton" in impl:
        return "unified" if framework == "vllm" else "triton"
    for part, name in (("fa4", "fa4"), ("attention_v4", "fa4"), ("cudnn", "cudnn")):
        if part in impl:
            return name
    if "flashinfer" in impl and "trtllm" not in impl and not (framework == "vllm" and mma == "tcgen05"):
        return "flashinfer"
    if "trtllm" in impl or framework == "trtllm" or "flashinfer" in impl:
        return "trtllm_gen" if mma == "tcgen05" else "fmha"
    if "sdpa" in impl or "fa2" in impl:
        return "fa2"
    if framework == "vllm" and mma != "wgmma":
        return "trtllm_gen" if mma == "tcgen05" else "fa2"
    return "fa3"


@lru_cache(maxsize=1024)
def engine_of(ctx: Context, head_dim: int, latent: bool = False) -> Engine:
    """The engine behind a context, tiled for a head of `head_dim`."""
    from pipewave.kernels.attention.tilings import TILINGS

    name = engine_name(ctx.impl, ctx.framework, ctx.gpu.traits.mma)
    causal = bool(ctx.option("causal", True))
    paged = causal and "sdpa" not in ctx.impl
    fp8 = _runs_fp8(ctx, name)
    return replace(TILINGS[name](Case(ctx.gpu, head_dim, causal, fp8, paged, latent, ctx.framework)), fp8=fp8)


def _runs_fp8(ctx: Context, name: str) -> bool:
    """Whether products run in fp8: Hopper's and Blackwell's engines quantise the queries of an fp8 cache.

    TensorRT-LLM's kernels for other parts (Ada, workstation Blackwell) take as long in fp8 as in 16 bits.
    """
    large = ctx.gpu.traits.asynchronous
    if ctx.dtype.startswith("fp8"):
        return large or name != "fmha"
    cached = ctx.option("kv_dtype") or ctx.dtype
    return large and cached.startswith("fp8") and name in ("fa3", "fmha", "trtllm_gen")

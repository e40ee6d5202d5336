"""Attention libraries as data: tiles, pipelining and splitting of each, and which one a stack runs where."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from pipewave.files import packaged
from pipewave.files.formulas import Terms
from pipewave.kernels.base import Context
from pipewave.software.rule_values import AttentionCosts, DecodeCycles, PrefillCycles
from pipewave.software.rules import constant

# What an attention kernel is to physics: its tiles, how it packs and splits, and its costs.

ENGINES = ("fa2", "fa3", "fa4", "flashinfer", "trtllm_gen", "fmha", "triton", "unified", "cudnn")
# Engines of one hand: a net that never saw one of them knows its relatives.
LINEAGES = {"flash": ("fa2", "fa3", "fa4"), "nvidia": ("trtllm_gen", "fmha"), "openai": ("triton", "unified")}
NARROW = 1024.0  # FLOP of 16 bits a clock that an SM of consumer parts does


@dataclass(frozen=True, slots=True)
class AttentionTile:
    """A thread block's work."""

    rows: int  # of queries
    keys: int  # at a time
    ctas: int  # blocks to an SM
    fixed_cycles: float  # of an SM on a block besides its steps: first loads, the pipeline's fill, last stores
    bytes_per_clk: float = 20.0  # of keys and values, at most, that an SM full of blocks streams


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
    # Where no row taught the nets on such parts, physics answers alone, at these costs: prompts, and decode.
    alone: PrefillCycles | None = None
    alone_decode: DecodeCycles | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """What picks an engine's tiles."""

    ctx: Context
    head_dim: int
    causal: bool
    fp8: bool
    paged: bool
    latent: bool  # keys and values are one compressed row for all heads

    def rule(self, engine: str, name: str) -> Any:
        """What a rule says of an engine here; `wide`: more products a clock than consumer parts do."""
        gpu, asked = self.ctx.gpu, {"framework": self.ctx.framework, "version": self.ctx.version}
        wide = gpu.flops_per_clk_per_sm("fp16") > NARROW
        facts = {"mma": gpu.traits.mma, "architecture": gpu.architecture, "wide": wide, "latent": self.latent}
        return constant(name, engine=engine, fp8=self.fp8, **facts, **asked)

    def resident(self, rows: int, keys: int, dim: int, most: int) -> int:
        """Blocks per SM that shared memory allows: Q, K and V tiles of two bytes, a kilobyte for the system."""
        block = 2 * (rows + 2 * keys) * dim + 1024
        return max(1, min(most, int(self.ctx.gpu.smem_kb_per_sm * 1024 // block)))

    def padded(self, *sizes: int) -> int:
        """The smallest of the sizes a kernel is built for that holds the head."""
        return next((size for size in sizes if size >= self.head_dim), self.head_dim)

    def terms(self, engine: str) -> Terms:
        """The row of an engine, over what its formulas name."""

        def groups_of() -> tuple[float, float]:  # heads of a group that its decode kernel on tensor cores takes
            least, most = self.rule(engine, "attention_groups")
            return least, math.inf if most is None else most

        table, gpu = packaged.shared(FILE), self.ctx.gpu
        return Terms(
            table["common"] | table["engines"][engine], head_dim=self.head_dim, causal=self.causal, fp8=self.fp8,
            paged=self.paged, latent=self.latent, hopper=gpu.traits.mma == "wgmma",
            smem_kb=gpu.smem_kb_per_sm, capability=gpu.compute_capability, resident=self.resident,
            padded=self.padded, rule=partial(self.rule, engine), groups_of=groups_of, inf=math.inf, **BUILT_IN,
        )  # fmt: skip


# Tiles, packing and costs of each attention engine.
#
# Tile sizes of FlashAttention 2 and 3 are those of their public sources (launch templates and `tile_size.h`), those of
# FlashInfer follow from its rule on packed query rows and shared memory, those of the Triton kernels from SGLang's and
# vLLM's block-size rules. TensorRT-LLM's generated kernels, its older FMHA with XQA for decode, and cuDNN are closed:
# theirs are the usual tiles of their instruction sets. Costs are the rule `attention_costs`.

FILE = Path(__file__).with_name("engines.json")
BUILT_IN = {"max": max, "min": min, "int": int, "bool": bool}
REQUIRED = ("packs", "sorts", "split")  # fields of `AttentionKernel` that every row has
OPTIONAL = ("groups", "windows_packed", "skips", "splits", "heads_last", "lower", "lower_by_mean")  # and some


def kernel(case: Case, name: str) -> AttentionKernel:
    """An engine's tiles, at its costs."""
    row, rule = case.terms(name), partial(case.rule, name)
    costs: AttentionCosts = rule("attention_costs")
    dim, shares, legacy = row["dim"], row["decode_shares"], float(rule("attention_legacy_products"))
    decode = costs.decode_cycles.of(dim) / shares, costs.bytes_per_clk * shares
    return AttentionKernel(
        name=name,
        dim=dim,
        prefill=AttentionTile(row["rows"], row["keys"], row["ctas"], costs.prefill_cycles.of(dim)),
        decode=AttentionTile(row["decode_rows"], row["decode_keys"], row["decode_ctas"], *decode),
        tensor_cost=costs.tensor_factor * (legacy if row["legacy"] else 1.0),
        exp_cost=costs.exp_factor,
        fp8=case.fp8,
        alone=rule("attention_prefill_cycles"),
        alone_decode=rule("attention_decode_cycles"),
        **{name: row[name] for name in (*REQUIRED, *OPTIONAL) if name in row.formulas},
    )


@lru_cache(maxsize=1024)
def engine_of(ctx: Context, head_dim: int, latent: bool = False) -> AttentionKernel:
    """The kernel that an implementation's name means on the GPU of a context, tiled for a head of `head_dim`."""
    name = str(constant("attention_engine", impl=ctx.impl, framework=ctx.framework, mma=ctx.gpu.traits.mma))
    causal = bool(ctx.option("causal", True))
    paged = causal and "sdpa" not in ctx.impl
    operands = ("queries" if ctx.dtype.startswith("fp8") else
                "cache" if str(ctx.option("kv_dtype")).startswith("fp8") else "none")  # fmt: skip
    facts = {"engine": name, "asynchronous": ctx.gpu.traits.asynchronous, "fp8": operands}
    fp8 = bool(constant("attention_fp8_products", **facts))
    return kernel(Case(ctx, head_dim, causal, fp8, paged, latent), name)

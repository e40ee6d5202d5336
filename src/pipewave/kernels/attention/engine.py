"""What an attention kernel is to physics: its tiles, how it packs and splits, and its costs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from pipewave.gpus import GPU
from pipewave.software.stack_rules import constant

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


class AloneDecode(NamedTuple):
    """The same of decode.

    `tile` and, of an element of the head, `tile_dim`, a block's wait for 16 keys; `resident`: blocks that fill an SM;
    `merging`: share of DRAM's rate at which parts are summed up.
    """

    tile: float
    tile_dim: float
    resident: float
    merging: float


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
    alone_decode: AloneDecode | None = None  # and decode


class Costs(NamedTuple):
    """Of an engine, over those at the part's peak; cycles of a block: fixed, and more for each element of the head."""

    tensor: float
    exp: float
    prefill_cycles: tuple[float, float]
    decode_cycles: tuple[float, float]
    bytes_per_clk: float

    def prefill(self, dim: float) -> float:
        """Cycles of a prefill block besides its steps."""
        return self.prefill_cycles[0] + self.prefill_cycles[1] * dim

    def decode(self, dim: float) -> float:
        """Cycles of a decode block besides its steps."""
        return self.decode_cycles[0] + self.decode_cycles[1] * dim


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

    def costs(self, engine: str) -> Costs:
        """What the rule of an engine says of its costs here."""
        facts = {"engine": engine, "mma": self.gpu.traits.mma, "fp8": self.fp8, "latent": self.latent}
        found = constant("attention_costs", **facts)
        per_dim = {name: found[f"{name}_cycles"] for name in ("prefill", "decode")}
        return Costs(found["tensor"], found["exp"], per_dim["prefill"], per_dim["decode"], found["bytes_per_clk"])

    def legacy(self, engine: str) -> float:
        """How far an engine's products of the Ampere style run below the peak of this part."""
        wide = self.gpu.flops_per_clk_per_sm("fp16") > NARROW
        return float(constant("attention_legacy_products", engine=engine, mma=self.gpu.traits.mma, wide=wide))

    def alone(self, engine: str, dim: float) -> Alone | None:
        """Costs of prompts where no row taught nets what an engine takes here; None where some did."""
        found = constant("attention_alone", engine=engine, architecture=self.gpu.architecture)
        if found is None:
            return None
        (step, step_dim), (wave, wave_dim) = found["step_cycles"], found["wave_cycles"]
        return Alone(
            step + step_dim * dim,
            found["masked"],
            wave + wave_dim * dim,
            found["borrowed_from"].get(self.gpu.architecture, ""),
        )

    def alone_decode(self, engine: str) -> AloneDecode | None:
        """The same of decode."""
        found = constant("attention_alone_decode", engine=engine, architecture=self.gpu.architecture)
        if found is None:
            return None
        tile, tile_dim = found["tile_cycles"]
        return AloneDecode(tile, tile_dim, found["resident"], found["merging"])

    def groups(self, engine: str) -> tuple[float, float]:
        """Heads of a group that the engine's decode kernel on tensor cores takes: at least, at most."""
        facts = {"framework": self.framework, "version": self.version, "latent": self.latent}
        least, most = constant("attention_groups", engine=engine, **facts)
        return least, math.inf if most is None else most

    @property
    def skips(self) -> bool:
        """Whether FlashInfer leaves out keys before a window."""
        return bool(constant("attention_skips", framework=self.framework))

    def padded(self, *sizes: int) -> int:
        """The smallest of the sizes a kernel is built for that holds the head."""
        return next((size for size in sizes if size >= self.head_dim), self.head_dim)

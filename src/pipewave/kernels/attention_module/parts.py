"""Kinds of attention modules, the tokens each part sees, and their projections."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pipewave.calls.dtypes import ACTIVATION_BYTES, kv_bytes
from pipewave.files import packaged
from pipewave.kernels.attention.tasks import Requests
from pipewave.kernels.base import Columns, Context
from pipewave.kernels.stages import Stage, product
from pipewave.physics.demand import Array

FILE = Path(__file__).with_name("published.json")  # `sizes` of a kind's published model, where a call says none
NAMES = (
    *("hidden", "q_lora_rank", "kv_lora_rank", "nope_dim", "rope_dim", "v_dim", "kv_heads", "head_dim"),
    *("index_heads", "index_dim", "topk", "block_size", "compress_ratio", "window", "o_groups", "o_lora_rank"),
)


@dataclass(frozen=True, slots=True)
class Module:
    """Dimensions of a batch of calls by the names in NAMES, [call] each, 0 where a kind has none."""

    kind: str
    heads: Array
    cached_bytes: float  # of an element in a cache
    sizes: Mapping[str, Array]

    def __getattr__(self, name: str) -> Array:
        if name not in NAMES:
            raise AttributeError(f"no dimension {name!r}: there are {', '.join(NAMES)}")
        return self.sizes[name]

    @property
    def latent(self) -> bool:
        """Whether keys and values are one compressed row a token."""
        return self.kind in ("mla", "dsa")

    @property
    def compressed(self) -> bool:
        """Whether a cached entry stands for several tokens."""
        return self.kind in ("csa", "hca")

    @property
    def separate(self) -> bool:
        """Whether KV heads cache keys and values of their own; the indexer then scores blocks in the cache's type."""
        return not (self.latent or self.compressed)

    @property
    def entry(self) -> Array:
        """Elements of one cached entry."""
        if self.latent:
            return self.kv_lora_rank + self.rope_dim
        return self.head_dim if self.compressed else 2.0 * self.kv_heads * self.head_dim

    @property
    def entry_bytes(self) -> Array:
        """Bytes of one cached entry."""
        return self.cached_bytes * self.entry

    @property
    def index_bytes(self) -> Array:
        """Bytes of one key of the indexer: 8 bits, but the cache's type beside separate keys and values."""
        return self.index_dim * (self.cached_bytes if self.separate else 1.0)

    @property
    def multiplied(self) -> Array:
        """Multiply-adds of a query head and a chosen entry: scores and values."""
        return 2.0 * self.kv_lora_rank + self.rope_dim if self.latent else 2.0 * self.head_dim

    @property
    def ratio(self) -> Array:
        """Tokens an entry stands for."""
        return np.maximum(self.compress_ratio, 1.0)

    @property
    def kept(self) -> Array:
        """Entries a query attends to at most, beside its window; infinite where all."""
        chosen = self.topk * np.maximum(self.block_size, 1.0)
        chosen = np.where(self.topk > 0.0, chosen, np.inf)
        return np.where((self.compress_ratio == 0.0) & self.compressed, 0.0, chosen)


def module(cols: Columns, ctx: Context) -> Module:
    """The dimensions of a batch; 0 stands for null in columns."""
    kind, heads = str(ctx.option("kind")), np.asarray(cols["heads"], float)
    published = packaged.shared(FILE)
    usual: dict[str, float | Array] = {name: float(value) for name, value in published["sizes"][kind].items()}
    of_heads = published["heads_a"].get(kind, {})  # what there is one of for so many heads
    usual |= {name: np.maximum(np.floor(heads / each), 1.0) for name, each in of_heads.items()}
    sizes = {name: np.where(cols[name] > 0.0, cols[name], usual.get(name, 0.0)) for name in NAMES}
    if kind == "hca":  # a config states its indexer once; these layers have none
        sizes |= {name: 0.0 * sizes[name] for name in ("index_heads", "index_dim", "block_size")}
    cached = kv_bytes(ctx.option("kv_dtype"), "bf16") if ctx.option("kv_dtype") else ACTIVATION_BYTES
    return Module(kind, heads, cached, sizes)


# What a batch of modules works on: tokens, keys and pairs, counted in closed form.


class Counts(NamedTuple):
    """Amounts per call."""

    batch: Array  # requests
    tokens: Array  # new ones
    context: Array  # cached tokens
    longest: Array  # prompt
    deepest: Array  # context
    chosen: Array  # pairs of a query and an entry it attends to
    scored: Array  # pairs the indexer scores
    causal: Array  # pairs without any choice
    entries: Array  # distinct ones read where queries choose apart
    fewest: Array  # where all choose the same
    index_entries: Array  # keys the indexer must read
    needed: Array  # scored pairs of requests with something to choose


def counts(requests: Requests, dims: Module) -> Counts:
    """Counts of a batch; entries of several tokens come to be when their last token does."""
    q, kv = requests.q, requests.kv
    ratio, kept, window = (requests.spread(value) for value in (dims.ratio, dims.kept, dims.window))
    scored = visible(kv, ratio) - visible(kv - q, ratio)
    chosen = visible(kv, ratio, kept) - visible(kv - q, ratio, kept)
    recent = np.where(window > 0.0, visible(kv, 1.0, window) - visible(kv - q, 1.0, window), 0.0)
    all_entries = np.floor(kv / ratio) * (kept > 0.0)
    lately = np.minimum(kv, window + q) * (window > 0.0)
    entries, fewest = (np.minimum(all_entries, most) + lately for most in (q * kept, kept))
    choosing = (all_entries > kept) * np.isfinite(kept)
    causal = visible(kv, 1.0) - visible(kv - q, 1.0)
    summed = (chosen + recent, scored, causal, entries, fewest, all_entries * choosing, scored * choosing)
    amounts = (
        *(requests.batch, requests.total(q), requests.total(kv), requests.largest(q), requests.largest(kv)),
        *map(requests.total, summed),
    )
    return Counts(*map(requests.column, amounts))


def visible(last: Any, ratio: Any, most: Any = np.inf) -> Array:
    """Sum over positions 1 to `last` of the entries seen from there: ⌊position / ratio⌋, at most `most`."""
    whole = np.minimum(np.floor(last / ratio), most)
    return np.asarray(ratio * whole * (whole - 1.0) / 2.0 + whole * (last - ratio * whole + 1.0))


# The products around the attention of each kind, and the small kernels between them, as stages.
#
# Every rank computes the compressed queries and keys and the indexer whole; heads are sharded.

Width = tuple[Array, Array]  # outputs and inputs of a product


def inputs(dims: Module) -> tuple[Width, ...]:
    """Products from hidden states to queries and keys."""
    heads, hidden = dims.heads, dims.hidden
    if dims.latent:
        down = dims.q_lora_rank + dims.kv_lora_rank + dims.rope_dim
        return (down, hidden), (heads * (dims.nope_dim + dims.rope_dim), dims.q_lora_rank)
    if dims.compressed:
        return (dims.q_lora_rank + dims.head_dim, hidden), (heads * dims.head_dim, dims.q_lora_rank)
    return (((heads + 2.0 * dims.kv_heads) * dims.head_dim, hidden),)


def outputs(dims: Module) -> tuple[Width, ...]:
    """Products from the heads' values to hidden states; grouped ones count as one of a group's depth."""
    heads, hidden = dims.heads, dims.hidden
    if dims.compressed:
        rank = dims.o_groups * dims.o_lora_rank
        return (rank, heads * dims.head_dim / dims.o_groups), (hidden, rank)
    return ((hidden, heads * (dims.v_dim if dims.latent else dims.head_dim)),)


def indexer(dims: Module) -> tuple[Width, ...]:
    """Products of the indexer: its queries, its key or compressor, its heads' weights."""
    queries = dims.index_heads * dims.index_dim
    if dims.separate:
        return ((queries + dims.index_dim, dims.hidden),)
    key = dims.index_dim * (4.0 if dims.compressed else 1.0)  # two overlapping windows, each a value and a gate
    return (queries, dims.q_lora_rank), (key + dims.index_heads, dims.hidden)


def compressor(dims: Module) -> tuple[Width, ...]:
    """Value and gate of every token for the entry it is merged into; short windows overlap, hence twice."""
    overlap = np.where(dims.compress_ratio <= 4.0, 2.0, 1.0) * (dims.compress_ratio > 0.0)
    return ((2.0 * overlap * dims.head_dim, dims.hidden),) if dims.compressed else ()


def absorbed(dims: Module, seen: Counts) -> tuple[Stage, Stage]:
    """Queries into the latent space and values out of it, a product a head."""
    heads, rank = dims.heads, dims.kv_lora_rank
    into = product("absorb", seen.tokens, rank, dims.nope_dim, "bf16", heads)
    return into, product("absorb", seen.tokens, dims.v_dim, rank, "bf16", heads)


def expanded(dims: Module, seen: Counts, dtype: str) -> Stage:
    """Keys and values of every head from the compressed rows."""
    return product("absorb", seen.context, dims.heads * (dims.nope_dim + dims.v_dim), dims.kv_lora_rank, dtype)


def stages(name: str, widths: tuple[Width, ...], seen: Counts, dtype: str) -> tuple[Stage, ...]:
    """Those products over all new tokens."""
    return tuple(product(name, seen.tokens, n, k, dtype) for n, k in widths)


def index_small(dims: Module, seen: Counts) -> Stage:
    """The indexer's norm, rotary embedding, rotation and quantisation of queries and keys, cache write and scales."""
    size = ACTIVATION_BYTES * seen.tokens * (dims.index_heads + 1.0) * dims.index_dim
    return Stage("index_inputs", read=2.0 * size, written=1.5 * size, launches=6.0)


def small(dims: Module, seen: Counts, launches: float) -> Stage:
    """Norms, rotary embedding and cache writes: together they read and write about what the queries hold twice."""
    size = ACTIVATION_BYTES * seen.tokens * dims.heads * (dims.head_dim + dims.nope_dim + dims.rope_dim)
    return Stage("small", read=2.0 * size, written=2.0 * size, launches=launches)


def weights(widths: tuple[Width, ...]) -> Array:
    """Elements of all matrices."""
    return np.asarray(sum(n * k for n, k in widths))

"""Dimensions of attention modules: what a call says, else those of the published model of its kind.

Source: config.json of DeepSeek-V3 (mla), DeepSeek-V3.2 (dsa), MiniMax-M3 (msa) and DeepSeek-V4-Flash (csa, hca), as
their publishers ship them. Layers of kinds csa and hca keep one head of keys that are values too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pipewave.calls.dtypes import ACTIVATION_BYTES, kv_bytes
from pipewave.kernels.base import Columns, Context
from pipewave.physics.demand import Array

_LATENT = {"hidden": 7168, "q_lora_rank": 1536, "kv_lora_rank": 512, "nope_dim": 128, "rope_dim": 64, "v_dim": 128}
_INDEX = {"index_heads": 64, "index_dim": 128, "topk": 2048, "block_size": 1}
_COMPRESSED = {"hidden": 4096, "q_lora_rank": 1024, "rope_dim": 64, "head_dim": 512, "window": 128, "o_lora_rank": 1024}
PUBLISHED: Mapping[str, Mapping[str, int]] = {
    "mla": _LATENT,
    "dsa": _LATENT | _INDEX,
    "msa": {"hidden": 6144, "head_dim": 128, "block_size": 128, "topk": 16, "index_heads": 4, "index_dim": 128},
    "csa": _COMPRESSED | _INDEX | {"topk": 512, "compress_ratio": 4},
    "hca": _COMPRESSED | {"compress_ratio": 128},
}
# What a published model has one of for so many heads: key-value heads of MiniMax-M3, groups of the output projection of
# DeepSeek-V4.
HEADS_A: Mapping[str, Mapping[str, float]] = {
    "msa": {"kv_heads": 16.0},
    "csa": {"o_groups": 8.0},
    "hca": {"o_groups": 8.0},
}
NAMES = (
    *("hidden", "q_lora_rank", "kv_lora_rank", "nope_dim", "rope_dim", "v_dim", "kv_heads", "head_dim"),
    *("index_heads", "index_dim", "topk", "block_size", "compress_ratio", "window", "o_groups", "o_lora_rank"),
)


@dataclass(frozen=True, slots=True)
class Module:
    """Dimensions of a batch of calls, [call] each, 0 where a kind has none; what a cache holds an entry."""

    kind: str
    heads: Array
    hidden: Array
    q_lora_rank: Array
    kv_lora_rank: Array
    nope_dim: Array
    rope_dim: Array
    v_dim: Array
    kv_heads: Array
    head_dim: Array
    index_heads: Array
    index_dim: Array
    topk: Array
    block_size: Array
    compress_ratio: Array
    window: Array
    o_groups: Array
    o_lora_rank: Array
    cached_bytes: float

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
        """Whether each key-value head caches keys and values of its own. The indexer beside such a cache (MSA's) scores
        blocks of keys for each of its heads, in the cache's type."""
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
        if self.latent:
            return 2.0 * self.kv_lora_rank + self.rope_dim
        return 2.0 * self.head_dim

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
    usual: dict[str, float | Array] = {name: float(value) for name, value in PUBLISHED[kind].items()}
    usual |= {name: np.maximum(np.floor(heads / each), 1.0) for name, each in HEADS_A.get(kind, {}).items()}
    dims = {name: _said(cols[name], usual.get(name, 0.0)) for name in NAMES}
    cached = kv_bytes(ctx.option("kv_dtype"), "bf16")
    return Module(kind, heads, **dims, cached_bytes=cached if ctx.option("kv_dtype") else ACTIVATION_BYTES)


def _said(column: Array, usual: float | Array) -> Array:
    return np.asarray(np.where(column > 0.0, column, usual), float)

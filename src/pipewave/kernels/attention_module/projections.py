"""The products around the attention of each kind, and the small kernels between them, as stages.

Every rank computes the compressed queries and keys and the indexer whole; heads are sharded.
"""

from __future__ import annotations

import numpy as np

from pipewave.calls.dtypes import ACTIVATION_BYTES
from pipewave.kernels.attention_module.counts import Counts
from pipewave.kernels.attention_module.kinds import Module
from pipewave.kernels.stages import Stage, elementwise, product
from pipewave.physics.demand import Array

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
    return elementwise("index_inputs", 2.0 * size, 1.5 * size, launches=6.0)


def small(dims: Module, seen: Counts, launches: float) -> Stage:
    """Norms, rotary embedding and cache writes: together they read and write about what the queries hold twice."""
    size = ACTIVATION_BYTES * seen.tokens * dims.heads * (dims.head_dim + dims.nope_dim + dims.rope_dim)
    return elementwise("small", 2.0 * size, 2.0 * size, launches)


def weights(widths: tuple[Width, ...]) -> Array:
    """Elements of all matrices."""
    return np.asarray(sum(n * k for n, k in widths))

"""Attention and recurrent layers as data: weights, KV cache a token, state a sequence, and what TP must divide."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from pipewave.models.precision import LayerPart, Linear

HEADS = {"num_attention_heads": "heads"}


@dataclass(frozen=True, slots=True)
class Mixer(LayerPart):
    """What all mixers share: a part with no cache and no state."""

    @property
    def seen(self) -> int | None:
        """Tokens behind the newest one that a query may see, by a window or a chunk; None: all."""
        return getattr(self, "window", None) or getattr(self, "chunk", None)

    def cache_bytes(self, length: float, width: int, tp: int, chunk: int) -> float:
        """Bytes that a sequence of `length` tokens holds on a rank; `chunk`: tokens before windows give pages back."""
        kept = length if self.seen is None else min(length, self.seen + chunk)
        return self.token_bytes(width, tp) * kept

    def token_bytes(self, width: int, tp: int) -> float:
        """Cache bytes one more token takes, windows apart."""
        return 0.0

    def state_bytes(self, tp: int, width: int = 0) -> int:
        """Bytes a sequence holds on a rank whatever its length; `width`: of a state's element (0: the model's)."""
        return 0


@dataclass(frozen=True, slots=True)
class Indexer(LayerPart):
    """Chooses which keys a query sees: index queries against one cached fp8 index key a token, then top-k."""

    matrices: ClassVar[tuple[str, ...]] = ("maps",)
    heads: int
    dim: int
    topk: int  # keys a query keeps, or blocks of `block` keys
    maps: tuple[Linear, ...] = ()
    params: int = 0  # outside its matrices
    block: int = 1
    reused: bool = False  # takes the choice of an earlier layer
    key_bytes: int = 0  # of one cached index key

    @property
    def kept(self) -> int:
        """Keys a query sees at most."""
        return self.topk * self.block


@dataclass(frozen=True, slots=True)
class Gqa(Mixer):
    """Multi-head attention with grouped K and V."""

    cut: ClassVar[Mapping[str, str]] = HEADS
    matrices: ClassVar[tuple[str, ...]] = ("qkv", "query", "indexer", "out")
    heads: int
    kv_heads: int
    head_dim: int
    qkv: Linear
    out: Linear
    window: int | None = None  # keys a query may see (None = all)
    softcap: float | None = None
    sinks: bool = False
    # "head": over head_dim, "each": weights a head, "full": over all heads together, "plain": no weights
    qk_norm: str | None = None
    rope: bool = True
    chunk: int | None = None  # a query sees only keys of its own chunk of so many tokens
    value_dim: int | None = None  # width of V where it is not head_dim
    gate: int = 0  # columns of the fused input map that gate the output
    borrowed: bool = False  # K and V are another layer's
    indexer: Indexer | None = None
    causal: bool = True
    query: Linear | None = None  # map behind a bottleneck of the queries, which the fused input map then gives

    @property
    def v_dim(self) -> int:
        """Width of one value head."""
        return self.value_dim or self.head_dim

    @property
    def extra_params(self) -> int:
        """q/k norms, attention sinks and what the indexer adds."""
        every = (self.heads + self.kv_heads) * self.head_dim
        apart = 1 if self.borrowed else 2
        norm = {None: 0, "plain": 0, "head": apart * self.head_dim, "each": every, "full": every}
        extra = norm[self.qk_norm] + (self.heads if self.sinks else 0) + (self.query.inp if self.query else 0)
        return extra + (self.indexer.params if self.indexer else 0)

    def token_bytes(self, width: int, tp: int) -> float:
        """K and V that a token leaves on a rank, and its index key."""
        held = 0 if self.borrowed or not self.causal else max(self.kv_heads // tp, 1) * (self.head_dim + self.v_dim)
        return held * width + (self.indexer.key_bytes if self.indexer else 0)


@dataclass(frozen=True, slots=True)
class Mla(Mixer):
    """Multi-head latent attention (DeepSeek): q and kv pass through low-rank bottlenecks, the cache is the latent."""

    cut: ClassVar[Mapping[str, str]] = HEADS
    matrices: ClassVar[tuple[str, ...]] = ("down", "query", "expand", "indexer", "gate", "out")
    heads: int
    q_lora_rank: int | None
    kv_lora_rank: int
    nope_dim: int
    rope_dim: int
    v_dim: int
    down: Linear  # hidden → latents: q_a and kv_a fused, or kv_a alone
    query: Linear  # latent (or hidden) → heads
    expand: Linear  # kv latent → K and V of all heads
    out: Linear
    window: int | None = None
    indexer: Indexer | None = None
    gate: Linear | None = None  # hidden → heads, multiplies the output
    rope: bool = True
    sinks: bool = False

    @property
    def extra_params(self) -> int:
        """The two latent norms, attention sinks and what the indexer adds."""
        own = (self.q_lora_rank or 0) + self.kv_lora_rank + (self.heads if self.sinks else 0)
        return own + (self.indexer.params if self.indexer else 0)

    def token_bytes(self, width: int, tp: int) -> float:
        """The latent, which every rank holds whole; sparse attention's 8-bit one with a rotary part in 16 bits and fp32
        scales, one per 128 elements.

        656 bytes for 512 + 64 elements: vLLM 0.22.1, v1/attention/backends/mla/flashmla_sparse.py.
        """
        plain = (self.kv_lora_rank + self.rope_dim) * width
        if self.indexer is None:
            return plain
        scaled = self.kv_lora_rank * (1 + 4 / 128) + 2 * self.rope_dim
        return (scaled if width == 1 else plain) + self.indexer.key_bytes


@dataclass(frozen=True, slots=True)
class Compressed(Mixer):
    """DeepSeek-V4's attention: one shared K = V head, a short window beside entries compressed to one."""

    cut: ClassVar[Mapping[str, str]] = {**HEADS, "o_groups": "o_groups"}
    matrices: ClassVar[tuple[str, ...]] = (
        "down", "query", "compress", "indexer_compress", "indexer", "out_a", "out",
    )  # fmt: skip
    heads: int
    head_dim: int
    q_lora_rank: int
    rope_dim: int
    window: int
    compress_ratio: int  # tokens of an entry, 0: the window alone
    o_groups: int
    o_lora_rank: int
    down: Linear  # hidden → q latent and the K = V head
    query: Linear
    out_a: Linear  # block-diagonal over `o_groups` of heads
    out: Linear
    compress: Linear | None = None  # hidden → entries and their gates
    compress_params: int = 0
    indexer: Indexer | None = None  # picks among the entries (CSA)
    indexer_compress: Linear | None = None

    @property
    def extra_params(self) -> int:
        """Latent norms, one sink a head, position biases and norms of the compressors."""
        own = self.q_lora_rank + self.head_dim + self.heads + self.compress_params
        return own + (self.indexer.params if self.indexer else 0)

    @property
    def entry_bytes(self) -> int:
        """One cached entry: 8 bits but for the rotary part, a scale of a byte per 64 elements, in whole 8 bytes.

        584 bytes for 448 + 64 elements: vLLM 0.22.1, v1/kv_cache_interface.py.
        """
        plain = self.head_dim - self.rope_dim
        return -(-(plain + 2 * self.rope_dim + plain // 64) // 8) * 8

    def token_bytes(self, width: int, tp: int) -> float:
        """Bytes of cache that a token takes on a rank."""
        if not self.compress_ratio:
            return 0.0
        return (self.entry_bytes + (self.indexer.key_bytes if self.indexer else 0)) / self.compress_ratio

    def cache_bytes(self, length: float, width: int, tp: int, chunk: int) -> float:
        """Bytes of cache that a request of so many tokens takes on a rank."""
        return self.entry_bytes * min(length, self.window + chunk) + self.token_bytes(width, tp) * length

    def state_bytes(self, tp: int, width: int = 0) -> int:
        """What compressors keep of the tokens of an entry to come: values and gates in fp32, twice as many where
        entries overlap (with an indexer). vLLM 0.22.1, models/deepseek_v4/compressor.py.
        """
        overlap = 2 if self.indexer else 1
        width = self.head_dim + (self.indexer.dim if self.indexer else 0)
        return overlap * self.compress_ratio * 2 * overlap * width * 4


@dataclass(frozen=True, slots=True)
class Recurrent(Mixer):
    """A recurrence over a state of fixed size."""

    matrices: ClassVar[tuple[str, ...]] = ("inputs", "outputs")
    kind: str  # gdn, kda, mamba2, mamba1, lightning or conv (a short convolution)
    heads: int  # states of key_dim × value_dim elements
    key_heads: int  # of queries and keys (groups of B and C in Mamba 2)
    key_dim: int
    value_dim: int
    channels: int  # pass a causal convolution, whose last kernel - 1 inputs are kept in 16 bits
    kernel: int  # width of the convolution
    inputs: tuple[Linear, ...]  # matrices before
    outputs: tuple[Linear, ...]  # and after
    params: int = 0  # outside them: convolution, decays, time-step biases, norms
    state_width: int = 4  # bytes of an element
    norm: int = 0  # width of the norm before the output, 0 = none
    chunk: int = 64  # tokens a block of the scan
    interleaved: bool = False  # the first map leaves q, k, v and gates of a head side by side, to be parted

    @property
    def divided(self) -> dict[str, int]:
        """What tensor parallelism has to divide, by the name that errors use."""
        return {f"{self.kind} heads": self.heads}

    def state_bytes(self, tp: int, width: int = 0) -> int:
        """Bytes of state that a request takes on a rank."""
        state = self.heads // tp * self.key_dim * self.value_dim * (width or self.state_width)
        return state + self.channels // tp * max(self.kernel - 1, 0) * 2

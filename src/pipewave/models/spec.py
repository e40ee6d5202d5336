"""What a model is, as data: layers that hold their linear maps, each with its own precision and its own split.

Everything else (parameters, bytes, kernel calls) is derived from these values, so a count and a latency can never
speak of two different models.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Precision:
    """Operand type of a linear map: `dtype` as a kernel call names it, bytes one weight takes with its scales.

    `quantize`: activations are quantised on the fly, which is work of its own.
    """

    dtype: str = "bf16"
    bytes_per_weight: float = 2.0
    quantize: bool = False

    @property
    def full(self) -> bool:
        """True for an unquantised 16-bit map."""
        return self.dtype in ("bf16", "fp16")


BF16 = Precision()
FP16 = Precision("fp16")


@dataclass(frozen=True, slots=True)
class Linear:
    """y[rows, out] = x[rows, inp]·Wᵀ. `split` says how tensor parallelism cuts it: out, in, none, or qkv.

    `qkv` cuts `out` but keeps whole KV heads, so K and V are repeated when ranks outnumber KV heads.
    `cache` is the part of `out` that is K and V, `head` the width of one KV head.
    """

    name: str
    out: int
    inp: int
    split: str = "none"
    bias: bool = False
    precision: Precision = BF16
    cache: int = 0
    head: int = 0

    @property
    def params(self) -> int:
        """Weights and biases of the whole map."""
        return self.out * self.inp + (self.out if self.bias else 0)

    def shape(self, tp: int) -> tuple[int, int]:
        """(out, inp) on one of `tp` ranks."""
        if self.split == "in":
            return self.out, self.inp // tp
        if self.split == "out":
            return self.out // tp, self.inp
        if self.split == "qkv":
            kv = max(self.cache // tp, 2 * self.head)
            return (self.out - self.cache) // tp + kv, self.inp
        return self.out, self.inp

    def weight_bytes(self, tp: int = 1) -> float:
        """Bytes of weights, scales and biases on one of `tp` ranks."""
        out, inp = self.shape(tp)
        return out * inp * self.precision.bytes_per_weight + (2 * out if self.bias else 0)


@dataclass(frozen=True, slots=True)
class Gqa:
    """Multi-head attention with grouped K and V. `window` counts the keys a query may see (None = all)."""

    heads: int
    kv_heads: int
    head_dim: int
    qkv: Linear
    out: Linear
    window: int | None = None
    softcap: float | None = None
    sinks: bool = False
    qk_norm: str | None = None  # "head": over head_dim, "each": weights a head, "full": over all heads together
    rope: bool = True

    def linears(self) -> tuple[Linear, ...]:
        """The weight matrices, in the order they run."""
        return (self.qkv, self.out)

    @property
    def extra_params(self) -> int:
        """Parameters outside the linear maps: q/k norms and attention sinks."""
        every = (self.heads + self.kv_heads) * self.head_dim
        norm = {None: 0, "head": 2 * self.head_dim, "each": every, "full": every}
        return norm[self.qk_norm] + (self.heads if self.sinks else 0)

    def cache_elements(self, tp: int = 1) -> int:
        """K and V elements one token leaves on one rank."""
        return 2 * max(self.kv_heads // tp, 1) * self.head_dim


@dataclass(frozen=True, slots=True)
class Mla:
    """Multi-head latent attention (DeepSeek): q and kv pass through low-rank bottlenecks, the cache is the latent."""

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

    def linears(self) -> tuple[Linear, ...]:
        """The weight matrices, in the order they run."""
        return (self.down, self.query, self.expand, self.out)

    @property
    def extra_params(self) -> int:
        """Parameters of the two latent norms."""
        return (self.q_lora_rank or 0) + self.kv_lora_rank

    def cache_elements(self, tp: int = 1) -> int:
        """Elements one token leaves on every rank (the latent is not sharded)."""
        return self.kv_lora_rank + self.rope_dim


@dataclass(frozen=True, slots=True)
class Mlp:
    """A dense feed-forward block; gated: down(act(gate) · up), else down(act(up))."""

    inter: int
    gated: bool
    up: Linear
    down: Linear

    def linears(self) -> tuple[Linear, ...]:
        """The weight matrices, in the order they run."""
        return (self.up, self.down)

    @property
    def extra_params(self) -> int:
        """None outside the linear maps."""
        return 0


@dataclass(frozen=True, slots=True)
class Moe:
    """Routed experts, optionally beside a shared expert that sees every token."""

    experts: int
    topk: int
    hidden: int
    inter: int
    router: Linear
    precision: Precision = BF16
    gated: bool = True
    expert_bias: bool = False
    router_correction: bool = False  # one learned score offset per expert (DeepSeek-V3's noaux_tc)
    shared: Mlp | None = None
    shared_gate: Linear | None = None

    def linears(self) -> tuple[Linear, ...]:
        """The matrices that every token meets (routed experts are counted apart)."""
        shared = self.shared.linears() if self.shared else ()
        return (self.router, *shared, *([self.shared_gate] if self.shared_gate else []))

    @property
    def expert_params(self) -> int:
        """Parameters of one routed expert."""
        width = self.inter * (2 if self.gated else 1)
        bias = width + self.hidden if self.expert_bias else 0
        return (width + self.inter) * self.hidden + bias

    @property
    def extra_params(self) -> int:
        """Routed experts and the router's score offsets."""
        return self.experts * self.expert_params + (self.experts if self.router_correction else 0)

    def expert_bytes(self, shards: int) -> float:
        """Bytes of routed experts on one rank when they are cut `shards` ways (tp within experts × ep)."""
        return self.experts * self.expert_params * self.precision.bytes_per_weight / shards


@dataclass(frozen=True, slots=True)
class Layer:
    """One decoder layer."""

    attention: Gqa | Mla
    ffn: Mlp | Moe

    def linears(self) -> tuple[Linear, ...]:
        """All matrices but routed experts."""
        return (*self.attention.linears(), *self.ffn.linears())


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A decoder-only language model. `norms`: pre, post, sandwich (both) or parallel (one norm feeds both blocks)."""

    name: str
    model_type: str
    hidden: int
    vocab: int
    layers: tuple[Layer, ...]
    lm_head: Linear
    tied: bool
    norms: str = "pre"
    norm_bias: bool = False
    logit_softcap: float | None = None
    learned_positions: int = 0
    max_length: int | None = None
    dtype: str = "bf16"
    kv_dtype: str | None = None
    side_params: int = 0  # resident but idle for text: a vision tower
    notes: tuple[str, ...] = ()

    @property
    def norms_per_layer(self) -> int:
        """Norms over the hidden size in one layer."""
        return {"pre": 2, "post": 2, "sandwich": 4, "parallel": 1}[self.norms]

    @property
    def norm_params(self) -> int:
        """Parameters of all norms over the hidden size, the final one included."""
        return (self.norms_per_layer * len(self.layers) + 1) * self.hidden * (2 if self.norm_bias else 1)

    def grouped(self, first: int = 0, last: int | None = None) -> list[tuple[Layer, int]]:
        """Distinct layers of [first, last) and how often each occurs, in order of first appearance."""
        chosen = self.layers[first:last]
        counts = Counter(map(id, chosen))  # equal layers of a loaded model are one object, and hashing them is slow
        return [(layer, counts[key]) for key, layer in {id(layer): layer for layer in chosen}.items()]

    def linears(self) -> Iterator[Linear]:
        """Every matrix of every layer, then the head."""
        for layer in self.layers:
            yield from layer.linears()
        yield self.lm_head

    @property
    def is_moe(self) -> bool:
        """True when any layer routes to experts."""
        return any(isinstance(layer.ffn, Moe) for layer in self.layers)

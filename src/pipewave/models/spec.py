"""What a model is, as data: layers that hold their parts, each with its own linear maps, precision and split.

Everything else (parameters, bytes, kernel calls) is derived from these values, so a count and a latency can never
speak of two different models.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from pipewave.models.attention_spec import Mixer
from pipewave.models.precision import BF16, LayerPart, Linear, Precision
from pipewave.models.vision import Tower


@dataclass(frozen=True, slots=True)
class Mlp(LayerPart):
    """A dense feed-forward block; gated: down(act(gate) · up), else down(act(up))."""

    cut: ClassVar[Mapping[str, str]] = {"intermediate size": "inter"}
    matrices: ClassVar[tuple[str, ...]] = ("up", "down")
    inter: int
    gated: bool
    up: Linear
    down: Linear


@dataclass(frozen=True, slots=True)
class Bypass(LayerPart):
    """Plain maps in place of a block, or beside one: a block replaced by one matrix, per-layer embeddings."""

    matrices: ClassVar[tuple[str, ...]] = ("maps",)
    name: str
    maps: tuple[Linear, ...]
    params: int = 0
    norms: int = 0  # norms over the hidden size that come with it


@dataclass(frozen=True, slots=True)
class Moe(LayerPart):
    """Routed experts, optionally beside a shared expert that sees every token."""

    matrices: ClassVar[tuple[str, ...]] = ("router", "into", "back", "shared", "shared_gate")
    experts: int
    topk: int
    hidden: int  # width experts work at: a latent one where `into` and `back` map to it and from it
    inter: int
    router: Linear
    precision: Precision = BF16
    gated: bool = True
    expert_bias: bool = False
    router_correction: bool = False  # one learned score offset per expert (DeepSeek-V3's noaux_tc)
    shared: Mlp | None = None
    shared_gate: Linear | None = None
    into: Linear | None = None
    back: Linear | None = None
    small: int = 0  # parameters of a latent norm and of the router's scales
    idle: int = 0  # experts that return their input (LongCat's zero experts), which the router may choose
    skew: float = 1.0  # tokens of the fullest rank over an even share, where experts lie on several ranks

    @property
    def expert_params(self) -> int:
        """Parameters of one routed expert."""
        width = self.inter * (2 if self.gated else 1)
        bias = width + self.hidden if self.expert_bias else 0
        return (width + self.inter) * self.hidden + bias

    @property
    def small_params(self) -> int:
        """What lies outside every matrix: the router's score offsets, its scales, a latent norm."""
        return (self.experts + self.idle if self.router_correction else 0) + self.small

    @property
    def extra_params(self) -> int:
        """Routed experts and the router's score offsets."""
        return self.experts * self.expert_params + self.small_params

    @property
    def divided(self) -> dict[str, int]:
        """Counts that the tensor-parallel degree must divide; experts have their own rule."""
        return {"intermediate size": self.shared.inter} if self.shared else {}

    def expert_bytes(self, shards: int) -> float:
        """Bytes of routed experts on one rank when they are cut `shards` ways (tp within experts × ep)."""
        return self.experts * self.expert_params * self.precision.bytes_per_weight / shards


Ffn = Mlp | Moe | Bypass


@dataclass(frozen=True, slots=True)
class HyperConnection:
    """Residual of several streams (DeepSeek-V4): mixed into one before a block and spread after it."""

    streams: int
    sinkhorn: int
    hidden: int
    crossed: bool = True  # streams are mixed with one another too (not in Hy 4)
    rank: int = 0  # of the bottleneck that makes a weight an element (Qwen4); 0: one weight a stream

    @property
    def width(self) -> int:
        """Elements of all streams."""
        return self.streams * self.hidden

    @property
    def maps(self) -> tuple[Linear, ...]:
        """Matrices that run before a block beside the mixing kernel."""
        if not self.rank:
            return ()
        return Linear("hyper_down", self.rank, self.width), Linear("hyper_up", self.width, self.rank)

    @property
    def params(self) -> int:
        """One block's mixing map, its biases and its scales, or its bottleneck, its norm and the way back."""
        if self.rank:
            return (2 * self.rank + 1 + self.streams) * self.width
        mixes = (2 + (self.streams if self.crossed else 0)) * self.streams
        return mixes * self.width + mixes + (3 if self.crossed else 2)

    @property
    def head_params(self) -> int:
        """What merges the streams after the last layer."""
        if self.rank:
            return (2 * self.rank + 1) * self.width
        return self.streams * self.width + self.streams + 1


@dataclass(frozen=True, slots=True)
class Layer:
    """One decoder layer: mixers that run side by side, then feed-forward parts that do; either may be missing."""

    mixers: tuple[Mixer, ...] = ()
    ffns: tuple[Ffn, ...] = ()
    extra_norms: int = 0  # over the hidden size beside those of the model's style

    @property
    def mixer(self) -> Mixer | None:
        """The first mixer, if the layer has one."""
        return self.mixers[0] if self.mixers else None

    @property
    def ffn(self) -> Ffn | None:
        """The first feed-forward part, if the layer has one."""
        return self.ffns[0] if self.ffns else None

    @property
    def parts(self) -> tuple[Mixer | Ffn, ...]:
        """All parts in the order they run."""
        return (*self.mixers, *self.ffns)

    @property
    def blocks(self) -> int:
        """Blocks with a residual of their own: mixing, feeding forward, or both."""
        return bool(self.mixers) + bool(self.ffns)

    @property
    def moes(self) -> tuple[Moe, ...]:
        """The routed parts."""
        return tuple(part for part in self.ffns if isinstance(part, Moe))

    def linears(self) -> tuple[Linear, ...]:
        """All matrices but routed experts."""
        return tuple(linear for part in self.parts for linear in part.linears())

    @property
    def extra_params(self) -> int:
        """Parameters outside these matrices, routed experts included."""
        return sum(part.extra_params for part in self.parts)


class _Layers:
    """Layers of a model as a key: told apart by identity, as hashing all of them takes longer than counting them."""

    __slots__ = ("layers",)

    def __init__(self, layers: tuple[Layer, ...]) -> None:
        self.layers = layers

    def __hash__(self) -> int:
        return id(self.layers)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Layers) and self.layers is other.layers


@lru_cache(maxsize=1024)
def _grouped(model: _Layers, first: int, last: int | None) -> tuple[tuple[Layer, int], ...]:
    chosen = model.layers[first:last]
    counts = Counter(map(id, chosen))  # equal layers of a loaded model are one object
    return tuple((layer, counts[key]) for key, layer in {id(layer): layer for layer in chosen}.items())


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A language model as layers and their parts. Widths are in elements.

    Attributes:
        name: of the model, for people
        model_type: as its config names it
        hidden: width of the residual stream
        vocab: tokens of the vocabulary
        layers: from the first to the last
        lm_head: from the last hidden state to the vocabulary
        tied: this matrix is the embedding's
        norms: pre, post, sandwich (both) or parallel (one norm feeds both blocks)
        norm_bias: norms add a bias, too
        logit_softcap: bound that logits are squashed to; None without
        learned_positions: rows of a table of positions
        max_length: tokens of a request at most
        dtype: of activations
        kv_dtype: of the KV cache; None: the engine decides
        tower: turns images into tokens
        audio_params: of an audio tower, which is not run
        notes: what was read in an unusual way, in sentences
        tables: rows × width of embedding tables beside the first
        front: matrices that run once before the layers
        front_params: further parameters before the layers
        hyper: residual streams, where there are several
        encoder: every token sees every other, and nothing is generated
        pooled: the last hidden states are the answer (embeddings, rerankers), so no head runs
        final_norm: a norm follows the last layer
        mtp_heads: heads for drafting (multi-token prediction) in the checkpoint, 0: none stated or known
    """

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
    tower: Tower | None = None
    audio_params: int = 0
    notes: tuple[str, ...] = ()
    tables: tuple[tuple[int, int], ...] = ()
    front: tuple[Linear, ...] = ()
    front_params: int = 0
    hyper: HyperConnection | None = None
    encoder: bool = False
    pooled: bool = False
    final_norm: bool = True
    mtp_heads: int = 0

    @property
    def side_params(self) -> int:
        """Parameters that are resident but idle for text: a vision tower, an audio tower."""
        return self.audio_params + (self.tower.params if self.tower else 0)

    @property
    def norm_width(self) -> int:
        """Parameters of one norm over the hidden size."""
        return self.hidden * (2 if self.norm_bias else 1)

    def grouped(self, first: int = 0, last: int | None = None) -> tuple[tuple[Layer, int], ...]:
        """Distinct layers and how often each occurs, in order of first appearance.

        Args:
            first: index of the first layer.
            last: index after the last one; None for all that follow.

        Returns:
            Pairs of a layer and its count.
        """
        return _grouped(_Layers(self.layers), first, last)

    def __hash__(self) -> int:
        return hash((self.name, self.hidden, len(self.layers)))  # all layers would take a thousand times as long

    def __repr__(self) -> str:
        """One line; `pipewave.models.summary` shows what it is made of."""
        return f"<{self.name} ({self.model_type}): {len(self.layers)} layers, {self.hidden:,} wide, {self.dtype}>"

    def length_notes(self, tokens: int) -> tuple[str, ...]:
        """What is said of requests of up to so many tokens, prompt and output: that the model is made for fewer.

        Args:
            tokens: of the longest request.

        Returns:
            One note, or none where they fit.
        """
        if self.max_length is None or tokens <= self.max_length:
            return ()
        return (f"requests of {tokens:,} tokens exceed the {self.max_length:,} that {self.name} is made for",)

    @property
    def is_moe(self) -> bool:
        """True when any layer routes to experts."""
        return any(layer.moes for layer, _ in self.grouped())

    def has(self, *kinds: type[Mixer]) -> bool:
        """Whether any layer mixes tokens by one of these kinds.

        Args:
            *kinds: classes of `pipewave.models.attention_spec`.

        Returns:
            True where one does.
        """
        return any(isinstance(mixer, kinds) for layer, _ in self.grouped() for mixer in layer.mixers)

"""Parts of a layer that work on each token alone: dense blocks, routed experts, and plain maps."""

from __future__ import annotations

from dataclasses import dataclass

from pipewave.models.precision import BF16, Linear, Precision


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

    @property
    def divided(self) -> dict[str, int]:
        """Counts that the tensor-parallel degree must divide."""
        return {"intermediate size": self.inter}


@dataclass(frozen=True, slots=True)
class Bypass:
    """Plain maps in place of a block, or beside one: a block replaced by one matrix, per-layer embeddings."""

    name: str
    maps: tuple[Linear, ...]
    params: int = 0
    norms: int = 0  # norms over the hidden size that come with it

    def linears(self) -> tuple[Linear, ...]:
        """The weight matrices, in the order they run."""
        return self.maps

    @property
    def extra_params(self) -> int:
        """Parameters outside the linear maps."""
        return self.params

    @property
    def divided(self) -> dict[str, int]:
        """Nothing is cut."""
        return {}


@dataclass(frozen=True, slots=True)
class Moe:
    """Routed experts, optionally beside a shared expert that sees every token.

    `hidden` is the width experts work at: a latent one where `into` and `back` map to it and from it.
    `idle`: experts that return their input (LongCat's zero experts), which the router may choose. `skew`: tokens of the
    fullest rank over an even share, where experts lie on several ranks.
    """

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
    into: Linear | None = None
    back: Linear | None = None
    small: int = 0  # parameters of a latent norm and of the router's scales
    idle: int = 0
    skew: float = 1.0

    def linears(self) -> tuple[Linear, ...]:
        """The matrices that every token meets (routed experts are counted apart)."""
        shared = self.shared.linears() if self.shared else ()
        maps = (self.router, self.into, self.back, *shared, self.shared_gate)
        return tuple(each for each in maps if each is not None)

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

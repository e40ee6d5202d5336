"""Routed experts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from pipewave.calls.fields import Call, documented, of
from pipewave.errors import BadInput


@dataclass(frozen=True, slots=True)
class FusedMoe(Call):
    """Routed experts of one layer on one rank: alignment, two grouped GEMMs, activation and reduction.

    `experts` and `inter` are the model's, before sharding by `tp` and `ep`; `tokens` enter the layer on one rank.
    """

    kernel: ClassVar[str] = "fused_moe"
    tokens: int = of("int")
    experts: int = of("int", high=65_536)
    topk: int = of("int", high=1024)
    hidden: int = of("int")
    inter: int = of("int")
    gated: bool = of("bool", True)
    tp: int = of("int", 1, high=4096)
    ep: int = of("int", 1, high=4096)
    routing: str | tuple[int, ...] = of("routing", "random", low=0)
    part: str = of("str", "all", choices=("all", "w13", "w2"))
    config: tuple[tuple[str, int], ...] | None = of("config", None)

    def check(self) -> None:
        """Raise BadInput where sizes do not fit together."""
        for name, shards, of_name in (("tp", self.inter, "inter"), ("ep", self.experts, "experts")):
            if shards % getattr(self, name):
                raise BadInput(f"{name} = {getattr(self, name)}: must divide {of_name} = {shards}", field=name)
        if self.topk > self.experts:
            raise BadInput(f"topk = {self.topk}: must be at most experts = {self.experts}", field="topk")
        if isinstance(self.routing, tuple):
            self._check_routing(self.routing)

    def _check_routing(self, counts: tuple[int, ...]) -> None:
        """Every token goes to `topk` experts; of those of one rank no more is known than that they get no more."""
        if len(counts) not in (self.experts, self.experts // self.ep):
            raise BadInput(
                f"routing has {len(counts)} entries: must hold one count per expert ({self.experts}) "
                f"or per local expert ({self.experts // self.ep})",
                field="routing",
            )
        pairs, found = self.tokens * self.topk, sum(counts)
        if found > pairs or (len(counts) == self.experts and found != pairs):
            bound = "add up to" if len(counts) == self.experts else "add up to at most"
            raise BadInput(f"routing adds up to {found:,}: must {bound} tokens × topk = {pairs:,}", field="routing")


@documented
def fused_moe(tokens: int, experts: int, topk: int, hidden: int, inter: int, **options: Any) -> FusedMoe:
    """The routed experts of one layer on one rank: sort, two grouped products, activation, sum.

    Args:
        tokens: tokens that enter the layer on this rank.
        experts: experts of the model, before sharding.
        topk: experts of a token.
        hidden: width of the model, elements.
        inter: width of one expert, elements, before sharding.
        **options: fields of `FusedMoe`: `tp`, `ep`, `routing`, `part`, `gated`, `config`, {options}.

    {call}

    Work: 2·hidden·inter FLOPs for each of three matrices, token and expert (two where not gated)
    (`kernels/moe/software.py`).
    """
    return FusedMoe(tokens, experts, topk, hidden, inter, **options)

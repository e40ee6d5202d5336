"""Kernels that a framework runs beside attention, and that its measured operator holds: cache writes, rotations, casts.

They walk over the new tokens once or twice. That is little beside long prompts and beside a launch, but half of the
time of many short ones. The rules `attention_companions` and
`attention_decode_companions` say how many run.
"""

from __future__ import annotations

from dataclasses import dataclass

from pipewave.kernels.attention.requests import Amount
from pipewave.kernels.base import Context


@dataclass(frozen=True, slots=True)
class Companions:
    """Launches of the whole operator, and how often its other kernels move the queries and the new keys and values.

    A launch is what a kernel takes that is measured by itself, gaps of the graph included: it counts several.
    """

    launches: float
    queries: float
    keys: float

    def bytes(self, query_bytes: Amount, key_bytes: Amount) -> Amount:
        """Bytes moved besides attention itself."""
        return self.queries * query_bytes + self.keys * key_bytes


def companions_of(ctx: Context, *, causal: bool, fp8: bool) -> Companions:
    """What runs beside an implementation; a kernel that was measured alone has nothing beside it."""
    return Companions(**ctx.rule("attention_companions", causal=causal, fp8=fp8))


def of_decode(ctx: Context, *, fp8: bool, latent: bool) -> Companions:
    """The same where every request brings one query."""
    return Companions(**ctx.rule("attention_decode_companions", fp8=fp8, latent=latent))

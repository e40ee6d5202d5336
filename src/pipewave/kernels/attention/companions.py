"""Kernels that a framework runs around attention, and that its measured operator holds: cache writes, rotations, casts.

They walk over the new tokens once or twice. That is little beside long prompts and beside a launch, but half of the
time of many short ones. Passes were counted from what each framework's operator does and rounded to what the public
rows of all seven GPUs ask for; every GPU has the same.
"""

from __future__ import annotations

from dataclasses import dataclass

from pipewave.kernels.attention.requests import Amount
from pipewave.kernels.base import Context
from pipewave.physics.cache import PROFILER_WARM

KERNEL = 3.5  # launches that a kernel measured by itself takes, gaps of the graph included


@dataclass(frozen=True, slots=True)
class Around:
    """Launches of the whole operator, and how often its other kernels move the queries and the new keys and values."""

    launches: float = KERNEL
    queries: float = 0.0
    keys: float = 0.0

    def bytes(self, query_bytes: Amount, key_bytes: Amount) -> Amount:
        """Bytes moved besides attention itself."""
        return self.queries * query_bytes + self.keys * key_bytes


ALONE = Around()
CACHED = Around(queries=1.0, keys=3.0)  # new keys and values are read and written; queries come and go unhidden
ENCODER = Around(launches=3.0)  # no cache
QUANTISED = Around(launches=4.5, queries=3.0, keys=3.0)  # queries are cast to fp8 as well
TRTLLM = Around(launches=5.0, queries=4.0, keys=2.0)  # biases and rotations in a kernel of their own, on a copy
TRTLLM_ENCODER = Around(launches=4.5, queries=2.0, keys=2.0)


def around_of(ctx: Context, *, causal: bool, fp8: bool) -> Around:
    """What runs around an implementation; a kernel that was measured alone has nothing around it."""
    if ctx.protocol == PROFILER_WARM:  # it times the kernel alone
        return ALONE
    if ctx.framework == "trtllm":
        return TRTLLM if causal else TRTLLM_ENCODER
    if ctx.framework == "sglang" or ctx.impl.startswith("vllm_"):
        return (QUANTISED if fp8 and "trtllm" in ctx.impl else CACHED) if causal else ENCODER
    return ALONE

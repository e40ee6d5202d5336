"""Which bytes must come from DRAM under a protocol, and which the L2 may still hold.

`cold`: nothing is held. `serving`: weights and KV come from DRAM, activations were just written. `graph` and
`profiler_warm`: the same buffers, or a few rotating copies of them, call after call.
"""

from __future__ import annotations

from typing import Any

from pipewave.gpus import GPU
from pipewave.physics.arith import ARRAY, Arith

COLD, SERVING, PROFILER_WARM = "cold", "serving", "profiler_warm"


def l2_bytes(gpu: GPU) -> float:
    """L2 capacity in bytes."""
    return gpu.l2_mb * 2.0**20


def least_dram(
    gpu: GPU, protocol: str, fresh: Any, reused: Any, written: Any, copies: Any = 1.0, xp: Arith = ARRAY
) -> Any:
    """Fewest DRAM bytes a call can get away with.

    fresh: bytes that no kernel touched recently in serving (weights, KV); reused: activations; written: results, which
    may stay in L2 when the kernel ends. copies: how many sets of the operands rotate under the warm protocols.
    """
    capacity = l2_bytes(gpu)
    spilled = xp.maximum(written - capacity, 0.0)
    if protocol == COLD:
        return fresh + reused + spilled
    if protocol == SERVING:
        return fresh + xp.maximum(reused + written - capacity, 0.0)
    return (fresh + reused) * missing_share(capacity, copies * (fresh + reused), xp) + spilled


def missing_share(capacity: float, footprint: Any, xp: Arith = ARRAY) -> Any:
    """Smallest share of a cyclically read footprint that cannot sit in a cache of `capacity` bytes."""
    return xp.maximum(1.0 - capacity / xp.maximum(footprint, 1.0), 0.0)

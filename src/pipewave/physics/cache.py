"""Which bytes must come from DRAM under a protocol, and which the L2 may still hold.

`cold`: nothing is held. `serving`: weights and KV come from DRAM, activations were just written. `graph` and
`profiler_warm`: the same buffers, or a few rotating copies of them, call after call.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipewave.gpus import GPU
from pipewave.physics.arith import ARRAY, Arith

COLD, SERVING, PROFILER_WARM = "cold", "serving", "profiler_warm"
LINE = 128  # bytes of a cache line


@dataclass(frozen=True, slots=True)
class Misses:
    """How the share of bytes that miss the L2 grows with what is touched between two uses, in sizes of the L2."""

    source: str
    fits: float = 1.0  # up to which cyclic walks miss nothing
    overflows: float | None = None  # from which they miss everything; None: what exceeds the L2, the least possible
    half: float | None = None  # of what many kernels touch at different distances: where half misses
    steepness: float = 1.0  # of this smooth step


# Rows of the one law below. Fitted rows differ by what is walked; `python -m studies.gemm_base` repeats the first fits.
MISSES: Mapping[str, Misses] = {
    "least": Misses("a cyclic walk keeps at most the L2, whatever is replaced"),
    "halves": Misses("robust fit of cyclic products on A100, H100, B200: a half keeps what both read", 0.3, 1.02),
    "one_piece": Misses("robust fit of cyclic products and copies on L40S, RTX PRO 6000", 0.85, 1.1),
    "expert_weights": Misses("robust fit of graph-replayed MoE rows of all GPUs", half=0.7, steepness=4.0),
    "between_kernels": Misses("robust fit of MoE rows of all GPUs", half=2.0),
}

# How often one read of an operand tile serves, by tensor instruction: clusters share what one SM loads (TMA multicast),
# and `tcgen05` pairs SMs into one product. Robust fit of GEMM rows of five architectures (`python -m
# studies.gemm_base`).
MULTICAST: Mapping[str, float] = {"mma": 1.0, "wgmma": 1.45, "tcgen05": 2.1}

# Share of the datasheet's DRAM bandwidth that kernels sustain, by how they read. On an H200 a copy reaches 0.89, reads
# alone 0.93 (`data/measured/h200/microbench.json`); kernels of other shapes keep less, and fits tell them apart.
STREAM_DRAM_SHARE = 0.88  # reads and writes in turn: static fp8 quantisation of six GPUs, fused norms of two; MoE rows
PRODUCT_DRAM_SHARE = 0.87  # two operands and a result at once: robust fit of GEMM rows of five architectures
DECODE_DRAM_SHARE = 0.90  # reads of KV alone: robust fit of decode rows
PREFILL_DRAM_SHARE = 0.80  # tiles of queries walk the same KV in steps: robust fit of prefill rows


def missing_share(law: Misses, capacity: float, footprint: Any, xp: Arith = ARRAY) -> Any:
    """Share of `footprint` bytes (between two uses of each) that an L2 of `capacity` bytes does not hold."""
    if law.half is not None:
        over = law.half * capacity / xp.maximum(footprint, 1.0)
        return 1.0 / (1.0 + over**law.steepness)
    if law.overflows is None:
        return xp.maximum(1.0 - law.fits * capacity / xp.maximum(footprint, 1.0), 0.0)
    slope = 1.0 / (law.overflows - law.fits)
    return xp.minimum(xp.maximum(footprint * (slope / capacity) - law.fits * slope, 0.0), 1.0)


def walked(gpu: GPU) -> Misses:
    """The row of cyclic walks over a GPU's L2."""
    return MISSES["one_piece" if gpu.traits.l2_partitions == 1 else "halves"]


def measured_protocol(protocol: str) -> str:
    """The protocol whose rows answer for it: calls inside a step are predicted as cold ones."""
    return COLD if protocol == SERVING else protocol


def l2_bytes(gpu: GPU) -> float:
    """L2 capacity in bytes."""
    return gpu.l2_mb * 2.0**20


def least_dram(gpu: GPU, protocol: str, fresh: Any, reused: Any, written: Any, xp: Arith = ARRAY) -> Any:
    """Fewest DRAM bytes a call can get away with.

    fresh: bytes that no kernel touched recently in serving (weights, KV); reused: activations; written: results, which
    may stay in L2 when the kernel ends.
    """
    capacity = l2_bytes(gpu)
    spilled = xp.maximum(written - capacity, 0.0)
    if protocol == COLD:
        return fresh + reused + spilled
    if protocol == SERVING:
        return fresh + xp.maximum(reused + written - capacity, 0.0)
    return (fresh + reused) * missing_share(MISSES["least"], capacity, fresh + reused, xp) + spilled

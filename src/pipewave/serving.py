"""What a kernel inside an engine step is spared of what the same kernel pays when measured alone after a flush.

* The flush leaves the L2 full of dirty lines, and whatever a cold kernel brings in sends some of them out. In a step
  the lines it displaces are clean weights. Of our H200 rows measured both ways (flushed by writing and by reading, 97
  pairs), products gain as if one dirty byte went out for every two that came in, up to part of the L2; so do the
  products of prompts in traces of steps (data/measured/h200/traces).
* Attention gains by how much of its time it keeps DRAM busy: splits of short caches wait for one another instead.
* FlashAttention 3 prepares its schedule with a small kernel that a cold call includes; vLLM runs it once a step.
"""

from __future__ import annotations

import numpy as np

from pipewave import stacks
from pipewave.demand import Array, Demand
from pipewave.gpus import GPU
from pipewave.kernels.base import Context

HEAVY = ("gemm", "attention", "mla", "fused_moe")  # families that read weights or KV
DIRTY_PER_BYTE = 0.5  # dirty bytes a cold kernel writes back for each byte it reads from DRAM
DIRTY_SHARE = 0.6  # of the L2 that a flush leaves dirty
# Floor over latency: up to the first a kernel waits for its start and no write-back shows, from the second all of it.
WAITING = {"gemm": (0.15, 0.35), "fused_moe": (0.15, 0.35), "attention": (0.2, 0.7)}
SETUP_S = 2.2e-6  # of FlashAttention 3, read off cold rows; it runs on compute capability 9.0
LATENCY, FLOOR = 0, 3


def spare(seconds: Array, work: Demand, family: str, ctx: Context, stack: str | None) -> Array:
    """Answers [latency, low, high, floor, ceiling; call] of cold calls as the same calls take in a step of `stack`.

    All but the floor shrink in proportion, nothing below the floor.
    """
    latency, floor = seconds[LATENCY], seconds[FLOOR]
    saved = write_back_s(floor / latency, work, family, ctx.gpu) + _setup_s(family, ctx, stack)
    return np.asarray(np.maximum(seconds * np.maximum(latency - saved, floor) / latency, floor))


def write_back_s(busy: Array, work: Demand, family: str, gpu: GPU) -> Array:
    """Seconds of cold calls that go into writing back what the flush left in the L2. `busy`: floor over latency."""
    if family not in WAITING:
        return np.zeros_like(busy)
    none, all_ = WAITING[family]
    dirty = np.minimum(DIRTY_PER_BYTE * work.dram, DIRTY_SHARE * gpu.l2_mb * 2.0**20)
    return np.asarray(np.clip((busy - none) / (all_ - none), 0.0, 1.0) * dirty / (1e9 * gpu.dram_peak_gbps))


def _setup_s(family: str, ctx: Context, stack: str | None) -> float:
    prepares = family == "attention" and ctx.gpu.compute_capability == 90
    return SETUP_S if prepares and stacks.framework(stack or stacks.DEFAULT[ctx.protocol]) == "vllm" else 0.0

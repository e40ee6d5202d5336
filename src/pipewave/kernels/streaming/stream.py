"""What all kernels that stream memory share: bytes that reach DRAM, the time to move them, and their description."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipewave.gpus import GPU
from pipewave.kernels.base import Analysis, Context
from pipewave.physics.cache import COLD, MISSES, SERVING, STREAM_DRAM_SHARE, l2_bytes, least_dram, missing_share
from pipewave.physics.demand import Array, Demand
from pipewave.physics.launch import launch_s, log2
from pipewave.physics.overlap import overlapped
from pipewave.physics.power import Work

# Share of the L2 peak that streaming kernels reach (static fp8 quantisation of six GPUs, fused norms of two).
L2_SHARE = 0.42
# A compiler's kernels: only memory holds them up. The L2 share is that of vLLM's compiled steps on an H200.
GENERATED, GENERATED_L2_SHARE = "inductor", 0.3
LOG_TIME = -24.0, -9.0  # 60 ns to 2 ms: beyond, kernels only scale


@dataclass(frozen=True, slots=True)
class Stream:
    """Bytes a batch of calls moves: `fresh` come from DRAM even in serving, `read` and `written` are activations.

    `in_place` kernels write what they read, so that both occupy the same memory.
    """

    fresh: Array
    read: Array
    written: Array
    in_place: bool = False

    @property
    def moved(self) -> Array:
        """All bytes that pass the L2."""
        return self.fresh + self.read + self.written

    @property
    def footprint(self) -> Array:
        """Distinct bytes touched."""
        read = self.fresh + self.read
        return np.asarray(np.maximum(read, self.written) if self.in_place else read + self.written)


@dataclass(frozen=True, slots=True)
class StreamTimes:
    """Seconds a batch needs for its start, its DRAM traffic and its L2 traffic."""

    start: float
    dram: Array
    through: Array

    @property
    def base(self) -> Array:
        """All of it, DRAM and L2 overlapping."""
        return np.asarray(self.start + overlapped(3, self.dram, self.through))


def dram_bytes(gpu: GPU, protocol: str, work: Stream) -> Array:
    """Bytes a call is expected to exchange with DRAM under a protocol.

    The flush of `cold` leaves the L2 full of written lines: each line a call brings in or writes sends one of them out,
    so that its traffic is as much as if every result were written through (4.15 TB/s at all sizes on an H200).
    """
    if protocol == COLD:
        return work.moved
    missing = missing_share(MISSES["one_piece"], l2_bytes(gpu), work.footprint)
    activations = (work.read + work.written) * missing
    return np.asarray(activations + (work.fresh if protocol == SERVING else work.fresh * missing))


def least_bytes(gpu: GPU, protocol: str, work: Stream) -> Array:
    """The least any kernel must exchange with DRAM."""
    return np.asarray(least_dram(gpu, protocol, work.fresh, work.read, work.written))


def done(ctx: Context, work: Stream) -> Work:
    """What such a kernel does: nothing on the tensor cores, all its bytes through the L2."""
    return Work(0.0 * work.moved, dram_bytes(ctx.gpu, ctx.protocol, work), work.moved)


def times(ctx: Context, work: Stream, l2_share: float = L2_SHARE) -> StreamTimes:
    """Start, DRAM and L2 time of each call; `l2_share` of the peak is what such a kernel draws from L2."""
    gpu = ctx.gpu
    return StreamTimes(
        launch_s(gpu, "copy"),
        dram_bytes(gpu, ctx.protocol, work) / (STREAM_DRAM_SHARE * 1e9 * gpu.dram_gbps),
        work.moved / (l2_share * 1e9 * gpu.l2_peak_gbps),
    )


def generated(least: Demand, ctx: Context, work: Stream) -> Analysis:
    """The analysis of a kernel that a compiler generated: many small blocks, so the estimate needs no net."""
    took = times(ctx, work, GENERATED_L2_SHARE)
    return Analysis(least, took.start + np.maximum(took.dram, took.through), {}, "", done(ctx, work))


def describe(ctx: Context, work: Stream, took: StreamTimes) -> dict[str, Array]:
    """Features every streaming kernel has: sizes, residency, shares of the base estimate; all bounded."""
    base = took.base
    return {
        "log_moved": np.clip(log2(work.moved), 8.0, 32.0),
        "in_l2": np.clip(log2(work.footprint / l2_bytes(ctx.gpu)), -8.0, 4.0),
        "written_share": np.clip(work.written / work.moved, 0.3, 0.55),
        "log_base": np.clip(log2(base), *LOG_TIME),
        "dram_share": took.dram / base,
        "through_share": took.through / base,
        "log_dram": np.clip(log2(took.dram + 1e-8), *LOG_TIME),
    }

"""What all kernels that stream memory share: bytes that reach DRAM, the time to move them, and their description."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from pipewave.gpus import GPU
from pipewave.kernels.base import Context, Sketch, features_of
from pipewave.physics.arith import ARRAY, Arith
from pipewave.physics.cache import COLD, MISSES, SERVING, STREAM_DRAM_SHARE, l2_bytes, least_dram, missing_share
from pipewave.physics.overlap import launch_s, overlapped
from pipewave.physics.power import Work

# Share of the L2 peak that streaming kernels reach (static fp8 quantisation of six GPUs, fused norms of two).
L2_SHARE = 0.42
# A compiler's kernels: only memory holds them up. The L2 share is that of vLLM's compiled steps on an H200.
GENERATED, GENERATED_L2_SHARE = "inductor", 0.3


@dataclass(frozen=True, slots=True)
class Stream:
    """Bytes a batch of calls moves."""

    fresh: Any  # from DRAM even in serving
    read: Any  # activations
    written: Any  # activations, too
    in_place: bool = False  # what is written replaces what is read: both occupy the same memory

    @property
    def moved(self) -> Any:
        """All bytes that pass the L2."""
        return self.fresh + self.read + self.written

    def footprint(self, xp: Arith) -> Any:
        """Distinct bytes touched."""
        read = self.fresh + self.read
        return xp.maximum(read, self.written) if self.in_place else read + self.written


class StreamTimes(NamedTuple):
    """Seconds a batch needs for its start, its DRAM traffic and its L2 traffic."""

    start: float
    dram: Any
    through: Any

    @property
    def base(self) -> Any:
        """All of it, DRAM and L2 overlapping."""
        return self.start + overlapped(3, self.dram, self.through)


def dram_bytes(gpu: GPU, protocol: str, work: Stream, xp: Arith = ARRAY) -> Any:
    """Bytes a call is expected to exchange with DRAM under a protocol.

    The flush of `cold` leaves the L2 full of written lines: each line a call brings in or writes sends one of them out,
    so that its traffic is as much as if every result were written through (4.15 TB/s at all sizes on an H200).
    """
    if protocol == COLD:
        return work.moved
    missing = missing_share(MISSES["one_piece"], l2_bytes(gpu), work.footprint(xp), xp)
    activations = (work.read + work.written) * missing
    return activations + (work.fresh if protocol == SERVING else work.fresh * missing)


def least_bytes(gpu: GPU, protocol: str, work: Stream, xp: Arith = ARRAY) -> Any:
    """The least any kernel must exchange with DRAM."""
    return least_dram(gpu, protocol, work.fresh, work.read, work.written, xp=xp)


def sketch(
    least: dict[str, Any], base_s: Any, ctx: Context, work: Stream, xp: Arith, net: str = "", **features: Any
) -> Sketch:
    """Physics of a call that moves these bytes, all through the L2; without a net the estimate stands alone."""
    done = Work(0.0 * work.moved, dram_bytes(ctx.gpu, ctx.protocol, work, xp), work.moved)
    return Sketch(least, base_s, features, net, done)


def times(ctx: Context, work: Stream, xp: Arith, l2_share: float = L2_SHARE) -> StreamTimes:
    """Start, DRAM and L2 time of each call; `l2_share` of the peak is what such a kernel draws from L2."""
    gpu = ctx.gpu
    return StreamTimes(
        launch_s(gpu, "copy"),
        dram_bytes(gpu, ctx.protocol, work, xp) / (STREAM_DRAM_SHARE * 1e9 * gpu.dram_gbps),
        work.moved / (l2_share * 1e9 * gpu.l2_peak_gbps),
    )


def generated_s(ctx: Context, work: Stream, xp: Arith) -> Any:
    """Seconds of a kernel that a compiler generated: many small blocks, so the estimate needs no net."""
    took = times(ctx, work, xp, GENERATED_L2_SHARE)
    return took.start + xp.maximum(took.dram, took.through)


def describe(ctx: Context, work: Stream, took: StreamTimes, xp: Arith) -> dict[str, Any]:
    """Features of every streaming kernel: sizes, residency, shares of the base estimate; all bounded."""
    return features_of("streaming", ctx, xp, work=work, took=took, base=took.base, footprint=work.footprint(xp))

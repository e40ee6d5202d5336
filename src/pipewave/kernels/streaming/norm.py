"""RMS normalisation and the gated activation: one row a block, bound by memory, by waves of blocks, or by the start."""

from __future__ import annotations

from typing import Any, NamedTuple

from pipewave.calls.dtypes import ACTIVATION_BYTES
from pipewave.gpus import GPU
from pipewave.kernels.base import Columns, Context, Sketch, features_of
from pipewave.kernels.streaming import stream
from pipewave.physics.arith import ARRAY, Arith, clipped
from pipewave.physics.cache import LINE, SERVING
from pipewave.physics.overlap import overlapped, wave_efficiency, waves
from pipewave.software.rule_values import ScalarNorm
from pipewave.software.rules import constant

VECTOR = 8.0  # elements of one 16-byte load
WARP, LARGEST_BLOCK = 32.0, 1024.0
MANY_ROWS, SMALL_BLOCK = 256.0, 256.0  # vLLM's norms use smaller blocks where rows alone fill the GPU
# Life of a block on an SM: a norm loads, sums, waits and loads again (2.5 us on an H200 at 64 or 128 values a row).
ROW_S = {"rmsnorm": 2.4e-6, "silu_and_mul": 1.0e-6}
L2_SHARE = 0.3  # less than plain copies draw
LOOP_CYCLES = 40.0  # each further vector of a thread
START_ROWS = 100.0  # fewer rows wait for other things


class Blocks(NamedTuple):
    """How rows fall onto SMs: threads of a block, vectors a thread walks, blocks an SM holds, rounds of blocks."""

    threads: Any
    loops: Any
    per_sm: Any
    rounds: Any
    fill: Any


def blocks(gpu: GPU, rows: Any, dim: Any, smaller: bool, vector: float = VECTOR, xp: Arith = ARRAY) -> Blocks:
    """One block a row, one vector of so many elements a thread and loop; `smaller` blocks from MANY_ROWS rows on."""
    vectors = xp.ceil(dim / vector)
    largest = xp.where(rows >= MANY_ROWS, SMALL_BLOCK, LARGEST_BLOCK) if smaller else LARGEST_BLOCK
    threads = WARP * xp.ceil(xp.minimum(vectors, largest) / WARP)
    per_sm = clipped(xp.floor(gpu.max_threads_per_sm / threads), 1.0, gpu.max_ctas_per_sm, xp)
    per_place = rows / (per_sm * gpu.sms)
    return Blocks(threads, xp.ceil(vectors / threads), per_sm, waves(per_place, xp), wave_efficiency(per_place, xp))


def scalar_s(ctx: Context, shape: Blocks, rows: Any, loop: ScalarNorm, missing: Any, xp: Arith) -> Any:
    """How long blocks keep each place with one element a thread and loop: they wait for memory in each, and those that
    share an SM issue one after another (`norm_scalar` of the stack rules). `missing`: share of bytes from DRAM.
    """
    gpu = ctx.gpu
    beside = clipped(xp.ceil(rows / gpu.sms), 1.0, shape.per_sm, xp)
    cycles = loop.l2_cycles + loop.dram_cycles * missing + loop.issue_cycles * beside
    rounds = xp.maximum(rows / (shape.per_sm * gpu.sms), 1.0)
    return rounds * shape.loops * cycles / (gpu.sustained_clock_mhz * 1e6)


def row_start(rows: Any, dim: Any, in_place: bool, protocol: str, xp: Arith = ARRAY) -> Any:
    """Factor on the time of norms in place whose rows start inside a cache line.

    Each load and store of a warp then touches a line more, and neighbours write parts of one line
    (`python -m studies.norm_lines`). Norms that write elsewhere show nothing of it.
    """
    lost = constant("norm_row_start", protocol=protocol, in_place=in_place)
    inside = (ACTIVATION_BYTES * dim % LINE > 0) & (rows >= START_ROWS)
    return xp.exp(lost * xp.where(inside, 1.0, 0.0))


def _timed(
    rows: Any, dim: Any, ctx: Context, net: str, work: stream.Stream, moving: stream.StreamTimes, xp: Arith
) -> tuple[Blocks, Any]:
    """The blocks of a kernel, and its seconds: start, then memory or the lives of blocks, whichever is longer."""
    gpu = ctx.gpu
    if loop := ctx.rule("norm_scalar"):
        shape = blocks(gpu, rows, dim, False, 1.0, xp)
        held = scalar_s(ctx, shape, rows, loop, stream.dram_bytes(gpu, ctx.protocol, work, xp) / work.moved, xp)
    else:
        shape = blocks(gpu, rows, dim, net == "rmsnorm", xp=xp)
        life = ROW_S[net] + shape.loops * LOOP_CYCLES / (gpu.sustained_clock_mhz * 1e6)
        held = shape.rounds * shape.fill * life
    return shape, moving.start + overlapped(3, moving.base - moving.start, held)


def _rowwise(call: Columns, ctx: Context, net: str, work: stream.Stream, xu: float, xp: Arith) -> Sketch:
    """Physics of a row-wise kernel with four FMAs and so many special functions per output element."""
    rows, dim = call["rows"], call["dim"]
    elements = rows * dim
    dram = stream.least_bytes(ctx.gpu, ctx.protocol, work, xp)
    least = {"dram": dram, "l2": work.moved, "fma": 4.0 * elements, "xu": xu * elements, "launch": 1.0}
    if ctx.impl == stream.GENERATED and net == "silu_and_mul":
        return stream.sketch(least, stream.generated_s(ctx, work, xp), ctx, work, xp)
    moving = stream.times(ctx, work, xp, L2_SHARE)
    shape, base = _timed(rows, dim, ctx, net, work, moving, xp)
    known: dict[str, Any] = {"rows": rows, "dim": dim, "shape": shape, "base": base, "work": work, "vector": VECTOR}
    features = stream.describe(ctx, work, moving, xp) | features_of("rowwise", xp=xp, **known)
    slower = row_start(rows, dim, work.in_place, ctx.protocol, xp)
    return stream.sketch(least, base * slower, ctx, work, xp, net, **features)


def rmsnorm(call: Columns, ctx: Context, xp: Arith) -> Sketch:
    """x in, y out; fused with the addition, x and the residual in and, in place, both out. The weights are one row.

    In serving the weights of a block came through the L2 since the residual was written, so it comes from DRAM.
    """
    fused = bool(ctx.option("fused_add", False))
    size, weights = ACTIVATION_BYTES * call["rows"] * call["dim"], ACTIVATION_BYTES * call["dim"]
    old = size if fused and ctx.protocol == SERVING else 0.0 * size
    both = size * (2.0 if fused else 1.0)
    return _rowwise(call, ctx, "rmsnorm", stream.Stream(weights + old, both - old, both, in_place=fused), 0.0, xp)


def silu_and_mul(call: Columns, ctx: Context, xp: Arith) -> Sketch:
    """Two values in, one out, one exponential and one reciprocal each."""
    size = ACTIVATION_BYTES * call["rows"] * call["dim"]
    return _rowwise(call, ctx, "silu_and_mul", stream.Stream(0.0 * size, 2.0 * size, size), 2.0, xp)

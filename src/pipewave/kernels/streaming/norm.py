"""RMS normalisation and the gated activation: one row a block, bound by memory, by waves of blocks, or by the start."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipewave.calls.dtypes import ACTIVATION_BYTES, STREAMED_DTYPES
from pipewave.calls.families import RmsNorm, SiluAndMul
from pipewave.gpus import GPU
from pipewave.kernels.base import Analysis, Columns, Context, Family
from pipewave.kernels.streaming.stream import (
    GENERATED,
    LOG_TIME,
    Stream,
    StreamTimes,
    describe,
    done,
    dram_bytes,
    generated,
    least_bytes,
    times,
)
from pipewave.physics.cache import LINE, SERVING
from pipewave.physics.demand import Array, demand
from pipewave.physics.launch import log2
from pipewave.physics.overlap import overlapped
from pipewave.physics.waves import wave_efficiency, waves
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


@dataclass(frozen=True, slots=True)
class Blocks:
    """How rows fall onto SMs: threads of a block, vectors a thread walks, blocks an SM holds, rounds of blocks."""

    threads: Array
    loops: Array
    per_sm: Array
    rounds: Array
    fill: Array


def blocks(gpu: GPU, rows: Array, dim: Array, smaller: bool, vector: float = VECTOR) -> Blocks:
    """One block a row, one vector of so many elements a thread and loop; `smaller` blocks from MANY_ROWS rows on."""
    vectors = np.ceil(dim / vector)
    largest = np.where((rows >= MANY_ROWS) & smaller, SMALL_BLOCK, LARGEST_BLOCK)
    threads = WARP * np.ceil(np.minimum(vectors, largest) / WARP)
    per_sm = np.clip(np.floor(gpu.max_threads_per_sm / threads), 1.0, gpu.max_ctas_per_sm)
    places = per_sm * gpu.sms
    rounds = waves(rows / places)
    return Blocks(threads, np.ceil(vectors / threads), per_sm, rounds, wave_efficiency(rows / places))


def rowwise_s(gpu: GPU, shape: Blocks, row_s: float, moving: StreamTimes) -> Array:
    """Start, then memory or the lives of blocks in each place, whichever is longer; the start covers the first."""
    life = row_s + shape.loops * LOOP_CYCLES / (gpu.sustained_clock_mhz * 1e6)
    return np.asarray(moving.start + overlapped(3, moving.base - moving.start, shape.rounds * shape.fill * life))


def scalar_s(gpu: GPU, shape: Blocks, rows: Array, loop: ScalarNorm, moving: StreamTimes, missing: Array) -> Array:
    """The same of a kernel with one element a thread and loop: blocks wait for memory in each, and the start covers
    none of them; those that share an SM issue one after another (`norm_scalar` of the stack rules).
    """
    beside = np.clip(np.ceil(rows / gpu.sms), 1.0, shape.per_sm)
    cycles = loop.l2_cycles + loop.dram_cycles * missing + loop.issue_cycles * beside
    rounds = np.maximum(rows / (shape.per_sm * gpu.sms), 1.0)
    life = rounds * shape.loops * cycles / (gpu.sustained_clock_mhz * 1e6)
    return np.asarray(moving.start + overlapped(3, moving.base - moving.start, life))


def row_start(rows: Array, dim: Array, in_place: bool, protocol: str) -> Array:
    """Factor on the time of norms in place whose rows start inside a cache line.

    Each load and store of a warp then touches a line more, and neighbours write parts of one line
    (`python -m studies.norm_lines`). Norms that write elsewhere show nothing of it.
    """
    lost = constant("norm_row_start", protocol=protocol, in_place=in_place)
    inside = (ACTIVATION_BYTES * dim % LINE > 0) & (rows >= START_ROWS)
    return np.asarray(np.exp(lost * inside))


def _timed(cols: Columns, ctx: Context, net: str, work: Stream, moving: StreamTimes) -> tuple[Blocks, Array]:
    """The blocks of a kernel, and its seconds: with a vector or with one element a thread and loop."""
    rows, dim, gpu = cols["rows"], cols["dim"], ctx.gpu
    if loop := ctx.rule("norm_scalar"):
        shape = blocks(gpu, rows, dim, False, 1.0)
        return shape, scalar_s(gpu, shape, rows, loop, moving, dram_bytes(gpu, ctx.protocol, work) / work.moved)
    shape = blocks(gpu, rows, dim, net == "rmsnorm")
    return shape, rowwise_s(gpu, shape, ROW_S[net], moving)


def _analyse(cols: Columns, ctx: Context, net: str, work: Stream, fma: float, xu: float) -> Analysis:
    """Analysis of a row-wise kernel with so many operations per output element."""
    rows, dim, gpu = cols["rows"], cols["dim"], ctx.gpu
    moving, elements = times(ctx, work, L2_SHARE), rows * dim
    shape, base = _timed(cols, ctx, net, work, moving)
    least = demand(
        len(rows),
        dram=least_bytes(gpu, ctx.protocol, work),
        l2=work.moved,
        fma=fma * elements,
        xu=xu * elements,
        launch=1.0,
    )
    if ctx.impl == GENERATED and net == "silu_and_mul":
        return generated(least, ctx, work)
    features = describe(ctx, work, moving) | {
        "log_rows": np.minimum(log2(rows), 18.0),
        "log_dim": np.clip(log2(dim), 5.0, 16.0),
        "log_threads": log2(shape.threads),
        "log_loops": np.minimum(log2(shape.loops), 6.0),
        "log_rounds": np.minimum(log2(shape.rounds), 10.0),
        "fill": shape.fill,
        "log_rowwise": np.clip(log2(base), *LOG_TIME),
        "ragged": (dim % VECTOR > 0).astype(float),
        "fused": np.full(len(rows), float(work.in_place)),
    }
    slower = row_start(rows, dim, work.in_place, ctx.protocol)
    return Analysis(least, base * slower, features, net, done(ctx, work))


def rmsnorm(cols: Columns, ctx: Context) -> Analysis:
    """x in, y out; fused with the addition, x and the residual in and, in place, both out. The weights are one row.

    In serving the weights of a block came through the L2 since the residual was written, so it comes from DRAM.
    """
    fused = bool(ctx.option("fused_add", False))
    size, weights = ACTIVATION_BYTES * cols["rows"] * cols["dim"], ACTIVATION_BYTES * cols["dim"]
    old = size if fused and ctx.protocol == SERVING else 0.0 * size
    both = size * (2.0 if fused else 1.0)
    work = Stream(weights + old, both - old, both, in_place=fused)
    return _analyse(cols, ctx, "rmsnorm", work, fma=4.0, xu=0.0)


def silu_and_mul(cols: Columns, ctx: Context) -> Analysis:
    """Two values in, one out, one exponential and one reciprocal each."""
    size = ACTIVATION_BYTES * cols["rows"] * cols["dim"]
    return _analyse(cols, ctx, "silu_and_mul", Stream(0.0 * size, 2.0 * size, size), fma=4.0, xu=2.0)


RMSNORM = Family(
    "rmsnorm",
    RmsNorm,
    rmsnorm,
    options=("fused_add",),
    nets=("rmsnorm",),
    dtypes=STREAMED_DTYPES,
    example="pipewave predict rmsnorm 2048 4096 --fused-add --gpu H200",
    metadata="pipewave.kernels.streaming.metadata:NORM",
    reads="activations",
)
SILU = Family(
    "silu_and_mul",
    SiluAndMul,
    silu_and_mul,
    nets=("silu_and_mul",),
    dtypes=STREAMED_DTYPES,
    example="pipewave predict silu_and_mul 2048 14336 --gpu H200",
    metadata="pipewave.kernels.streaming.metadata:ACTIVATION",
    reads="activations",
)

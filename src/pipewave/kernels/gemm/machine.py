"""GEMM on a GPU: rates and library of a stack, choice of tiles and splits, bytes that reach DRAM and L2."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from pipewave.calls.dtypes import ACTIVATION_BYTES, OPERAND_BYTES
from pipewave.files import packaged
from pipewave.kernels.base import Context
from pipewave.physics.arith import Arith
from pipewave.physics.cache import COLD, MULTICAST, PRODUCT_DRAM_SHARE, SERVING, l2_bytes, missing_share, walked
from pipewave.physics.overlap import launch_s, waves
from pipewave.physics.power import PRODUCT_BYTE_J, PRODUCT_FLOP_J, joules_per_flop, product_w
from pipewave.software.rule_values import UnfusedQuantize

# What the formulas of a GEMM need of a GPU and its software, computed once a context.
#
# The constants are one set for all GPUs: a robust fit of the base estimate to the public rows of five architectures
# (`studies/gemm_base.py` repeats it, also with each architecture left out). What they leave over is the net's business.

L2_GAIN = 1.85  # SMs next to one another share lines, so operands arrive faster than a plain copy runs
SPLIT_CYCLES = 3700.0  # second pass of a split-K product
DRAIN, MERGE = 18.0, 12.0  # bytes an output element costs when a tile ends, and when a slice is added to another

BURST = 0.85  # a single flushed call draws on the thermal and electrical slack that back-to-back ones have used up

UNLIMITED = math.inf
ROW_THREADS = 1024  # of a block that quantises one row
WEIGHT_ONLY = ("int4", "mxfp4")


@dataclass(frozen=True, slots=True)
class Library:
    """How an implementation tiles and how it quantises; seconds, cycles, and shares of rates."""

    splits: bool = False  # cuts k when there are too few tiles
    tile_cycles: float = 1180.0  # to fill the pipeline of a tile
    tensor_share: float = 1.0
    l2_share: float = 1.0
    most_rows: tuple[float, ...] = (UNLIMITED,) * 5  # largest m for which each tile of `gemm_tiles` exists
    quantize_kernels: float = 1.0
    quantize_s: float = 1.3e-6
    row_cycles: float = 0.0  # of the quantisation kernel, a row
    element_cycles: float = 0.0  # and an element of the row
    from_l2: float = 1.5  # passes over x at L2 and at DRAM rates
    from_dram: float = 0.45


@cache
def library_of(name: str) -> Library:
    """The library of a name, as `libraries.json` has it; null rows: any number."""
    row = packaged.shared(Path(__file__).with_name("libraries.json"))[name]
    limits = [UNLIMITED if most is None else most for most in row.get("most_rows", [None] * 5)]
    return Library(**row | {"most_rows": tuple(limits)})


class GemmMachine:
    """Everything constant over a batch: rates in FLOP/s, bytes/s and watts, sizes in bytes, times in seconds."""

    def __init__(self, ctx: Context) -> None:
        gpu = ctx.gpu
        self.library = library = library_of(ctx.rule("gemm_library"))
        self.protocol, self.framework = ctx.protocol, ctx.framework
        self.sms = float(gpu.sms)
        self.clock_hz = gpu.sustained_clock_mhz * 1e6
        self.launch_s = launch_s(gpu, "product")
        self.tile_s = library.tile_cycles / self.clock_hz
        self.split_s = SPLIT_CYCLES / self.clock_hz
        self.peak = gpu.peak_flops(ctx.dtype)
        self.flops_per_sm = library.tensor_share * self.peak / gpu.sms
        self.drain_per_sm = L2_GAIN * MULTICAST[gpu.traits.mma] * gpu.l2_gbps * 1e9 / gpu.sms
        self.l2_per_sm = library.l2_share * self.drain_per_sm  # as tiles read their operands
        self.l2, self.l2_bytes = gpu.l2_gbps * 1e9, l2_bytes(gpu)
        self.misses = walked(gpu)  # of walks over the same few buffers
        self.dram = gpu.dram_gbps * 1e9
        burst = BURST if ctx.protocol in (COLD, SERVING) else 1.0
        self.watts = product_w(gpu)
        self.joules_per_flop = burst * joules_per_flop(gpu, ctx.dtype, PRODUCT_FLOP_J[gpu.traits.mma])
        self.joules_per_byte = burst * PRODUCT_BYTE_J
        # An element of W, of x as the product reads it, and of x as the call receives it.
        self.weight_bytes = OPERAND_BYTES[ctx.dtype]
        self.operand_bytes = ACTIVATION_BYTES if ctx.dtype in WEIGHT_ONLY else self.weight_bytes
        # What a product reads in 16 bits is not quantised.
        quantize = bool(ctx.option("quantize")) and self.operand_bytes < ACTIVATION_BYTES
        self.entering_bytes = ACTIVATION_BYTES if quantize else self.operand_bytes
        self.copies = ctx.rule("gemm_graph_copies") if ctx.protocol == "graph" else 1.0  # sets of weights that rotate
        self.all_rotate = ctx.rule("gemm_graph_all_rotate")  # activations and results rotate too
        self.fitted_copies = ctx.rule("gemm_graph_fitted_copies")  # only as many copies as overflow the L2
        self.quantize_s = library.quantize_s if quantize else 0.0
        # Kernels besides the library's that quantise x: their starts, each element of x, and bytes beyond the L2.
        unfused = (ctx.rule("gemm_quantize_unfused") if quantize else None) or UnfusedQuantize()
        self.unfused_s = unfused.kernels * self.launch_s
        self.unfused_element_s = unfused.cycles_per_element / (self.clock_hz * gpu.sms)
        self.unfused_bytes = unfused.bytes_per_element
        self.row_cycles = ctx.rule("gemm_quantize_row_cycles") or library.row_cycles
        self.row_slots = float(gpu.sms * max(1, gpu.max_threads_per_sm // ROW_THREADS))  # rows quantised at a time
        self.paces = tuple(Pace.of(tile, self) for tile in TILES)


machine = lru_cache(maxsize=4096)(GemmMachine)  # of a context, worked out once

# Output tiles of a GEMM: how long whole waves of them take, with k cut into slices when there are too few.
#
# The libraries choose among far more tiles than these five; the five span the trade between idle SMs, padding and
# operand re-reads, and the learned residual sees the time of each beside the best.

# rows of x (tokens) × rows of W (output features)
TILES = ((16, 64), (64, 64), (64, 128), (128, 128), (128, 256))
HEIGHTS, WIDTHS = (16, 64, 128, 192, 256), (64, 128, 192, 256)  # of these and of those seen in kernel names
MIDDLING = (64, 64)
LEAST_SLICE = 128.0  # of k
NEVER_S = 1e6


class Tiling(NamedTuple):
    """Candidate tiles."""

    seconds: tuple[Any, ...]  # of each
    best: Any  # of them
    per_sm: tuple[Any, ...]
    unsliced: Any  # a middling tile that never cuts k
    rows: Mapping[int, Any]  # tiles of each height in m
    columns: Mapping[int, Any]  # and of each width in n


class Pace(NamedTuple):
    """Seconds that one tile costs on a machine, whatever the product."""

    per_k: float  # each element of k: the longer of its tensor work and its operand reads from L2
    drain: float
    merge: float  # each slice of k after the first
    best_slices: float  # where no limit is met, over the square root of k

    @classmethod
    def of(cls, tile: tuple[int, int], at: GemmMachine) -> Pace:
        """Of a tile of so many rows and columns."""
        rows, columns = tile
        area, operands = float(rows * columns), rows * at.operand_bytes + columns * at.weight_bytes
        per_k = max(2.0 * area / at.flops_per_sm, operands / at.l2_per_sm)
        merge = MERGE * area / at.drain_per_sm
        return cls(per_k, DRAIN * area / at.drain_per_sm, merge, math.sqrt(per_k / merge))


def tiling(m: Any, n: Any, k: Any, at: GemmMachine, xp: Arith) -> Tiling:
    """All candidate tiles of a GEMM."""
    ceil, root_k, paces = xp.ceil, xp.sqrt(k), at.paces
    rows = {height: ceil(m * (1.0 / height)) for height in HEIGHTS}
    columns = {width: ceil(n * (1.0 / width)) for width in WIDTHS}
    seconds, per_sm, best = [], [], math.inf
    for (height, width), pace, most_rows in zip(TILES, paces, at.library.most_rows, strict=True):
        tiles = rows[height] * columns[width]
        took = tile_seconds(k, root_k, tiles, pace, at, xp)
        if most_rows < UNLIMITED:
            took = took + NEVER_S * (m > most_rows)
        seconds.append(took)
        per_sm.append(tiles * (1.0 / at.sms))
        best = xp.minimum(took, best)
    middling = TILES.index(MIDDLING)
    unsliced = waves(per_sm[middling], xp) * (paces[middling].per_k * k + at.tile_s)
    return Tiling(tuple(seconds), best, tuple(per_sm), unsliced, rows, columns)


def known_tile(
    tiles: Tiling, m: Any, n: Any, k: Any, tile: tuple[int, int], ctas: Any, at: GemmMachine, xp: Arith
) -> Tiling:
    """The same candidates, but the tile that ran decides; a known number of CTAs (0: unknown) fixes its slices of k."""
    pace = Pace.of(tile, at)
    grid = xp.ceil(m * (1.0 / tile[0])) * xp.ceil(n * (1.0 / tile[1]))
    per_sm = grid * (1.0 / at.sms)
    slices = xp.maximum(xp.floor(ctas / (per_sm * at.sms)), 1.0)
    cut = _with_slices(slices, pace.per_k * k, per_sm, pace, at, xp) + pace.drain
    return tiles._replace(best=xp.where(ctas > 0.0, cut, tile_seconds(k, xp.sqrt(k), grid, pace, at, xp)))


def tile_seconds(k: Any, root_k: Any, tiles: Any, pace: Pace, at: GemmMachine, xp: Arith) -> Any:
    """Time of all waves of one tile.

    A tile takes its k at its pace, and a fixed fill and drain. Slicing k into s shares a tile among s SMs that then add
    up s partial results; the best s balances the two.
    """
    whole, per_sm = pace.per_k * k, tiles * (1.0 / at.sms)
    if not at.library.splits:
        return waves(per_sm, xp) * (whole + at.tile_s) + pace.drain
    most = xp.minimum(at.sms / tiles, k * (1.0 / LEAST_SLICE))
    slices = xp.maximum(xp.minimum(pace.best_slices * root_k, most), 1.0)
    return _with_slices(slices, whole, per_sm, pace, at, xp) + pace.drain


def _with_slices(slices: Any, whole: Any, per_sm: Any, pace: Pace, at: GemmMachine, xp: Arith) -> Any:
    second_pass = at.split_s * (slices > 1.0) + pace.merge * (slices - 1.0)
    return waves(per_sm * slices, xp) * (whole / slices + at.tile_s) + second_pass


# Bytes a GEMM moves under each protocol: what must come from DRAM at least, and what does in practice.

WRITTEN_BACK = 0.7  # of the results, while they fit
WALKED_BYTES = 6.0  # an element of x between two kernels that walk over it: as it came, and a float32 copy


class Traffic(NamedTuple):
    """Bytes."""

    x: Any
    weights: Any
    y: Any
    footprint: Any  # all touched between two uses of the same weights
    least_dram: Any
    dram: Any
    cached: Any  # their share found in L2

    @property
    def all(self) -> Any:
        """Every operand once."""
        return self.x + self.weights + self.y


def traffic(m: Any, n: Any, k: Any, at: GemmMachine, xp: Arith) -> Traffic:
    """Operand sizes and DRAM bytes of y[m,n] = x[m,k]·Wᵀ."""
    x, weights, y = at.entering_bytes * m * k, at.weight_bytes * n * k, 2.0 * m * n
    spilled = xp.maximum(y - at.l2_bytes, 0.0)
    if at.protocol == COLD:
        return Traffic(x, weights, y, x + weights + y, x + weights + spilled, x + weights + spilled, 0.0 * m)
    if at.protocol == SERVING:
        dram = weights + xp.maximum(x + y - at.l2_bytes, 0.0)
        return Traffic(x, weights, y, x + weights + y, dram, dram, 0.0 * m)
    return _warm(x, weights, y, spilled, at, xp)


def _warm(x: Any, weights: Any, y: Any, spilled: Any, at: GemmMachine, xp: Arith) -> Traffic:
    """The same few buffers again and again; a cycle over `copies` sets must load what the L2 cannot keep of them."""
    fitted = at.protocol == "graph" and at.fitted_copies
    copies = xp.minimum(xp.ceil(at.l2_bytes / weights), at.copies) if fitted else at.copies
    moving = copies * (weights + x) if at.all_rotate else copies * weights + x
    footprint = moving + (copies * y if at.all_rotate else y)
    missing = missing_share(at.misses, at.l2_bytes, footprint, xp)
    still = missing if at.all_rotate else missing_share(at.misses, at.l2_bytes, x + weights + y, xp)
    least = xp.maximum(moving - at.l2_bytes, 0.0) / copies + spilled
    dram = weights * missing + (x + WRITTEN_BACK * y) * still + spilled
    return Traffic(x, weights, y, footprint, least, dram, 1.0 - missing)


def quantize_s(m: Any, k: Any, moved: Traffic, at: GemmMachine, xp: Arith) -> Any:
    """Seconds of the kernels that quantise x: a block a row, or bandwidth when there are many rows."""
    if not at.quantize_s:
        return 0.0
    library = at.library
    rows = xp.ceil(m * (1.0 / at.row_slots)) * (at.row_cycles + library.element_cycles * k) * (1.0 / at.clock_hz)
    passes = (library.quantize_kernels + 0.5) * moved.x
    missing = missing_share(at.misses, at.l2_bytes, 2.0 * moved.all, xp)
    streaming = passes * (library.from_l2 / at.l2 + library.from_dram / at.dram * missing)
    return at.quantize_s + xp.maximum(rows, streaming)


def unfused_s(m: Any, k: Any, at: GemmMachine, xp: Arith) -> Any:
    """Seconds of kernels that walk over x besides: so many cycles an element, or as fast as DRAM streams what the L2
    does not hold of float32 copies.

    No feature holds them: what a net learned of a library's quantisation says nothing about them.
    """
    missing = missing_share(at.misses, at.l2_bytes, WALKED_BYTES * m * k, xp)
    from_dram = missing * m * k * (at.unfused_bytes / (PRODUCT_DRAM_SHARE * at.dram))
    return at.unfused_s + xp.maximum(at.unfused_element_s * m * k, from_dram)

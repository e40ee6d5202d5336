"""What the formulas of a GEMM need of a GPU and its software, computed once a context.

The constants are one set for all GPUs: a robust fit of the base estimate to the public rows of five architectures
(`bench/gemm_base.py` repeats it, also with each architecture left out). What they leave over is the net's business.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

from pipewave.calls.dtypes import ACTIVATION_BYTES, OPERAND_BYTES
from pipewave.kernels.base import Context
from pipewave.physics.cache import COLD, MULTICAST, SERVING, Misses, l2_bytes, walked
from pipewave.physics.energy import DRAWS, joules_per_flop, watts
from pipewave.physics.launch import launch_s

L2_GAIN = 1.85  # SMs next to one another share lines, so operands arrive faster than a plain copy runs
SPLIT_CYCLES = 3700.0  # second pass of a split-K product
DRAIN, MERGE = 18.0, 12.0  # bytes an output element costs when a tile ends, and when a slice is added to another

BURST = 0.85  # a single flushed call draws on the thermal and electrical slack that back-to-back ones have used up

UNLIMITED = math.inf


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


CUBLAS = Library(splits=True, quantize_kernels=3.0, quantize_s=10.6e-6)
CUTLASS = Library(
    tile_cycles=3500.0, l2_share=1.15, most_rows=(32.0, 64.0, 192.0, UNLIMITED, UNLIMITED), element_cycles=0.68
)
BLOCK = Library(
    tile_cycles=3300.0, tensor_share=0.69, l2_share=0.48, most_rows=(32.0, *(UNLIMITED,) * 4), quantize_s=2.6e-6,
    element_cycles=0.37, from_l2=0.2, from_dram=1.55,
)  # fmt: skip
FOUR_BIT = Library(
    tile_cycles=900.0, l2_share=0.42, most_rows=(32.0, *(UNLIMITED,) * 4), quantize_s=4.5e-6, row_cycles=190.0,
    element_cycles=0.19, from_l2=0.45, from_dram=0.3,
)  # fmt: skip
# sm_120 has one CUTLASS fp8 kernel in SGLang, whatever m is.
CUTLASS_ONE_TILE = replace(CUTLASS, most_rows=(0.0, 0.0, 0.0, UNLIMITED, 0.0))
ROW_THREADS = 1024  # of a block that quantises one row

LIBRARIES = {
    "cublas": CUBLAS, "cutlass": CUTLASS, "cutlass_one_tile": CUTLASS_ONE_TILE, "block": BLOCK, "four_bit": FOUR_BIT,
}  # fmt: skip
WEIGHT_ONLY = ("int4", "mxfp4")
NOT_UNFUSED = {"kernels": 0.0, "cycles": 0.0, "bytes": 0.0}


@dataclass(frozen=True, slots=True, eq=False)  # one a context, distinguished by identity: what follows is cached by it
class GemmMachine:
    """Rates in FLOP/s, bytes/s and watts, sizes in bytes, times in seconds."""

    library: Library
    protocol: str
    framework: str
    sms: float
    peak: float
    flops_per_sm: float
    l2_per_sm: float  # as tiles read their operands
    drain_per_sm: float
    l2: float
    l2_bytes: float
    misses: Misses  # of walks over the same few buffers
    dram: float
    clock_hz: float
    launch_s: float
    tile_s: float
    split_s: float
    watts: float
    joules_per_flop: float
    joules_per_byte: float
    weight_bytes: float  # an element of W, of x as the product reads it, and of x as the call receives it
    operand_bytes: float
    entering_bytes: float
    copies: float  # sets of weights that rotate under `graph`
    all_rotate: bool  # activations and results rotate too
    fitted_copies: bool  # only as many copies as overflow the L2
    quantize_s: float
    unfused_s: float  # of kernels besides the library's that quantise x; for each element of x, and bytes beyond the L2
    unfused_element_s: float
    unfused_bytes: float
    row_cycles: float
    row_slots: float  # rows that are quantised at a time


@lru_cache(maxsize=4096)
def machine(ctx: Context) -> GemmMachine:
    """Everything constant over a batch."""
    gpu, library = ctx.gpu, library_of(ctx)
    clock_hz, peak = gpu.sustained_clock_mhz * 1e6, gpu.peak_flops(ctx.dtype)
    quantize = bool(ctx.option("quantize"))
    weight = OPERAND_BYTES[ctx.dtype]
    operand = ACTIVATION_BYTES if ctx.dtype in WEIGHT_ONLY else weight
    near = L2_GAIN * MULTICAST[gpu.traits.mma] * gpu.l2_gbps * 1e9 / gpu.sms
    unfused = (ctx.rule("gemm_quantize_unfused") if quantize else None) or NOT_UNFUSED
    launch = launch_s(gpu, "product")
    burst = BURST if ctx.protocol in (COLD, SERVING) else 1.0
    return GemmMachine(
        library=library,
        protocol=ctx.protocol,
        framework=ctx.framework,
        sms=float(gpu.sms),
        peak=peak,
        flops_per_sm=library.tensor_share * peak / gpu.sms,
        l2_per_sm=library.l2_share * near,
        drain_per_sm=near,
        l2=gpu.l2_gbps * 1e9,
        l2_bytes=l2_bytes(gpu),
        misses=walked(gpu),
        dram=gpu.dram_gbps * 1e9,
        clock_hz=clock_hz,
        launch_s=launch,
        tile_s=library.tile_cycles / clock_hz,
        split_s=SPLIT_CYCLES / clock_hz,
        watts=watts(gpu, "product"),
        joules_per_flop=burst * joules_per_flop(gpu, ctx.dtype, "product"),
        joules_per_byte=burst * DRAWS["product"].joules_per_byte,
        weight_bytes=weight,
        operand_bytes=operand,
        entering_bytes=ACTIVATION_BYTES if quantize else operand,
        copies=ctx.rule("gemm_graph_copies") if ctx.protocol == "graph" else 1.0,
        all_rotate=ctx.rule("gemm_graph_all_rotate"),
        fitted_copies=ctx.rule("gemm_graph_fitted_copies"),
        quantize_s=library.quantize_s if quantize else 0.0,
        unfused_s=unfused["kernels"] * launch,
        unfused_element_s=unfused["cycles"] / (clock_hz * gpu.sms),
        unfused_bytes=unfused["bytes"],
        row_cycles=ctx.rule("gemm_quantize_row_cycles") or library.row_cycles,
        row_slots=float(gpu.sms * max(1, gpu.max_threads_per_sm // ROW_THREADS)),
    )


def library_of(ctx: Context) -> Library:
    """The library behind an implementation: cuBLAS where the framework calls it, else the one its type needs."""
    return LIBRARIES[ctx.rule("gemm_library")]

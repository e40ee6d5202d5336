"""What the formulas of a GEMM need of a GPU and its software, computed once a context."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from pipewave import stacks
from pipewave.kernels.base import Context
from pipewave.kernels.dtypes import ACTIVATION_BYTES, OPERAND_BYTES
from pipewave.kernels.residency import l2_bytes

# One set of constants for all GPUs, from a robust fit of the base estimate to bf16 rows of five architectures.
TENSOR_SHARE = 0.80  # of the datasheet peak that a well fed tensor pipe sustains
DRAM_SHARE = 0.85
L2_GAIN = 1.45  # what SMs draw from L2 and their neighbours, over the bandwidth a plain copy kernel measures
LAUNCH_S, LAUNCH_CYCLES = 0.9e-6, 1400.0
TILE_CYCLES = 1100.0  # filling the pipeline of a tile and draining it
SPLIT_CYCLES = 3000.0  # second pass of a split-K product
QUANTIZE_S = 2.4e-6  # one more kernel
# Clusters read an operand tile once for several SMs (TMA multicast); Blackwell also pairs SMs into one product.
MULTICAST = {"hopper": 2.0**0.5, "blackwell": 2.0}


@dataclass(frozen=True, slots=True)
class Machine:
    """Rates in FLOP/s and bytes/s, sizes in bytes, times in seconds."""

    sms: float
    flops_per_sm: float
    l2_per_sm: float
    l2: float
    l2_bytes: float
    dram: float
    peak: float
    clock_hz: float
    launch_s: float
    tile_s: float
    split_s: float
    operand: float  # bytes of an element of x and W as the product reads them
    entering: float  # bytes of an element of x as the call receives it
    protocol: str
    framework: str
    most_copies: float  # sets of weights that rotate under `graph`
    all_rotate: bool  # activations and results rotate too
    fitted_copies: bool  # only as many copies as overflow the L2
    splits: bool  # the library cuts k when there are too few tiles
    quantize_kernels: float
    row_cycles: float  # of the quantisation kernel: per row, and per element of it
    element_cycles: float


@lru_cache(maxsize=4096)
def machine(ctx: Context) -> Machine:
    """Everything constant over a batch."""
    gpu = ctx.gpu
    clock_hz = gpu.sustained_clock_mhz * 1e6
    peak = gpu.peak_flops(ctx.dtype)
    quantize = bool(ctx.option("quantize"))
    operand = OPERAND_BYTES[ctx.dtype]
    dense = ctx.framework == "trtllm" and ctx.dtype == "fp8"
    return Machine(
        sms=float(gpu.sms),
        flops_per_sm=TENSOR_SHARE * peak / gpu.sms,
        l2_per_sm=L2_GAIN * MULTICAST.get(gpu.architecture, 1.0) * gpu.l2_gbps * 1e9 / gpu.sms,
        l2=gpu.l2_gbps * 1e9,
        l2_bytes=l2_bytes(gpu),
        dram=gpu.dram_gbps * 1e9,
        peak=peak,
        clock_hz=clock_hz,
        launch_s=LAUNCH_S + LAUNCH_CYCLES / clock_hz,
        tile_s=TILE_CYCLES / clock_hz,
        split_s=SPLIT_CYCLES / clock_hz,
        operand=operand,
        entering=ACTIVATION_BYTES if quantize else operand,
        protocol=ctx.protocol,
        framework=ctx.framework,
        most_copies=_copies(ctx),
        all_rotate=ctx.framework == "sglang",
        fitted_copies=ctx.framework == "trtllm" and stacks.version(ctx.stack) >= (1, 3),
        splits=ctx.dtype in ("bf16", "fp16", "int4") or dense,
        quantize_kernels=(3.0 if dense else 1.0) if quantize else 0.0,
        row_cycles=1900.0 if ctx.framework == "vllm" else 0.0,
        element_cycles=0.0 if dense else 0.45,
    )


def _copies(ctx: Context) -> float:
    """Copies of the weights that the collectors of AIConfigurator rotate (its `collect_gemm.py` per framework)."""
    if ctx.framework == "trtllm":
        return 5.0
    return 1.0 if ctx.framework == "vllm" and ctx.dtype == "fp8_block" else 6.0

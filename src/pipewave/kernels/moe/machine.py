"""The machine a fused-MoE call meets: rates of the GPU, operand types, and the engine behind the implementation."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from pipewave.calls.dtypes import OPERAND_BYTES
from pipewave.errors import UnsupportedDtype
from pipewave.kernels.base import Context
from pipewave.physics.cache import MULTICAST, STREAM_DRAM_SHARE, l2_bytes
from pipewave.physics.launch import launch_s
from pipewave.software.stack_rules import constant

TENSOR_SHARE = 0.75  # of the datasheet peak that a well fed grouped GEMM sustains
L2_GAIN = 1.45  # what SMs draw from L2 and their neighbours, over what a plain copy kernel measures
TILE_CYCLES = 1500.0  # filling the pipeline of a tile and draining it
# 16-bit operations a cycle and SM of the instructions that warps issue themselves; Hopper and Blackwell reach their
# peak only with asynchronous ones.
WARP_FLOPS = 2048.0
# Weights that an SM widens a clock where tensor cores multiply wider ones, Marlin, Triton and CUTLASS alike: few tokens
# take as long on H200 as on H100, which has 0.7 of its bandwidth. Rounded from rows of these two.
WIDENED = 42.0
SCALES_K = 128.0  # inner dimension that one block scale covers
SORT_CYCLES = 1.2  # a pair, counted and sorted by expert by a few blocks (our H200 rows: 0.6 ns)
# Weights stored in fewer bits than the product runs in: weight type → type of the product, by the activations' type.
_WEIGHT_ONLY = {"int4": "bf16", "mxfp4": "bf16"}


@dataclass(frozen=True, slots=True)
class Costs:
    """How much longer an engine takes than the formulas' ideal, by part of the work."""

    launch: float
    tiles: float
    weights: float
    activate: float
    reduce: float


ENGINES = ("triton", "marlin", "cutlass", "generated")


def engine(impl: str) -> str:
    """The kind of kernels behind an implementation's name; `generated` are TensorRT-LLM's ahead-of-time kernels."""
    return str(constant("moe_engine", impl=impl))


@dataclass(frozen=True, slots=True)
class MoeMachine:
    """Rates in FLOP/s and bytes/s, sizes in bytes, times in seconds."""

    sms: float
    flops_per_sm: float
    l2_per_sm: float
    smem_per_sm: float
    l2: float
    l2_bytes: float
    dram: float
    launch_s: float
    cycle_s: float
    tile_s: float
    sort_s: float
    weight: float  # bytes an element
    operand: float  # bytes an element of the activations the products read
    engine: str
    costs: Costs
    carries: str  # pairs of other ranks' experts: none, "between" the products, or through them: "all" as their own
    # experts would, or "packed" as if they were one expert's
    serial: bool  # a tile's operands are staged and multiplied in turn, not at once
    warp_mma: bool  # tensor instructions are issued by warps, and a product waits for them
    untuned: bool  # products take the first configuration of their library: one block for all sizes, no cluster
    widen_s: float  # an SM's time to widen a weight; 0: the tensor cores multiply it as it is
    scale_s: float  # an SM's time to scale the sums of an output by block scales, for each step of the inner dimension


def product_dtype(ctx: Context) -> str:
    """The type the tensor cores run: narrow weights meet 16-bit activations unless `impl` names their type.

    Raises UnsupportedDtype where the GPU lacks the type of the activations.
    """
    if ran := ctx.rule("moe_multiplies"):
        return str(ran)
    if ctx.dtype not in _WEIGHT_ONLY:
        return ctx.dtype
    if not narrow_activations(ctx):
        return next(filter(ctx.gpu.supports, (_WEIGHT_ONLY[ctx.dtype], "fp16")))
    if not ctx.gpu.supports("fp8"):
        runs = f"{ctx.dtype} experts of {ctx.stack} with {ctx.impl} multiply by fp8 activations"
        raise UnsupportedDtype(f"{runs}, which {ctx.gpu.name} cannot: name another impl or stack", field="dtype")
    return "fp8"


def narrow_activations(ctx: Context) -> bool:
    """Do fp8 activations meet 4-bit weights (w4a8)?"""
    return bool(constant("moe_narrow_activations", impl=ctx.impl))


@lru_cache(maxsize=4096)
def machine(ctx: Context) -> MoeMachine:
    """Everything constant over a batch."""
    gpu, dtype = ctx.gpu, product_dtype(ctx)
    cycle = 1e-6 / gpu.sustained_clock_mhz
    kind, untuned = engine(ctx.impl), ctx.rule("moe_untuned") is not None
    shared = 1.0 if untuned else MULTICAST[gpu.traits.mma]
    return MoeMachine(
        sms=float(gpu.sms),
        flops_per_sm=TENSOR_SHARE * _flops_per_sm(ctx, kind, dtype, cycle),
        l2_per_sm=L2_GAIN * shared * gpu.l2_gbps * 1e9 / gpu.sms,
        smem_per_sm=gpu.smem_bytes_per_clk_per_sm / cycle,
        l2=gpu.l2_gbps * 1e9,
        l2_bytes=l2_bytes(gpu),
        dram=STREAM_DRAM_SHARE * gpu.dram_gbps * 1e9,
        launch_s=launch_s(gpu, "grouped"),
        cycle_s=cycle,
        tile_s=TILE_CYCLES * cycle,
        sort_s=SORT_CYCLES * cycle,
        weight=OPERAND_BYTES[ctx.rule("moe_kept_as") or ctx.dtype],
        operand=OPERAND_BYTES[dtype],
        engine=kind,
        costs=Costs(**constant("moe_costs", engine=kind, dtype=ctx.dtype)),
        carries=ctx.rule("moe_carries", engine=kind),
        serial=kind == "triton",
        warp_mma=kind == "marlin" or not gpu.traits.asynchronous,
        untuned=untuned,
        widen_s=cycle / WIDENED if widens(ctx) else 0.0,
        scale_s=ctx.rule("moe_scales") * cycle / (gpu.traits.fma_per_clk_per_sm * SCALES_K),
    )


def widens(ctx: Context) -> bool:
    """Do kernels widen the weights that they read? Tensor cores of newer GPUs multiply 4-bit floats by 8-bit ones."""
    if ctx.rule("moe_multiplies"):
        return True
    native = narrow_activations(ctx) and ctx.gpu.fp4_tflops and ctx.dtype in ctx.gpu.traits.fp4_types
    return ctx.dtype in _WEIGHT_ONLY and not ctx.rule("moe_kept_as") and not native


def _flops_per_sm(ctx: Context, kind: str, dtype: str, cycle: float) -> float:
    """Peak of the tensor instructions that an engine issues: Marlin keeps to those of Ampere on every GPU."""
    peak = ctx.gpu.peak_flops(dtype) / ctx.gpu.sms
    return min(peak, WARP_FLOPS * 2.0 / OPERAND_BYTES[dtype] / cycle) if kind == "marlin" else peak

"""Fused MoE on a GPU: rates, the configuration a stack runs, tiles and splits."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from pipewave.calls.dtypes import OPERAND_BYTES
from pipewave.errors import UnsupportedDtype
from pipewave.kernels.base import Columns, Context
from pipewave.kernels.moe.routing import Layer, Product
from pipewave.physics.cache import MULTICAST, PROFILER_WARM, STREAM_DRAM_SHARE, l2_bytes
from pipewave.physics.demand import Array
from pipewave.physics.overlap import launch_s, overlapped, waves
from pipewave.software.recorded import tuned
from pipewave.software.rule_values import MoeCosts
from pipewave.software.rules import constant
from pipewave.software.stacks import version

# The machine a fused-MoE call meets: rates of the GPU, operand types, and the engine behind the implementation.

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
ENGINES = ("triton", "marlin", "cutlass", "generated")


def engine(impl: str) -> str:
    """The kind of kernels behind an implementation's name; `generated` are TensorRT-LLM's ahead-of-time kernels."""
    return str(constant("moe_engine", impl=impl))


class MoeMachine:
    """Everything constant over a batch: rates in FLOP/s and bytes/s, sizes in bytes, times in seconds."""

    def __init__(self, ctx: Context) -> None:
        gpu, dtype = ctx.gpu, product_dtype(ctx)
        self.engine = engine(ctx.impl)
        self.cycle_s = cycle = 1e-6 / gpu.sustained_clock_mhz
        self.launch_s = launch_s(gpu, "grouped")
        self.tile_s, self.sort_s = TILE_CYCLES * cycle, SORT_CYCLES * cycle
        self.sms = float(gpu.sms)
        peak = gpu.peak_flops(dtype) / gpu.sms
        if self.engine == "marlin":  # it keeps to the tensor instructions of Ampere on every GPU
            peak = min(peak, WARP_FLOPS * 2.0 / OPERAND_BYTES[dtype] / cycle)
        self.flops_per_sm = TENSOR_SHARE * peak
        # Whether products take the first configuration of their library: one block for all sizes, no cluster.
        self.untuned = ctx.rule("moe_untuned") is not None
        shared = 1.0 if self.untuned else MULTICAST[gpu.traits.mma]
        self.l2_per_sm = L2_GAIN * shared * gpu.l2_gbps * 1e9 / gpu.sms
        self.smem_per_sm = gpu.smem_bytes_per_clk_per_sm / cycle
        self.l2, self.l2_bytes = gpu.l2_gbps * 1e9, l2_bytes(gpu)
        self.dram = STREAM_DRAM_SHARE * gpu.dram_gbps * 1e9
        # Bytes of an element of the weights, and of the activations that the products read.
        self.weight, self.operand = OPERAND_BYTES[ctx.rule("moe_kept_as") or ctx.dtype], OPERAND_BYTES[dtype]
        self.costs: MoeCosts = constant("moe_costs", engine=self.engine, dtype=ctx.dtype)
        # Where pairs of other ranks' experts are processed: nowhere, "between" the products, or in them: "all" as their
        # own experts would, or "packed" as if they were one expert's.
        self.remote_pairs: str = ctx.rule("moe_remote_pairs", engine=self.engine)
        self.serial = self.engine == "triton"  # a tile's operands are staged and multiplied in turn, not at once
        # Whether tensor instructions are issued by warps, and a product waits for them.
        self.warp_mma = self.engine == "marlin" or not gpu.traits.asynchronous
        # Time of an SM to widen a weight (0: the tensor cores multiply it as it is), and to scale the sums of an output
        # by block scales, for each step of the inner dimension.
        self.widen_s = cycle / WIDENED if widens(ctx) else 0.0
        self.scale_s = ctx.rule("moe_scales") * cycle / (gpu.traits.fma_per_clk_per_sm * SCALES_K)


machine = lru_cache(maxsize=4096)(MoeMachine)  # of a context, worked out once


def product_dtype(ctx: Context) -> str:
    """The type tensor cores run: 16 bits for narrow weights unless `impl` names one. Raises UnsupportedDtype."""
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


def widens(ctx: Context) -> bool:
    """Do kernels widen the weights that they read? Tensor cores of newer GPUs multiply 4-bit floats by 8-bit ones."""
    if ctx.rule("moe_multiplies"):
        return True
    native = narrow_activations(ctx) and ctx.gpu.fp4_tflops and ctx.dtype in ctx.gpu.traits.fp4_types
    return ctx.dtype in _WEIGHT_ONLY and not ctx.rule("moe_kept_as") and not native


# The Triton block sizes a call would run with: its own configuration, else the rule of its stack.
#
# A stack prefers a tuned file where one exists for the GPU and layer. Which exist is known, what they say is not:
# such a layer counts as well tiled.


class Blocks(NamedTuple):
    """Tokens × output features of a block [call], whether the call says so, and where (1.0) a tuned file would."""

    rows: Array
    columns: Array
    known: bool
    tuned: Array


def blocks(cols: Columns, ctx: Context) -> Blocks:
    """Block sizes of each call: of the configuration that it names or that untuned kernels keep to, or the stack's."""
    tokens = cols["tokens"]
    tuned_files = np.zeros_like(tokens)
    if engine(ctx.impl) == "triton" and ctx.protocol != PROFILER_WARM:
        asked, width = version(ctx.requested or ctx.stack), cols["inter"] / cols["tp"]
        tuned_files = tuned(ctx.framework, asked, ctx.gpu.base_gpu, ctx.dtype, cols["experts"] / cols["ep"], width)
    config, untuned = dict(ctx.option("config") or ()), ctx.rule("moe_untuned")
    one = (untuned.rows, untuned.columns) if untuned else None
    if "BLOCK_SIZE_M" in config and "BLOCK_SIZE_N" in config:
        one = float(config["BLOCK_SIZE_M"]), float(config["BLOCK_SIZE_N"])
    if one:
        return Blocks(np.full_like(tokens, one[0]), np.full_like(tokens, one[1]), True, tuned_files)
    return Blocks(*_ruled(cols, ctx), False, tuned_files)


def _ruled(cols: Columns, ctx: Context) -> tuple[Array, Array]:
    """Rows and columns by the rule of the stack."""
    tokens = cols["tokens"]
    if ctx.protocol == PROFILER_WARM:
        return _pipeweave(tokens, cols["experts"], cols["hidden"], ctx.gpu.smem_kb_per_sm)
    if steps := ctx.rule("moe_blocks"):
        upto, rows, columns = np.array(steps).T
        step = np.searchsorted(upto, tokens)
        return rows[step], columns[step]
    few, many = ctx.rule("moe_blocks_by_experts")
    fewer = tokens <= cols["experts"] / cols["ep"]
    return np.where(fewer, few[0], many[0]), np.where(fewer, few[1], many[1])


def _pipeweave(tokens: Array, experts: Array, hidden: Array, smem_kb: float) -> tuple[Array, Array]:
    """The rule PipeWeave's rows were measured with, by shared memory (pipeweave.md, A.3 i)."""
    small, large = smem_kb <= 100, smem_kb > 164
    late = np.where(experts < 64, 64.0, 128.0) if small else np.full_like(tokens, 128.0 if large else 64.0)
    middle = 128.0 if small or large else 64.0
    steps = [tokens <= 128, tokens <= 256, tokens <= 512, tokens <= 2048]
    rows = np.select(steps, [np.full_like(tokens, size) for size in (16.0, 32.0, 64.0, middle)], late)
    narrow = np.where(hidden <= 1536, np.where(tokens <= 128, 16.0, 64.0), 64.0)
    return rows, narrow if small else np.full_like(tokens, 128.0)


# Grouped GEMMs as output tiles: how long whole waves of them take, padded to blocks of tokens for each expert.
#
# Libraries choose among far more tiles than the candidates here, which span the trade between padding, idle SMs and
# operand re-reads; the learned residual sees the time of each, and of the tile that the stack's own rule would take.

# tokens × output features
TILES = ((16.0, 128.0), (32.0, 128.0), (64.0, 128.0), (128.0, 128.0))
LEAST_MMA_ROWS = 16.0  # a tensor instruction works on this many rows even if fewer are real
# Where staging and multiplying take turns: shared memory is passed through more than once, and the tensor cores run at
# nearly their own rate meanwhile. Fitted to untuned Triton kernels of all generations alike.
SERIAL_PASSES, SERIAL_TENSOR = 1.5, 0.9


class MoeTile(NamedTuple):
    """One tile size for a batch: seconds of all waves over the products, and tiles of the first product an SM."""

    seconds: Array
    per_sm: Array
    padding: Array  # rows multiplied for each real one


class Tiling(NamedTuple):
    """The candidates, the tile of the stack's rule (or the call's own configuration), and the estimate."""

    candidates: tuple[MoeTile, ...]
    ruled: MoeTile
    best: Array


def tiling(work: Layer, at: MoeMachine, ruled: Blocks) -> Tiling:
    """All candidates. The estimate is the configuration where it is known or ruled, the best candidate where tuned."""
    candidates = tuple(_tile(work, np.array([rows]), columns, at) for rows, columns in TILES)
    own = _tile(work, ruled.rows, ruled.columns, at)
    fastest = np.minimum.reduce([tile.seconds for tile in candidates])
    if at.serial and not ruled.known:
        best = np.where(ruled.tuned > 0, np.minimum(fastest, own.seconds), own.seconds)
    else:
        best = own.seconds if ruled.known else fastest
    return Tiling(candidates, own, best)


def _tile(work: Layer, rows: Array, columns: Array | float, at: MoeMachine) -> MoeTile:
    blocks = work.routing.blocks(rows)
    padding = blocks * rows / work.routing.pairs
    if at.remote_pairs == "all":
        blocks = blocks * (work.carried / work.routing.pairs)
    elif at.remote_pairs == "packed":
        blocks = blocks + np.ceil((work.carried - work.routing.pairs) / rows)
    seconds = sum(_waves_s(product, blocks, rows, columns, at) for product in work.products)
    return MoeTile(np.asarray(seconds), blocks * np.ceil(work.products[0].n / columns) / at.sms, padding)


def _waves_s(product: Product, blocks: Array, rows: Array, columns: Array | float, at: MoeMachine) -> Array:
    """The longest of a tile's tensor work and its operand reads from L2 and from shared memory (or the sum of the two
    on the SM), and a fixed fill and drain, for whole waves. Small tiles starve the tensor cores of newer GPUs: shared
    memory is no faster there. Block scales follow each partial product; widening weights overlaps with it in part.
    """
    height = np.maximum(rows, LEAST_MMA_ROWS)
    tensor = 2.0 * height * columns / at.flops_per_sm
    fetched = (rows * at.operand + columns * at.weight) / at.l2_per_sm
    fed = (height + columns) * at.operand / at.smem_per_sm
    on_sm = SERIAL_TENSOR * tensor + SERIAL_PASSES * fed if at.serial else np.maximum(tensor, fed)
    on_sm = overlapped(2, on_sm + height * columns * at.scale_s, columns * at.widen_s)
    rounds = waves(blocks * np.ceil(product.n / columns) / at.sms)
    return np.asarray(rounds * (product.k * np.maximum(on_sm, fetched) + at.tile_s))

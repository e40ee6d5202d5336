"""A fused-MoE call on one rank, as numbers its formulas share: the machine, the operand types, sizes and bytes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from pipewave import stacks
from pipewave.demand import Array
from pipewave.kernels.base import Columns, Context
from pipewave.kernels.dtypes import ACTIVATION_BYTES, OPERAND_BYTES
from pipewave.kernels.residency import COLD, SERVING, l2_bytes
from pipewave.kernels.routing import Routing, routing

TENSOR_SHARE = 0.75  # of the datasheet peak that a well fed grouped GEMM sustains
DRAM_SHARE = 0.88
L2_GAIN = 1.45  # what SMs draw from L2 and their neighbours, over what a plain copy kernel measures
MULTICAST = {"hopper": 2.0**0.5, "blackwell": 2.0}  # operand tiles read once for several SMs
TILE_CYCLES = 1500.0  # filling the pipeline of a tile and draining it
LAUNCH_S, LAUNCH_CYCLES = 1.0e-6, 1500.0
KERNELS = {"all": 7.0, "w13": 1.0, "w2": 1.0}  # routing, alignment (2), two products, activation, reduction

# Weights stored in fewer bits than the product runs in: weight type → type of the product, by the activations' type.
_WEIGHT_ONLY = {"int4": "bf16", "mxfp4": "bf16"}


@dataclass(frozen=True, slots=True)
class Machine:
    """Rates in FLOP/s and bytes/s, sizes in bytes, times in seconds."""

    sms: float
    flops_per_sm: float
    l2_per_sm: float
    l2: float
    l2_bytes: float
    dram: float
    launch_s: float
    tile_s: float
    weight: float  # bytes an element
    operand: float  # bytes an element of the activations the products read


def product_dtype(ctx: Context) -> str:
    """The type the tensor cores run: narrow weights meet 16-bit activations unless `impl` names their type."""
    if ctx.dtype not in _WEIGHT_ONLY:
        return ctx.dtype
    return "fp8" if narrow_activations(ctx) else _WEIGHT_ONLY[ctx.dtype]


def narrow_activations(ctx: Context) -> bool:
    """Do fp8 activations meet 4-bit weights (w4a8)?"""
    return "mxfp8" in ctx.impl or ctx.impl.endswith("w4afp8")


@lru_cache(maxsize=4096)
def machine(ctx: Context) -> Machine:
    """Everything constant over a batch."""
    gpu, dtype = ctx.gpu, product_dtype(ctx)
    cycle = 1e-6 / gpu.sustained_clock_mhz
    return Machine(
        sms=float(gpu.sms),
        flops_per_sm=TENSOR_SHARE * gpu.peak_flops(dtype) / gpu.sms,
        l2_per_sm=L2_GAIN * MULTICAST.get(gpu.architecture, 1.0) * gpu.l2_gbps * 1e9 / gpu.sms,
        l2=gpu.l2_gbps * 1e9,
        l2_bytes=l2_bytes(gpu),
        dram=DRAM_SHARE * gpu.dram_gbps * 1e9,
        launch_s=LAUNCH_S + LAUNCH_CYCLES * cycle,
        tile_s=TILE_CYCLES * cycle,
        weight=OPERAND_BYTES[ctx.dtype],
        operand=OPERAND_BYTES[dtype],
    )


@dataclass(frozen=True, slots=True)
class Product:
    """One grouped GEMM: every active expert multiplies its tokens by its own [n, k] matrix."""

    n: Array
    k: Array

    def flops(self, pairs: Array) -> Array:
        """Two per multiply-add."""
        return 2.0 * pairs * self.n * self.k


@dataclass(frozen=True, slots=True)
class Layer:
    """A batch of calls: the rank's routing, its products, and bytes [call]."""

    part: str
    tokens: Array
    topk: Array
    hidden: Array
    inter: Array  # of one expert on this rank
    up: Array  # matrices in w13: 2 when gated
    routing: Routing
    products: tuple[Product, ...]

    @property
    def matrices(self) -> Array:
        """Elements of one expert's weights that this call uses."""
        return np.asarray(sum(product.n * product.k for product in self.products))

    @property
    def flops(self) -> Array:
        """Least arithmetic: no padding."""
        return np.asarray(sum(product.flops(self.routing.pairs) for product in self.products))

    @property
    def inputs(self) -> Array:
        """Bytes entering: the hidden states, or for w2 alone the activated pairs."""
        rows = self.routing.pairs * self.inter if self.part == "w2" else self.entering * self.hidden
        return np.asarray(ACTIVATION_BYTES * rows)

    @property
    def entering(self) -> Array:
        """Tokens with at least one local expert, at least."""
        return np.asarray(np.minimum(self.tokens, np.ceil(self.routing.pairs / self.topk)))

    @property
    def outputs(self) -> Array:
        """Bytes leaving: hidden states, or the pairs of one product alone."""
        per_pair = {"w13": self.up * self.inter, "w2": self.hidden}.get(self.part)
        return ACTIVATION_BYTES * (self.tokens * self.hidden if per_pair is None else self.routing.pairs * per_pair)


# First versions whose rows of ungated experts were measured with two matrices; earlier collectors ran three (their
# rows read 1.5 times the bytes that two matrices hold at DRAM speed).
UNGATED_SINCE = {"sglang": (0, 5, 14), "vllm": (0, 24)}


def as_measured(cols: Columns, ctx: Context) -> Columns:
    """The calls as the stack's collector ran them: old ones measured ungated experts as gated."""
    since = UNGATED_SINCE.get(ctx.framework, ())
    if ctx.protocol != "graph" or stacks.version(ctx.stack) >= since or np.all(cols["gated"] > 0):
        return cols
    return {**cols, "gated": np.ones_like(cols["gated"])}


def layer(cols: Columns, ctx: Context) -> Layer:
    """Numbers of a batch of calls. PipeWeave's rows, which define `profiler_warm`, were routed evenly."""
    part, kind = ctx.option("part", "all"), ctx.option("routing", "random")
    if ctx.protocol == "profiler_warm" and kind == "random":
        kind = "balanced"
    inter = cols["inter"] / cols["tp"]
    up = np.where(cols["gated"] > 0, 2.0, 1.0)
    first, second = Product(up * inter, cols["hidden"]), Product(cols["hidden"], inter)
    products = {"w13": (first,), "w2": (second,)}.get(part, (first, second))
    return Layer(
        part, cols["tokens"], cols["topk"], cols["hidden"], inter, up, routing(cols, kind), products
    )


def dram_share(ctx: Context, footprint: Array, capacity: float) -> Array:
    """Share of repeatedly read bytes that come from DRAM: all when cold, a smooth step around the L2's size if warm."""
    if ctx.protocol in (COLD, SERVING):
        return np.ones_like(footprint)
    return np.asarray(1.0 / (1.0 + (0.7 * capacity / np.maximum(footprint, 1.0)) ** 4))

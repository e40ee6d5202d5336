"""The Triton block sizes a call would run with: its own configuration, else the rule of its stack.

A stack prefers a tuned file where one exists for the GPU and layer. Which exist is known, what they say is not: such a
layer counts as well tiled.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipewave.kernels.base import Columns, Context
from pipewave.kernels.moe.machine import engine
from pipewave.physics.cache import PROFILER_WARM
from pipewave.physics.demand import Array
from pipewave.software.stacks import version
from pipewave.software.tuned_experts import tuned


@dataclass(frozen=True, slots=True)
class Blocks:
    """Tokens × output features of a block [call], whether the call said so itself, and where (1.0) the stack has a
    tuned file instead."""

    rows: Array
    columns: Array
    known: bool
    tuned: Array


def blocks(cols: Columns, ctx: Context) -> Blocks:
    """Block sizes of each call."""
    if one := _one_for_all(ctx):
        rows, columns = (np.full_like(cols["tokens"], size) for size in one)
        return Blocks(rows, columns, True, _tuned(cols, ctx))
    return Blocks(*_ruled(cols, ctx), False, _tuned(cols, ctx))


def _one_for_all(ctx: Context) -> tuple[float, float] | None:
    """Rows and columns of the configuration that the call names, or of the one that untuned kernels keep to."""
    config = dict(ctx.option("config") or ())
    if "BLOCK_SIZE_M" in config and "BLOCK_SIZE_N" in config:
        return float(config["BLOCK_SIZE_M"]), float(config["BLOCK_SIZE_N"])
    untuned = ctx.rule("moe_untuned")
    return (untuned["rows"], untuned["columns"]) if untuned else None


def _tuned(cols: Columns, ctx: Context) -> Array:
    if engine(ctx.impl) != "triton" or ctx.protocol == PROFILER_WARM:
        return np.zeros_like(cols["tokens"])
    asked = version(ctx.requested or ctx.stack)
    width = cols["inter"] / cols["tp"]
    return tuned(ctx.framework, asked, ctx.gpu.base_gpu, ctx.dtype, cols["experts"] / cols["ep"], width)


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

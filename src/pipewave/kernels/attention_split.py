"""How implementations split a long KV sequence over SMs, and what they pay to merge the parts.

All counts are in blocks of the engine's `decode_kv` keys (or its prefill tile). The rules are those of the public
sources: FlashAttention 3 sizes parts in its `prepare_varlen_num_blocks` kernel, FlashAttention 2 searches a number of
parts that fills whole waves, FlashInfer the smallest part whose grid still fits, XQA bounds the parts of one sequence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pipewave.demand import Array
from pipewave.kernels.attention_engines import Engine

FULL = 0.8  # of the SMs in use: FlashAttention splits no further
NEAR_BEST = 0.85  # of the best wave efficiency: FlashAttention 2 takes the fewest parts that reach it


@dataclass(frozen=True, slots=True)
class Grid:
    """What a split is decided on, per call: `units` row tiles × KV heads of one request, summed or of the largest."""

    sms: int
    requests: Array
    units: Array  # of one request
    steps: Array  # blocks × units of all requests
    deepest: Array  # most blocks of a request
    group: Array
    windowed: Array


def part_blocks(engine: Engine, grid: Grid) -> Array:
    """Blocks of one part, at most; `grid.deepest` or more where nothing is split."""
    return np.maximum(_RULES.get(engine.name, _even)(grid), 1.0)


def _whole_waves(grid: Grid, slots: float, most: Array | float = np.inf) -> Array:
    """Parts of equal size, as many as fit one wave."""
    parts = np.clip(np.floor(slots / (grid.requests * grid.units)), 1.0, most)
    return np.asarray(np.ceil(grid.steps / (grid.requests * grid.units * parts)))


def _even(grid: Grid) -> Array:
    return _whole_waves(grid, grid.sms)


def _fa3(grid: Grid) -> Array:
    splits = (grid.units < FULL * grid.sms) & (grid.deepest > 4)
    return np.where(splits, np.ceil(1.1 * grid.steps / grid.sms), grid.deepest)


def _fa2(grid: Grid) -> Array:
    share = 2 * grid.sms / (grid.requests * grid.units)  # parts that fill one wave of two blocks per SM
    parts = np.ceil(3 * NEAR_BEST * share)
    for waves in (2, 1):
        fewer = np.ceil(waves * NEAR_BEST * share)
        parts = np.where(fewer <= waves * share, fewer, parts)
    split = (share * FULL > 1) & (grid.group > 1) & ~grid.windowed
    return np.where(split, np.ceil(grid.deepest / np.maximum(parts, 1.0)), grid.deepest)


def _flashinfer(grid: Grid) -> Array:
    return np.maximum(_whole_waves(grid, 4 * grid.sms), 2.0)


def _xqa(grid: Grid) -> Array:
    most = np.sqrt(4.0 * grid.deepest)
    parts = np.clip(8 * grid.sms / (grid.requests * grid.units), 1.0, most)
    return np.asarray(np.ceil(grid.deepest / parts))


def _triton(grid: Grid) -> Array:
    return _whole_waves(grid, 2 * grid.sms, 8.0)


def _unified(grid: Grid) -> Array:
    return np.where(grid.requests * grid.units < 128, np.ceil(grid.deepest / 16), grid.deepest)


_RULES: dict[str, Callable[[Grid], Array]] = {
    "fa2": _fa2,
    "fa3": _fa3,
    "flashinfer": _flashinfer,
    "fmha": _xqa,
    "triton": _triton,
    "unified": _unified,
}

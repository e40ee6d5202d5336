"""How implementations split a long KV sequence over SMs.

The rules are those of the public sources: FlashAttention 3 sizes parts in its `prepare_varlen_num_blocks` kernel
(checked against the kernels of 3,981 measured calls: it splits exactly when this rule says so), FlashAttention 2 looks
for the fewest parts that fill whole waves, FlashInfer for the smallest part whose grid still fits, XQA bounds the parts
of one sequence and sizes them before it applies a window.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pipewave.demand import Array

FULL = 0.8  # of the SMs in use: FlashAttention splits no further
FEWEST_BLOCKS = 4  # that FlashAttention 3 never splits
NEAR_BEST = 0.85  # of the best wave efficiency: FlashAttention 2 takes the fewest parts that reach it


@dataclass(frozen=True, slots=True)
class Grid:
    """What a split is decided on, per call. Blocks are KV tiles of the engine."""

    sms: int
    requests: Array
    units: Array  # row tiles × KV heads of one request (of the largest)
    steps: Array  # blocks × units of all requests
    deepest: Array  # most blocks that a request visits
    history: Array  # most blocks that a request has, window or not
    group: Array
    windowed: Array  # 0 or 1

    @property
    def tasks(self) -> Array:
        """Thread blocks when nothing is split."""
        return self.requests * self.units


def part_blocks(engine: str, grid: Grid) -> Array:
    """Blocks of one part, at most; as many as the deepest request has where nothing is split."""
    return np.clip(_RULES.get(engine, _even)(grid), 1.0, np.maximum(grid.deepest, grid.history))


def _whole_waves(grid: Grid, slots: float, most: float = np.inf) -> Array:
    """Parts of equal size, as many as fit one wave."""
    parts = np.clip(np.floor(slots / grid.tasks), 1.0, most)
    return np.asarray(np.ceil(grid.steps / (grid.tasks * parts)))


def _even(grid: Grid) -> Array:
    return _whole_waves(grid, grid.sms)


def fa3_splits(grid: Grid) -> Array:
    """Whether FlashAttention 3 launches its splitting variant and the kernel that merges."""
    return np.asarray((grid.units < FULL * grid.sms) & (grid.deepest > FEWEST_BLOCKS))


def _fa3(grid: Grid) -> Array:
    return np.where(fa3_splits(grid), np.ceil(1.1 * grid.steps / grid.sms), grid.deepest)


def _fa2(grid: Grid) -> Array:
    share = 2 * grid.sms / grid.tasks  # parts that fill one wave of two blocks per SM
    parts = np.ceil(3 * NEAR_BEST * share)
    for waves in (2, 1):
        fewer = np.ceil(waves * NEAR_BEST * share)
        parts = np.where(fewer <= waves * share, fewer, parts)
    splits = (share * FULL > 1) & (grid.group > 1) & (grid.windowed == 0)
    return np.where(splits, np.ceil(grid.deepest / np.maximum(parts, 1.0)), grid.deepest)


def _flashinfer(grid: Grid) -> Array:
    return np.maximum(_whole_waves(grid, 4 * grid.sms), 2.0)


def _xqa(grid: Grid) -> Array:
    most = np.sqrt(4.0 * grid.history)
    parts = np.clip(np.floor(8 * grid.sms / grid.tasks), 1.0, most)
    return np.asarray(np.ceil(grid.history / parts))


def _triton(grid: Grid) -> Array:
    return _whole_waves(grid, 2 * grid.sms, 8.0)


def _unified(grid: Grid) -> Array:
    return np.where(grid.tasks < 128, np.ceil(grid.deepest / 16), grid.deepest)


_RULES: dict[str, Callable[[Grid], Array]] = {
    "fa2": _fa2,
    "fa3": _fa3,
    "flashinfer": _flashinfer,
    "fmha": _xqa,
    "triton": _triton,
    "unified": _unified,
}

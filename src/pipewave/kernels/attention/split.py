"""How implementations split a long KV sequence over SMs.

The rules are those of the public sources: FlashAttention 3 sizes parts in its `prepare_varlen_num_blocks` kernel
(checked against the kernels of 3,981 measured calls: it splits exactly when this rule says so), FlashAttention 2 looks
for the fewest parts that fill whole waves, FlashInfer for the smallest part whose grid still fits, XQA bounds the parts
of one sequence and sizes them before it applies a window.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from pipewave.kernels.attention.tasks import Amount
from pipewave.physics.arith import Arith

FULL = 0.8  # of the SMs in use: FlashAttention splits no further
FEWEST_BLOCKS = 4  # that FlashAttention 3 never splits
NEAR_BEST = 0.85  # of the best wave efficiency: FlashAttention 2 takes the fewest parts that reach it
MOST_PARTS = 128.0  # that FlashAttention makes of one sequence


@dataclass(frozen=True, slots=True)
class Grid:
    """What a split is decided on, per call. Blocks are KV tiles of the engine."""

    sms: float
    requests: Amount
    units: Amount  # row tiles × KV heads of one request (of the largest)
    steps: Amount  # blocks × units of all requests
    deepest: Amount  # most blocks that a request visits
    history: Amount  # most blocks that a request has, window or not
    group: Amount
    windowed: Amount  # 0 where all keys are seen
    alone: Amount  # whether a kernel that takes heads one by one runs
    xp: Arith

    @property
    def tasks(self) -> Amount:
        """Thread blocks when nothing is split."""
        return self.requests * self.units


def part_blocks(rule: str, grid: Grid) -> Amount:
    """Blocks of one part, at most; as many as the deepest request has where nothing is split."""
    xp = grid.xp
    return xp.minimum(xp.maximum(_RULES[rule](grid), 1.0), xp.maximum(grid.deepest, grid.history))


def _whole_waves(grid: Grid, slots: float, most: float = math.inf) -> Amount:
    """Parts of equal size, as many as fit one wave."""
    xp = grid.xp
    parts = xp.minimum(xp.maximum(xp.floor(slots / grid.tasks), 1.0), most)
    return xp.ceil(grid.steps / (grid.tasks * parts))


def fa3_splits(grid: Grid) -> Amount:
    """Whether FlashAttention 3 launches its splitting variant and the kernel that merges."""
    return (grid.units < FULL * grid.sms) & (grid.deepest > FEWEST_BLOCKS)


def fewest_parts(share: Amount, blocks: Amount, xp: Arith) -> Amount:
    """FlashAttention's search: the fewest parts whose waves are nearly as full as the fullest.

    `share` is the number of parts that fills one wave, `blocks` how many there are to deal out.
    """
    most = xp.minimum(blocks, MOST_PARTS)
    parts = xp.ceil(3 * NEAR_BEST * share)
    for waves in (2, 1):
        fewer = xp.ceil(waves * NEAR_BEST * share)
        parts = xp.where(fewer <= waves * share, fewer, parts)
    parts = xp.where(most < share, xp.ceil(NEAR_BEST * most), parts)  # no wave can be filled: nearly all it may
    return xp.minimum(parts, most)


def fa3_part(steps: Amount, units: Amount, deepest: Amount, sms: float, xp: Arith) -> Amount:
    """Blocks of a part where FlashAttention 3 splits: an SM's share of all, in no more parts than its search allows."""
    return xp.maximum(xp.ceil(1.1 * steps / sms), xp.ceil(deepest / fewest_parts(sms / units, deepest, xp)))


def _fa2(grid: Grid) -> Amount:
    share = 2 * grid.sms / grid.tasks  # two blocks per SM
    parts = fewest_parts(share, grid.deepest, grid.xp)
    splits = (share * FULL > 1) & (grid.group > 1) & (grid.windowed == 0)
    return grid.xp.where(splits, grid.xp.ceil(grid.deepest / parts), grid.deepest)


def _xqa(grid: Grid) -> Amount:
    xp = grid.xp
    most = (4.0 * grid.history) ** 0.5
    parts = xp.minimum(xp.maximum(xp.floor(8 * grid.sms / grid.tasks), 1.0), most)
    return xp.where(grid.alone, _whole_waves(grid, grid.sms), xp.ceil(grid.history / parts))


_RULES: dict[str, Callable[[Grid], Amount]] = {
    "even": lambda grid: _whole_waves(grid, grid.sms),
    "fa2": _fa2,
    "fa3": lambda grid: grid.xp.where(
        fa3_splits(grid), fa3_part(grid.steps, grid.units, grid.deepest, grid.sms, grid.xp), grid.deepest
    ),
    "flashinfer": lambda grid: grid.xp.maximum(_whole_waves(grid, 4 * grid.sms), 2.0),
    "none": lambda grid: grid.deepest,
    "triton": lambda grid: _whole_waves(grid, 2 * grid.sms, 8.0),
    "unified": lambda grid: grid.xp.where(grid.tasks < 128, grid.xp.ceil(grid.deepest / 16), grid.deepest),
    "xqa": _xqa,
}
RULES = tuple(_RULES)

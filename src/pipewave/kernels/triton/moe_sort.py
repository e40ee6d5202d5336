"""Sort the (token, choice) pairs of a MoE layer by expert, and cut each expert's rows into blocks, on the GPU.

The sorted rows are dense: no expert is padded, so one order serves both products whatever their tiles. What a product
needs to know about a block of rows lies in a small table: its expert and its first row. The host never learns how many
blocks there are.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

CHUNK = 1024  # pairs one program counts and places
ALIGN = 4  # integers, 16 bytes: what every part of the workspace starts at a multiple of
ALONE = 4096  # up to so many pairs one program does everything


class Blocks(NamedTuple):
    """Blocks of rows, int32: `experts`, `rows` [bound]: of each, and `used` [1]: how many."""

    experts: Any
    rows: Any
    used: Any


class Sorted(NamedTuple):
    """`order` [pairs]: pair numbers by expert; `ends` [experts]: first row behind an expert's own; a table of blocks
    for each block size asked for. All int32."""

    order: Any
    ends: Any
    blocks: tuple[Blocks, ...]


@triton.jit
def _cut(count, start, experts, rows, used, BINS: tl.constexpr, WIDE: tl.constexpr, BLOCK_M: tl.constexpr):
    """Write the table of blocks for one block size."""
    expert = tl.arange(0, BINS)[:, None]
    blocks = tl.cdiv(count, BLOCK_M)
    tl.store(used, tl.sum(blocks, 0))
    at = (tl.cumsum(blocks, 0) - blocks)[:, None]
    for first in range(0, tl.max(blocks, 0), WIDE):
        j = first + tl.arange(0, WIDE)[None, :]
        mine = j < blocks[:, None]
        tl.store(experts + at + j, expert + tl.zeros_like(j), mask=mine)
        tl.store(rows + at + j, start[:, None] + j * BLOCK_M, mask=mine)


@triton.jit
def _lay(counts, cursor, ends, experts, rows, used, bound, BINS: tl.constexpr, WIDE: tl.constexpr,
         UP_M: tl.constexpr, DOWN_M: tl.constexpr):  # fmt: skip
    """Lay the experts' rows one behind the other and cut them into blocks, once for each product."""
    expert = tl.arange(0, BINS)
    # Another program may have counted last: not from this SM's own cache.
    count = tl.load(counts + expert, volatile=True)
    end = tl.cumsum(count, 0)
    tl.store(cursor + expert, end - count)
    tl.store(ends + expert, end)
    _cut(count, end - count, experts, rows, used, BINS, WIDE, UP_M)
    _cut(count, end - count, experts + bound, rows + bound, used + 4, BINS, WIDE, DOWN_M)


@triton.jit
def _place(chosen, order, cursor, pairs, first, CHUNK: tl.constexpr):
    pair = first + tl.arange(0, CHUNK)
    real = pair < pairs
    expert = tl.load(chosen + pair, mask=real, other=0)
    row = tl.atomic_add(cursor + expert, 1, mask=real, sem="relaxed")
    tl.store(order + row, pair, mask=real)


@triton.jit(do_not_specialize=["pairs", "E", "bound"])
def count(chosen, counts, done, cursor, order, ends, experts, rows, used, pairs, E, bound,
          BINS: tl.constexpr, WIDE: tl.constexpr, UP_M: tl.constexpr, DOWN_M: tl.constexpr, CHUNK: tl.constexpr,
          ALONE: tl.constexpr):  # fmt: skip
    """Count the pairs of each expert; the last to finish cuts the blocks. ALONE: and place, being alone."""
    bins = tl.arange(0, BINS)
    found = tl.zeros((BINS,), dtype=tl.int32)
    for first in range(tl.program_id(0) * CHUNK, pairs, tl.num_programs(0) * CHUNK):
        pair = first + tl.arange(0, CHUNK)
        # Beyond the end counts for a bin that no expert has.
        found += tl.histogram(tl.load(chosen + pair, mask=pair < pairs, other=BINS - 1), BINS)
    found = tl.where(bins < E, found, 0)
    if ALONE:
        tl.store(counts + bins, found)
        tl.debug_barrier()
        _lay(counts, cursor, ends, experts, rows, used, bound, BINS, WIDE, UP_M, DOWN_M)
        tl.debug_barrier()
        for first in range(0, pairs, CHUNK):
            _place(chosen, order, cursor, pairs, first, CHUNK)
    else:
        tl.atomic_add(counts + bins, found, mask=found > 0)
        tl.debug_barrier()
        if tl.atomic_add(done, 1) == tl.num_programs(0) - 1:
            _lay(counts, cursor, ends, experts, rows, used, bound, BINS, WIDE, UP_M, DOWN_M)


@triton.jit(do_not_specialize=["pairs"])
def place(chosen, order, cursor, pairs, CHUNK: tl.constexpr):
    """Give each pair the next free row of its expert."""
    _place(chosen, order, cursor, pairs, tl.program_id(0) * CHUNK, CHUNK)


def bound(pairs: int, experts: int, block_m: int) -> int:
    """Blocks that a routing can need at most: each expert that is chosen may leave one partly empty."""
    return (pairs + min(pairs, experts) * (block_m - 1)) // block_m


def sort(chosen: Any, experts: int, up_m: int, down_m: int) -> Sorted:
    """Sort int32 `chosen` [tokens, top_k] of expert numbers, with blocks of two sizes.

    One launch for few pairs, three otherwise.
    """
    import torch

    pairs, bins = chosen.numel(), triton.next_power_of_2(experts + 1)
    most = _whole(bound(pairs, experts, min(up_m, down_m)))
    alone = pairs <= ALONE
    # Counts and the ticket start at zero; one program alone needs no zeros.
    zeros = (torch.empty if alone else torch.zeros)(bins + ALIGN, dtype=torch.int32, device=chosen.device)
    sizes = [_whole(pairs), 2 * most, 2 * most, _whole(bins), _whole(bins), 2 * ALIGN]
    room = torch.empty(sum(sizes), dtype=torch.int32, device=chosen.device)
    order, expert_of, row_of, ends, cursor, used = room.split(sizes)
    count[(1 if alone else min(64, -(-pairs // CHUNK)),)](
        chosen, zeros, zeros[bins:], cursor, order, ends, expert_of, row_of, used, pairs, experts, most,
        BINS=bins, WIDE=max(1, 2048 // bins), UP_M=up_m, DOWN_M=down_m, CHUNK=CHUNK, ALONE=alone, num_warps=8,
    )  # fmt: skip
    if not alone:
        place[(-(-pairs // CHUNK),)](chosen, order, cursor, pairs, CHUNK=CHUNK, num_warps=8)
    cut = zip((up_m, down_m), expert_of.split(most), row_of.split(most), used.split(ALIGN), strict=True)
    return Sorted(order[:pairs], ends, tuple(Blocks(e[: bound(pairs, experts, m)], r, u[:1]) for m, e, r, u in cut))


def _whole(count: int) -> int:
    """Round up so that what follows is aligned: the compiler makes another binary for pointers that are not."""
    return -(-count // ALIGN) * ALIGN

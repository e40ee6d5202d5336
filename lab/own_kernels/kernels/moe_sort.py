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
ALONE = 2048  # up to so many pairs one program does everything
PARTS = 64  # programs that count, at most; each hands out rows of its own, or all would queue for few addresses


class Blocks(NamedTuple):
    """Blocks of rows, int32: `experts`, `rows` [bound]: of each, and `used` [1]: how many."""

    experts: Any
    rows: Any
    used: Any


class Sorted(NamedTuple):
    """`order` [pairs]: pair numbers by expert; `ends` [experts]: first row behind an expert's own; a table of blocks
    for each block size asked for. All int32.
    """

    order: Any
    ends: Any
    blocks: tuple[Blocks, ...]


@triton.jit
def _cut(count, start, experts, rows, used, block_m, BINS: tl.constexpr, WIDE: tl.constexpr):
    """Write the table of blocks for one block size."""
    expert = tl.arange(0, BINS)[:, None]
    blocks = tl.cdiv(count, block_m)
    tl.store(used, tl.sum(blocks, 0))
    at = (tl.cumsum(blocks, 0) - blocks)[:, None]
    for first in range(0, tl.max(blocks, 0), WIDE):
        j = first + tl.arange(0, WIDE)[None, :]
        mine = j < blocks[:, None]
        tl.store(experts + at + j, expert + tl.zeros_like(j), mask=mine)
        tl.store(rows + at + j, start[:, None] + j * block_m, mask=mine)


@triton.jit
def _lay(counts, cursor, ends, experts, rows, used, parts, up_m, down_m, bound,
         BINS: tl.constexpr, WIDE: tl.constexpr, PARTS: tl.constexpr):  # fmt: skip
    """Lay the experts' rows one behind the other, each part's own share in turn, and cut them into blocks twice."""
    expert = tl.arange(0, BINS)
    part = tl.arange(0, PARTS)[:, None]
    at = part * BINS + expert[None, :]
    # Other programs have written: not from this SM's own cache.
    each = tl.load(counts + at, mask=part < parts, other=0, volatile=True)
    count = tl.sum(each, 0)
    end = tl.cumsum(count, 0)
    tl.store(cursor + at, (end - count)[None, :] + tl.cumsum(each, 0) - each)
    tl.store(ends + expert, end)
    _cut(count, end - count, experts, rows, used, up_m, BINS, WIDE)
    _cut(count, end - count, experts + bound, rows + bound, used + 4, down_m, BINS, WIDE)


@triton.jit
def _place(chosen, order, cursor, pairs, first, CHUNK: tl.constexpr):
    pair = first + tl.arange(0, CHUNK)
    real = pair < pairs
    expert = tl.load(chosen + pair, mask=real, other=0)
    row = tl.atomic_add(cursor + expert, 1, mask=real, sem="relaxed")
    tl.store(order + row, pair, mask=real)


@triton.jit(do_not_specialize=["pairs", "E", "up_m", "down_m", "bound"])
def count(chosen, counts, done, cursor, order, ends, experts, rows, used, pairs, E, up_m, down_m, bound,
          BINS: tl.constexpr, WIDE: tl.constexpr, PARTS: tl.constexpr, CHUNK: tl.constexpr):  # fmt: skip
    """Count the pairs of each expert, a part a program; the last to finish cuts the blocks, and places if alone."""
    bins = tl.arange(0, BINS)
    found = tl.zeros((BINS,), dtype=tl.int32)
    for first in range(tl.program_id(0) * CHUNK, pairs, tl.num_programs(0) * CHUNK):
        pair = first + tl.arange(0, CHUNK)
        # Beyond the end counts for a bin that no expert has.
        found += tl.histogram(tl.load(chosen + pair, mask=pair < pairs, other=BINS - 1), BINS)
    tl.store(counts + tl.program_id(0) * BINS + bins, tl.where(bins < E, found, 0))
    tl.debug_barrier()
    if PARTS == 1:
        _lay(counts, cursor, ends, experts, rows, used, 1, up_m, down_m, bound, BINS, WIDE, PARTS)
        tl.debug_barrier()
        for first in range(0, pairs, CHUNK):
            _place(chosen, order, cursor, pairs, first, CHUNK)
    elif tl.atomic_add(done, 1) == tl.num_programs(0) - 1:
        _lay(counts, cursor, ends, experts, rows, used, tl.num_programs(0), up_m, down_m, bound, BINS, WIDE, PARTS)


@triton.jit(do_not_specialize=["pairs", "parts"])
def place(chosen, order, cursor, pairs, parts, BINS: tl.constexpr, CHUNK: tl.constexpr):
    """Give each pair the next free row of its expert, in the share of the part that counted it."""
    chunk = tl.program_id(0)
    _place(chosen, order, cursor + chunk % parts * BINS, pairs, chunk * CHUNK, CHUNK)


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
    chunks, held = -(-pairs // CHUNK), max(1, min(PARTS, 16_384 // bins))
    alone = pairs <= ALONE
    parts = 1 if alone else min(held, chunks)
    table = bins * (1 if alone else held)
    sizes = [_whole(pairs), 2 * most, 2 * most, table, table, _whole(bins), 2 * ALIGN]
    room = torch.empty(sum(sizes), dtype=torch.int32, device=chosen.device)
    order, expert_of, row_of, counts, cursor, ends, used = room.split(sizes)
    done = used if alone else torch.zeros(1, dtype=torch.int32, device=chosen.device)
    count[(parts,)](
        chosen, counts, done, cursor, order, ends, expert_of, row_of, used, pairs, experts, up_m, down_m, most,
        BINS=bins, WIDE=max(1, 2048 // bins), PARTS=1 if alone else held, CHUNK=CHUNK, num_warps=8,
    )  # fmt: skip
    if not alone:
        place[(chunks,)](chosen, order, cursor, pairs, parts, BINS=bins, CHUNK=CHUNK, num_warps=8)
    cut = zip((up_m, down_m), expert_of.split(most), row_of.split(most), used.split(ALIGN), strict=True)
    return Sorted(order[:pairs], ends, tuple(Blocks(e[: bound(pairs, experts, m)], r, u[:1]) for m, e, r, u in cut))


def _whole(count: int) -> int:
    """Round up so that what follows is aligned: the compiler makes another binary for pointers that are not."""
    return -(-count // ALIGN) * ALIGN

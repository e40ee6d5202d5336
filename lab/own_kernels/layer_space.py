"""Configurations of the two products of the fused MoE layer (`pipewave.triton_kernels.moe_experts`), a few dozen each.

Chosen from the full product (121 and 186 binaries, timed on an H200 at 39 layers): members that are within 1 % of the
best of all somewhere. Tiles of 16 and 32 rows are for layers that stream weights, larger ones for the tensor cores.
"""

from __future__ import annotations

Config = tuple[int, ...]
TILE = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "num_warps", "num_stages", "SWAP")
UP_NAMES = (*TILE, "GROUP_M", "LOOP")  # LOOP: a program a multiprocessor
DOWN_NAMES = (*TILE, "ADD", "LOOP", "GROUP_M")  # ADD: to the output, at once; LOOP is part of the binary
UP_COMPILED, DOWN_COMPILED = 6, 8
BAND = 8  # rows of tiles that share columns in the L2

_UP = (
    (16, 64, 128, 4, 5, 1), (16, 64, 128, 4, 3, 1), (16, 64, 128, 4, 4, 0), (16, 32, 128, 4, 5, 0),
    (16, 64, 64, 4, 5, 1),
    (32, 128, 128, 4, 3, 1), (32, 128, 64, 8, 3, 1), (32, 64, 64, 4, 5, 1), (32, 64, 128, 4, 3, 1),
    (64, 128, 64, 4, 5, 0), (64, 128, 64, 8, 5, 0), (64, 64, 64, 4, 4, 0), (64, 128, 64, 8, 4, 1),
    (128, 128, 64, 8, 4, 0), (128, 128, 64, 8, 3, 0), (128, 64, 64, 8, 3, 0), (128, 64, 128, 4, 3, 0),
)  # fmt: skip
_STREAM = (
    (16, 64, 128, 4, 5, 1), (16, 64, 64, 4, 3, 1), (16, 128, 64, 4, 3, 0), (16, 128, 128, 4, 3, 1),
    (32, 64, 128, 4, 3, 1),
)  # fmt: skip
_EITHER = (
    (16, 64, 64, 4, 4, 0), (16, 128, 128, 4, 3, 0), (32, 128, 128, 4, 2, 0), (32, 128, 64, 4, 3, 0),
    (64, 128, 64, 4, 3, 0), (64, 128, 64, 8, 3, 0), (128, 128, 64, 4, 3, 0), (128, 128, 64, 8, 3, 0),
    (128, 256, 64, 8, 4, 0),
)  # fmt: skip
_LOOPING = (
    (64, 256, 64, 4, 4, 0), (128, 128, 64, 8, 4, 0), (128, 256, 64, 8, 3, 0), (128, 256, 64, 8, 4, 0),
)  # fmt: skip


def up() -> tuple[Config, ...]:
    """Every tile in both orders; the larger ones also as a loop."""
    plain = [(*tile, group, 0) for tile in _UP for group in (1, BAND)]
    return (*plain, *((*tile, BAND, 1) for tile in _UP if tile[0] >= 64))


def down() -> tuple[Config, ...]:
    """As `up`; tiles that may add do so or leave the sum to a kernel of its own."""
    tiles = [*((tile, 0) for tile in _STREAM), *((tile, add) for tile in _EITHER for add in (0, 1))]
    plain = [(*tile, add, 0, group) for tile, add in tiles for group in (1, BAND)]
    return (*plain, *((*tile, add, 1, BAND) for tile in _LOOPING for add in (0, 1)))

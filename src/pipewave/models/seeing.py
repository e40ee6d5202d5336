"""Kernels of a vision tower: patches in, tokens of the language model out."""

from __future__ import annotations

from collections.abc import Iterator

from pipewave.calls.families import Attention, Gemm, SiluAndMul, all_reduce
from pipewave.errors import BadInput
from pipewave.models.stage import ACT, Stage, Use
from pipewave.models.vision import Tower


def see(stage: Stage, images: int) -> Iterator[Use]:
    """All kernels for `images` images; layers are cut over the tensor group where its heads and widths divide."""
    tower = stage.model.tower
    if tower is None:
        raise BadInput(f"images = {images}: {stage.model.name} has no vision tower", field="images")
    tp = stage.tp if tower.heads % stage.tp == 0 and tower.inter % stage.tp == 0 else 1
    rows, hidden = images * tower.patches, stage.model.hidden
    yield _product(stage, "patch_embedding", rows, tower.hidden, 3 * tower.patch**2)
    for use in _layer(stage, tower, images, tp):
        yield Use(use.name, use.call, use.count * tower.layers)
    tokens, merged = images * tower.tokens, tower.hidden * tower.merge**2
    yield stage.norm("tower_norm", tower.hidden, rows)
    yield _product(stage, "merger_in", tokens, merged, merged)
    yield _product(stage, "merger_out", tokens, hidden, merged)


def _product(stage: Stage, name: str, rows: int, out: int, inp: int) -> Use:
    return Use(name, Gemm(rows, max(out, 1), max(inp, 1), dtype=stage.dtype))


def _layer(stage: Stage, tower: Tower, images: int, tp: int) -> Iterator[Use]:
    """One block: attention within each image, then a plain or gated feed-forward block."""
    rows, width, heads = images * tower.patches, tower.hidden, tower.heads // tp
    inter, size = tower.inter // tp, rows * tower.hidden * ACT
    yield stage.norm("tower_norm", width, rows)
    yield _product(stage, "tower_qkv", rows, 3 * width // tp, width)
    yield stage.streaming("tower_rope", 2 * size / tp, 2 * size / tp)
    lens = (tower.patches,) * images
    yield Use(
        "tower_attention", Attention(lens, lens, heads, heads, width // tower.heads, causal=False, dtype=stage.dtype)
    )
    yield _product(stage, "tower_out", rows, width, width // tp)
    yield from _reduce(stage, size, tp)
    yield stage.norm("tower_norm", width, rows, fused_add=True)
    yield _product(stage, "tower_up", rows, inter * (2 if tower.gated else 1), width)
    if tower.gated:
        yield Use("tower_activation", SiluAndMul(rows, inter, dtype=stage.dtype))
    else:
        yield stage.streaming("tower_activation", rows * inter * ACT, rows * inter * ACT)
    yield _product(stage, "tower_down", rows, width, inter)
    yield from _reduce(stage, size, tp)


def _reduce(stage: Stage, size: int, tp: int) -> Iterator[Use]:
    if tp > 1:
        yield Use("tower_all_reduce", all_reduce(size, tp, nodes=stage.nodes, dtype=stage.dtype))

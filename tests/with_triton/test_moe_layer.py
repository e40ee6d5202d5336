"""The kernels of the fused MoE layer against float64, in the interpreter: both paths, odd sizes, unused experts."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from lab.own_kernels import fused_layer  # noqa: E402
from lab.own_kernels.kernels import moe_experts, moe_sort  # noqa: E402
from pipewave.errors import BadInput  # noqa: E402

# The interpreter multiplies bf16 as raw integers; fp16 takes the same path through the kernels.
DTYPE = torch.float16
CLOSE = 2e-3  # relative, in the 2-norm
LAYERS = [
    (5, 8, 2, 64, 48),
    (37, 5, 3, 80, 40),
    (1, 16, 4, 96, 32),
    (64, 4, 1, 32, 56),
]  # tokens, experts, k, hidden, inter
FEW_TOKENS = [(5, 8, 2, 64, 48), (7, 5, 3, 80, 40), (1, 16, 4, 96, 32), (11, 4, 1, 32, 56)]
TILES = [
    {"BLOCK_M": 16, "BLOCK_N": 32, "BLOCK_K": 32, "SWAP": 1, "ADD": 0},
    {"BLOCK_M": 16, "BLOCK_N": 32, "BLOCK_K": 16, "SWAP": 0, "ADD": 1},
    {"BLOCK_M": 32, "BLOCK_N": 16, "BLOCK_K": 32, "SWAP": 0, "ADD": 0},
]


def layer(tokens: int, experts: int, top_k: int, hidden: int, inter: int) -> tuple[Any, ...]:
    """x, w13, w2, weights, chosen; with more than two experts the last is never chosen."""
    torch.manual_seed(tokens)
    x, w13 = torch.randn(tokens, hidden), torch.randn(experts, 2 * inter, hidden) / hidden**0.5
    w2, weights = torch.randn(experts, hidden, inter) / inter**0.5, torch.rand(tokens, top_k)
    chosen = torch.stack([torch.randperm(max(top_k, experts - 1))[:top_k] for _ in range(tokens)]).int()
    return x.to(DTYPE), w13.to(DTYPE), w2.to(DTYPE), weights, chosen


def expected(x: Any, w13: Any, w2: Any, weights: Any, chosen: Any) -> Any:
    gate, up = torch.einsum("th,tjnh->tjn", x.double(), w13.double()[chosen.long()]).chunk(2, -1)
    each = torch.einsum("tjn,tjhn->tjh", torch.nn.functional.silu(gate) * up, w2.double()[chosen.long()])
    return (each * weights.double()[..., None]).sum(1)


def assert_close(found: Any, wanted: Any) -> None:
    assert torch.isfinite(found).all()
    assert float((found.double() - wanted).norm() / wanted.norm()) < CLOSE


def unwritten(*size: int) -> Any:
    return torch.full(size, float("nan"), dtype=DTYPE)


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize(("pairs", "experts"), [(1, 1), (7, 3), (200, 5), (1300, 16)])
def test_sort_is_a_permutation_by_expert_and_blocks_cover_every_row_once(
    pairs: int, experts: int, alone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moe_sort, "ALONE", 1 << 20 if alone else 0)
    torch.manual_seed(pairs)
    chosen = torch.randint(0, max(1, experts - 1), (pairs, 1)).int()
    found = moe_sort.sort(chosen, experts, 16, 64)
    order = found.order.long()
    assert order.sort().values.equal(torch.arange(pairs))
    assert chosen.view(-1)[order].equal(chosen.view(-1).sort().values)
    for size, blocks in zip((16, 64), found.blocks, strict=True):
        used, seen = int(blocks.used), []
        assert used <= blocks.experts.numel()
        for expert, row in zip(blocks.experts[:used].tolist(), blocks.rows[:used].tolist(), strict=True):
            mine = list(range(row, min(row + size, int(found.ends[expert]))))
            assert {int(e) for e in chosen.view(-1)[order[mine]]} == {expert}
            seen += mine
        assert seen == list(range(pairs))


@pytest.mark.parametrize("tile", TILES, ids=["swapped", "adds", "plain"])
@pytest.mark.parametrize("size", LAYERS, ids=str)
@pytest.mark.parametrize("loop", [1, 0], ids=["persistent", "a-tile-each"])
def test_sorted_path(size: tuple[int, ...], tile: dict[str, int], loop: int) -> None:
    x, w13, w2, weights, chosen = layer(*size)
    tokens, experts, top_k, hidden, inter = size
    config = {**tile, "GROUP_M": 3, "LOOP": loop, "num_warps": 4, "num_stages": 2}
    order = moe_sort.sort(chosen, experts, config["BLOCK_M"], config["BLOCK_M"])
    y = moe_experts.launch_up(x, w13, unwritten(tokens * top_k, inter), order, top_k, config, 3)
    if config["ADD"]:
        out = torch.zeros(tokens, hidden, dtype=DTYPE)
        moe_experts.launch_down(y, w2, out, weights, order, top_k, config, 3)
    else:
        part = unwritten(tokens * top_k, hidden)
        moe_experts.launch_down(y, w2, part, weights, order, top_k, config, 3)
        out = moe_experts.launch_total(part, unwritten(tokens, hidden), top_k)
    assert_close(out, expected(x, w13, w2, weights, chosen))


@pytest.mark.parametrize("size", FEW_TOKENS, ids=str)
def test_few_tokens_path(size: tuple[int, ...]) -> None:
    x, w13, w2, weights, chosen = layer(*size)
    tokens, _, top_k, hidden, inter = size
    config = {"BLOCK_N": 8, "BLOCK_K": 32, "num_warps": 4}
    y = moe_experts.launch_few_up(x, w13, unwritten(tokens * top_k, inter), chosen, config)
    out = moe_experts.launch_few_down(y, w2, unwritten(tokens, hidden), weights, chosen, config)
    assert_close(out, expected(x, w13, w2, weights, chosen))


@pytest.mark.parametrize("size", LAYERS, ids=str)
@pytest.mark.parametrize("tile", TILES, ids=["swapped", "adds", "plain"])
def test_whole_layer_with_given_configurations(size: tuple[int, ...], tile: dict[str, int]) -> None:
    given = layer(*size)
    config = {**tile, "GROUP_M": 8, "num_warps": 4, "num_stages": 2, "LOOP": 1}
    other = {**TILES[2], "GROUP_M": 1, "num_warps": 4, "num_stages": 2, "LOOP": 0}
    assert_close(fused_layer.fused_moe(*given, configs=(other, config)), expected(*given))


@pytest.mark.parametrize("size", [LAYERS[0], (300, 3, 2, 72, 40)], ids=str)
def test_tokens_of_an_expert_choose_the_tiles_where_nothing_is_given(
    size: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused_layer, "REREAD", -1.0)  # every layer is sorted
    given = layer(*size)
    assert_close(fused_layer.fused_moe(*given), expected(*given))


def test_few_tokens_are_not_sorted() -> None:
    given = layer(2, 16, 2, 64, 32)
    assert fused_layer.is_few(2, 16, 2, 64, 32)
    assert_close(fused_layer.fused_moe(*given), expected(*given))


def test_few_is_few_experts_read_twice() -> None:
    assert fused_layer.is_few(1, 8, 2, 8192, 28672)  # one token never reads an expert twice
    assert not fused_layer.is_few(64, 8, 2, 4096, 14336)


@pytest.mark.parametrize(("at", "change"), [(1, lambda t: t[:, :-2]), (3, lambda t: t.half()), (4, lambda t: t.long())])
def test_what_does_not_fit_is_refused(at: int, change: Any) -> None:
    given = list(layer(5, 8, 2, 64, 48))
    given[at] = change(given[at])
    with pytest.raises(BadInput):
        fused_layer.fused_moe(*given)

"""Routing histograms against simulated draws and exact counts."""

from __future__ import annotations

import numpy as np
import pytest

from pipewave.kernels.moe.routing import BUSIEST, FIRST, SPREAD, Routing, routing

CASES = [(128, 8, 1), (256, 8, 1), (256, 8, 8), (16, 1, 1), (512, 22, 4)]


def model(
    kind: str | tuple[int, ...], tokens: int, experts: int, topk: int, ep: int = 1, leftover: str = SPREAD
) -> Routing:
    sizes = {"tokens": tokens, "experts": experts, "topk": topk, "ep": ep}
    return routing({name: np.array([float(size)]) for name, size in sizes.items()}, kind, leftover)


def drawn_power_law(
    rng: np.random.Generator, tokens: int, experts: int, topk: int, alpha: float, leftover: str = SPREAD
) -> np.ndarray:
    """Tokens of each expert in one draw of the public collector's recipe, written as loops over single tokens."""
    low, high = (1.0, 0.8 * tokens) if tokens * topk > experts else (0.01, 2.0)
    power = 1.0 - alpha
    weights = (low**power + (high**power - low**power) * rng.random(experts)) ** (1.0 / power)
    counts = np.round(weights / weights.sum() * tokens * topk).astype(int)
    order = np.argsort(-counts if leftover == BUSIEST else counts, kind="stable")
    if leftover == SPREAD:
        order = np.lexsort((rng.random(experts), counts))
    for turn in range(tokens * topk - counts.sum()):
        counts[order[turn % experts]] += 1
    while counts.sum() > tokens * topk:
        counts[counts.argmax()] -= 1
    return np.minimum(counts, tokens)


@pytest.mark.parametrize("alpha", [1.01, 1.2])
@pytest.mark.parametrize("tokens", [16, 64, 1024])
@pytest.mark.parametrize(("experts", "topk", "ep"), CASES)
def test_power_law_agrees_with_simulated_draws(alpha: float, tokens: int, experts: int, topk: int, ep: int) -> None:
    rng = np.random.default_rng(0)
    loads = []
    for _ in range(60):
        ranks = drawn_power_law(rng, tokens, experts, topk, alpha).reshape(ep, -1)
        loads.append(ranks[ranks.sum(axis=1).argmax()])
    seen, known = np.array(loads), model(f"power_law_{alpha}", tokens, experts, topk, ep)
    assert known.pairs[0] == pytest.approx(seen.sum(axis=1).mean(), rel=0.2)
    assert known.active[0] == pytest.approx((seen > 0).sum(axis=1).mean(), rel=0.2)
    blocks = np.ceil(seen / 64).sum(axis=1).mean()
    assert known.blocks(np.array([64.0]))[0] == pytest.approx(blocks, rel=0.25)


@pytest.mark.parametrize("leftover", [FIRST, BUSIEST])
@pytest.mark.parametrize("alpha", [1.01, 1.2])
@pytest.mark.parametrize("tokens", [2, 16, 256])
@pytest.mark.parametrize(("experts", "topk", "ep"), [(384, 8, 8), (256, 8, 4), (256, 8, 16)])
def test_few_tokens_meet_on_one_rank_where_leftovers_go_by_number(
    leftover: str, alpha: float, tokens: int, experts: int, topk: int, ep: int
) -> None:
    rng = np.random.default_rng(2)
    loads = []
    for _ in range(60):
        ranks = drawn_power_law(rng, tokens, experts, topk, alpha, leftover).reshape(ep, -1)
        loads.append(ranks[ranks.sum(axis=1).argmax()])
    known = model(f"power_law_{alpha}", tokens, experts, topk, ep, leftover)
    assert known.active[0] == pytest.approx((np.array(loads) > 0).sum(axis=1).mean(), rel=0.25, abs=1.5)
    assert known.pairs[0] == pytest.approx(np.array(loads).sum(axis=1).mean(), rel=0.25, abs=1.5)


@pytest.mark.parametrize("tokens", [1, 16, 64, 1024])
@pytest.mark.parametrize(("experts", "topk"), [(128, 8), (8, 2), (60, 4)])
def test_random_agrees_with_simulated_choices(tokens: int, experts: int, topk: int) -> None:
    rng = np.random.default_rng(1)
    chosen = rng.random((60, tokens, experts)).argsort(axis=2)[:, :, :topk].reshape(60, -1)
    seen = np.array([np.bincount(row, minlength=experts) for row in chosen])
    known = model("random", tokens, experts, topk)
    assert known.pairs[0] == tokens * topk
    assert known.active[0] == pytest.approx((seen > 0).sum(axis=1).mean(), rel=0.05)
    assert known.busiest[0] == pytest.approx(seen.max(axis=1).mean(), rel=0.35, abs=1.0)
    for rows in (16.0, 64.0):
        blocks = np.ceil(seen / rows).sum(axis=1).mean()
        assert known.blocks(np.array([rows]))[0] == pytest.approx(blocks, rel=0.12)


@pytest.mark.parametrize(("distinct", "copies"), [(1, 1), (1, 16), (1, 64), (128, 16)])
@pytest.mark.parametrize(("experts", "topk"), [(128, 8), (8, 2)])
def test_copies_of_a_request_read_its_experts_again_and_no_others(
    distinct: int, copies: int, experts: int, topk: int
) -> None:
    rng = np.random.default_rng(2)
    chosen = rng.random((60, distinct, experts)).argsort(axis=2)[:, :, :topk].reshape(60, -1)
    seen = copies * np.array([np.bincount(row, minlength=experts) for row in chosen])
    known = model(f"alike_{copies}", distinct * copies, experts, topk)
    assert known.pairs[0] == distinct * copies * topk
    assert known.active[0] == pytest.approx((seen > 0).sum(axis=1).mean(), rel=0.05)
    assert known.busiest[0] == pytest.approx(seen.max(axis=1).mean(), rel=0.35)
    for rows in (16.0, 64.0):
        blocks = np.ceil(seen / rows).sum(axis=1).mean()
        assert known.blocks(np.array([rows]))[0] == pytest.approx(blocks, rel=0.15)


@pytest.mark.parametrize(("tokens", "rows", "blocks"), [(128, 16, 128), (1024, 64, 128), (1040, 64, 256), (2, 16, 16)])
def test_balanced_blocks_are_exact(tokens: int, rows: float, blocks: float) -> None:
    assert model("balanced", tokens, 128, 8).blocks(np.array([rows]))[0] == pytest.approx(blocks)


def test_a_list_is_counted_as_it_is() -> None:
    counts = (0, 5, 17, 64, 65, 0, 1, 8)
    known = model(counts, 80, 8, 2)
    assert known.active[0] == 6
    assert known.busiest[0] == 65
    assert known.blocks(np.array([16.0]))[0] == sum(-(-count // 16) for count in counts)


def test_a_list_of_all_experts_gives_the_busiest_rank() -> None:
    known = model((1, 1, 30, 40), 36, 4, 2, ep=2)
    assert known.pairs[0] == 70
    assert known.active[0] == 2


def test_spread_experts_leave_no_rank_busier_than_another() -> None:
    skewed, even = model("power_law_1.2", 4096, 256, 8, ep=32), model("power_law_1.2_eplb", 4096, 256, 8, ep=32)
    assert even.skew[0] == pytest.approx(1.0, abs=0.1)
    assert skewed.skew[0] > 1.5


def test_more_tokens_never_need_fewer_blocks_or_experts() -> None:
    tokens = np.arange(1.0, 3000.0, 7.0)
    cols = {"tokens": tokens, **{n: np.full_like(tokens, v) for n, v in (("experts", 64), ("topk", 6), ("ep", 1))}}
    for kind in ("balanced", "random"):
        known = routing(cols, kind)
        assert (np.diff(known.active) >= -1e-9).all()
        assert (np.diff(known.blocks(np.array([16.0]))) >= -1e-6).all()

"""How evenly experts load ranks: laws, DeepSeek's rule written another way, files, and what a model becomes."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipewave.calls.operators import MoeAllToAll
from pipewave.errors import BadInput
from pipewave.gpus import find
from pipewave.kernels.moe.routing import steady_weights
from pipewave.models import load
from pipewave.models.expert_parallel import Balance, balance_of, copied, packed, report
from pipewave.models.kernels import Batch, Deployment
from pipewave.models.shard import Parallel, weight_bytes
from pipewave.step import find_engine

LOADS = st.lists(st.floats(1.0, 1e4), min_size=8, max_size=24)


@given(LOADS, st.integers(0, 8))
def test_copies_share_what_their_expert_had(loads: list[float], redundant: int) -> None:
    """Nothing is lost, and nobody carries more than the heaviest expert did."""
    copies = copied(np.array(loads), redundant)
    assert len(copies) == len(loads) + redundant
    assert copies.sum() == pytest.approx(sum(loads)) and copies.max() <= max(loads)


def test_each_copy_goes_where_it_relieves_most() -> None:
    """Three copies more of 8, 4, 2, 2: by trying all places, the heaviest copy that is left is lightest."""
    loads = np.array([8.0, 4.0, 2.0, 2.0])
    places = combinations([0, 1, 2, 3] * 3, 3)
    best = min(max(loads / (1 + np.bincount(list(place), minlength=4))) for place in places)
    assert copied(loads, 3).max() == pytest.approx(best)


@given(LOADS)
def test_packing_keeps_every_load_and_fills_every_slot_evenly(loads: list[float]) -> None:
    loads = loads[: len(loads) // 4 * 4]
    held = packed(np.array(loads), 4)
    assert held.sum() == pytest.approx(sum(loads))
    assert held.max() <= sum(sorted(loads)[-len(loads) // 4 :]) + 1e-6  # no fuller than the heaviest of one rank each


def test_packing_by_hand() -> None:
    """7, 6, 5, 4 over two ranks of two slots: 7 + 4 and 6 + 5."""
    assert packed(np.array([4.0, 7.0, 5.0, 6.0]), 2).tolist() == [11.0, 11.0]


def test_even_loads_lean_nowhere_and_a_law_does() -> None:
    assert Balance(loads="even").skew(256, 8) == 1.0
    skews = [Balance(redundant, "power_law_1.2").skew(256, 32) for redundant in (None, 0, 32, 64)]
    assert skews == sorted(skews, reverse=True) and skews[0] > 2.0 and skews[2] < 1.1


def test_more_ranks_lean_more() -> None:
    skews = [Balance(loads="power_law_1.2").skew(256, ranks) for ranks in (1, 2, 8, 32, 128)]
    assert skews == sorted(skews) and skews[0] == 1.0


def test_weights_follow_their_density() -> None:
    """Of a density x^-2 on [1, 1000], half lie below 2 / (1 + 1/1000)."""
    weights = np.concatenate(steady_weights(2.0, 4096))
    assert weights.min() >= 1.0 and weights.max() <= 1000.0
    assert np.median(weights) == pytest.approx(2.0 / 1.001, rel=0.02)


def test_a_file_of_tokens_an_expert(tmp_path: Path) -> None:
    """One list, or one a layer; the skew is the mean over layers."""
    path = tmp_path / "loads.json"
    path.write_text(json.dumps([[3, 1, 1, 1], [1, 1, 1, 1]]))
    assert balance_of(f"loads={path}").skew(4, 2) == pytest.approx((4 / 3 + 1) / 2)
    with pytest.raises(BadInput, match="the model has 8"):
        balance_of(f"loads={path}").skew(8, 2)
    for text in ("[" * 100_000, f"[{'1' * 400}, 1]", "[[1], [1, 2]]", '{"a": 1}', "[-1, 2]", "[NaN, 1]"):
        path.write_text(text)
        with pytest.raises(BadInput, match="eplb: loads = "):
            balance_of(f"loads={path}")


@pytest.mark.parametrize("text", ["redundant=x", "slots=3", "loads=none.json", "redundant=-1", "redundant=99999"])
def test_what_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="eplb"):
        balance_of(text)


def test_slots_must_divide() -> None:
    with pytest.raises(BadInput, match="must divide"):
        Balance(3).skew(256, 8)


def test_copies_take_memory_and_skewed_experts_take_tokens() -> None:
    model, split = load("DeepSeek-V3"), Parallel(dp=8, ep=8)
    copies = Balance(32).placed(model, 8)
    expert = next(moe for layer in model.layers for moe in layer.moes)
    more = 58 * 32 / 8 * expert.expert_params * expert.precision.bytes_per_weight
    grown = weight_bytes(copies, split) - weight_bytes(model, split)
    assert grown == pytest.approx(more, rel=1e-3)
    leaning = Balance(loads="power_law_1.2").placed(model, 8)
    calls = [
        {use.name: use.call for use in Deployment(each, split).kernels(Batch.of([1] * 64, [512] * 64))}["fused_moe"]
        for each in (model, leaning, copies)
    ]
    skew = Balance(loads="power_law_1.2").skew(256, 8)
    tokens = [call.tokens for call in calls]  # type: ignore[attr-defined]
    assert tokens[0] == 542 and tokens[1] == round(512 * skew) and tokens[0] <= tokens[2] < tokens[1]
    assert [call.experts for call in calls] == [256, 256, 288]  # type: ignore[attr-defined]


@pytest.mark.parametrize("tokens", [1, 4, 16, 64])
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_the_fullest_rank_is_that_of_drawn_choices(tokens: int, ranks: int) -> None:
    """Mean pairs of the fullest rank over 2,000 draws of eight of DeepSeek-V3's 256 experts a token, to 8 % or the half
    token that a whole number of tokens leaves.
    """
    rng = np.random.default_rng(7)
    chosen = rng.random((2000, tokens, 256)).argpartition(8, axis=-1)[..., :8] // (256 // ranks)
    drawn = np.mean([np.bincount(one, minlength=ranks).max() for one in chosen.reshape(2000, -1)])
    batch = Batch.of([1] * tokens, [512] * tokens)
    call = {use.name: use.call for use in Deployment(load("DeepSeek-V3"), Parallel(tp=ranks, ep=ranks)).kernels(batch)}
    met = call["fused_moe"].tokens * 8 / ranks  # type: ignore[attr-defined]
    assert met == pytest.approx(drawn, rel=0.08, abs=0.6 * 8 / ranks)


def test_a_law_of_routing_has_its_own_fullest_rank() -> None:
    """gpt-oss under engines that answer it by a power law: rank 0 of that law is the fullest already."""
    model, split, batch = load("gpt-oss-120b"), Parallel(tp=4, ep=4), Batch.of([1] * 16, [512] * 16)
    for engine, tokens in ((None, 20), (find_engine("sglang"), 16)):
        facts = Deployment(model, split).facts(find("H200"))
        uses = Deployment(model, split, engine=engine and engine.on(facts)).kernels(batch)
        assert {use.name: use.call for use in uses}["fused_moe"].tokens == tokens  # type: ignore[attr-defined]


def test_the_report_says_before_and_after() -> None:
    told = report(Balance(32), 256, 32)
    assert told["expert_skew"] > told["expert_skew_balanced"] >= 1.0
    assert report(Balance(32), 256, 1) == {} and report(Balance(None), 256, 8).keys() == {"expert_skew"}


def test_tensor_ranks_send_their_part_over_hosts_that_experts_span() -> None:
    """DeepSeek-V3 over two tensor and eight data-parallel ranks of two hosts: 33 tokens of a rank go out in halves."""
    model, split, batch = load("DeepSeek-V3"), Parallel(tp=2, dp=8, ep=16), Batch.of([1] * 33, [512] * 33)

    def sent(exchange: str, nodes: int = 2) -> MoeAllToAll:
        engine = find_engine("vllm").what_if(exchange=exchange)
        uses = Deployment(model, split, group_nodes=nodes, engine=engine).kernels(batch)
        call = {use.name: use.call for use in uses}["moe_dispatch"]
        assert isinstance(call, MoeAllToAll)
        return call

    assert [(call.tokens, call.nodes) for call in (sent("deepep_ll"), sent("deepep_ll", 1))] == [(17, 2), (17, 1)]
    assert sent("nvlink_one_sided").nodes == 1  # no host's memory is written from another host
    assert sent("deepep_ll", 3).nodes == 1  # sixteen ranks do not divide over three hosts

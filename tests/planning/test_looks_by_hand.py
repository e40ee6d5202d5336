"""A look at a made-up server, and engines apart, beside the same laws in plain numbers."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pipewave.planning import Question, Split
from pipewave.planning.screen import BUSY, HANDOVER_S, Curve, Screened, _Look, pairs

STEP_S, REQUEST_S, CACHED_S, TOKEN_S = 0.010, 1e-3, 1e-6, 1e-5  # of a step, and of what it holds
QUESTION = Question(1000, 101, spread=0.0)
CACHE = 1000 + 50  # tokens of a request in the middle of its life
MOST = 64


class Timer:
    """Steps that add up; ranks of a group wait for the slowest, and experts meet half the tokens of the others."""

    def seconds(self, requests: int, held: int, pieces: Any) -> float:
        return STEP_S + REQUEST_S * requests + CACHED_S * held + TOKEN_S * sum(tokens for tokens, _ in pieces)

    def group_seconds(self, ranks: Any) -> float:
        prompts = [TOKEN_S * sum(tokens for tokens, _ in pieces) for _, _, pieces in ranks]
        return max(self.seconds(*rank) for rank in ranks) + (sum(prompts) - max(prompts)) / 2


def server(ranks: int = 1, pages: float = 1e6, **policy: Any) -> Any:
    front = SimpleNamespace(request_us=400.0, token_us=0.5, workers=2.0, transit_us=100.0)
    usual = {"max_batched_tokens": 512, "max_requests": MOST, "mixes_phases": True, "chunked_prefill": True}
    return SimpleNamespace(
        setup=SimpleNamespace(dp=ranks, front_end=front, stream_interval=policy.pop("stream_interval", 1)),
        runner=SimpleNamespace(deployment=SimpleNamespace(parallel=SimpleNamespace(pp=policy.pop("pp", 1)))),
        pool=lambda count: SimpleNamespace(timer=Timer()),
        kv=SimpleNamespace(pages=pages, held=float, usable_prefix=lambda found, _: found // 16 * 16),
        policy=SimpleNamespace(**usual | policy),
    )


def decode_s(requests: float) -> float:
    whole = round(max(requests, 1.0))
    return STEP_S + REQUEST_S * whole + CACHED_S * whole * CACHE


OUTSIDE_S = 1e-6 * ((400.0 + 0.5 * 1000) / 2.0 + 100.0)


@pytest.mark.parametrize(
    ("policy", "alone", "beside"),
    [
        ({}, 2 * STEP_S + 1000 * TOKEN_S, 1000 * TOKEN_S),  # two pieces; beside decodes a piece costs its tokens
        ({"max_batched_tokens": 250}, 4 * STEP_S + 1000 * TOKEN_S, 1000 * TOKEN_S),
        ({"mixes_phases": False}, 2 * STEP_S + 1000 * TOKEN_S, 2 * STEP_S + 1000 * TOKEN_S),
        ({"chunked_prefill": False}, STEP_S + 1000 * TOKEN_S, 1000 * TOKEN_S),
    ],
)
def test_what_a_prompt_adds(policy: dict[str, Any], alone: float, beside: float) -> None:
    look = _Look(server(**policy), QUESTION)
    assert (look.prompt_s, look.beside_s) == pytest.approx((alone, beside))


def test_a_cached_beginning_is_not_computed_again() -> None:
    look = _Look(server(), replace(QUESTION, prefix_share=0.5))
    assert look.prompt_s == pytest.approx(STEP_S + (1000 - 496) * TOKEN_S), "31 pages of 16 tokens"


@pytest.mark.parametrize(("pages", "most"), [(1e6, MOST), (CACHE * 20.0, 0.9 * 20), (10.0, 1.0)])
def test_a_cache_holds_nine_tenths_of_its_requests(pages: float, most: float) -> None:
    assert _Look(server(pages=pages), QUESTION).most == pytest.approx(most)


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize(("interval", "pp"), [(1, 1), (3, 1), (1, 4)])
def test_rates_and_times_over_requests(apart: bool, interval: int, pp: int) -> None:
    look = _Look(server(stream_interval=interval, pp=pp), QUESTION)
    found = look.curve(apart=apart)
    requests = np.unique(np.concatenate(((0.02, 0.1, 0.3, 0.6, 1.0), np.geomspace(1.0, MOST, 40).round())))
    assert len(found.rate) == len(requests)
    for at, held in enumerate(requests):
        x = 0.0 if apart else look.prompt_s + (look.beside_s - look.prompt_s) * min(held / (MOST / 2), 1.0)
        rate = 1.0 / (x + 101 * decode_s(held) / held)
        busy = min(rate * x, 0.99)
        tpot = decode_s(held) + max(held - 1.0, 0.0) * x / 101
        first = OUTSIDE_S + x * (1.0 + busy / (2.0 * (1.0 - busy))) + decode_s(held) + (interval - 1) * tpot
        assert (found.rate[at], found.ttft_s[at], found.tpot_s[at]) == pytest.approx((pp * rate, first, tpot))


def test_an_answer_of_one_token_is_its_prompt() -> None:
    look = _Look(server(), Question(1000, 1, spread=0.0))
    found = look.curve(apart=False)
    x = look.prompt_s + (look.beside_s - look.prompt_s) * (1.0 / (MOST / 2))
    one = list(np.unique(np.concatenate(((0.02, 0.1, 0.3, 0.6, 1.0), np.geomspace(1.0, MOST, 40).round())))).index(1.0)
    assert found.rate[one] == pytest.approx(1.0 / (x + x))
    assert found.tpot_s[one] == pytest.approx(0.0)


def test_prompts_of_other_ranks_hold_a_rank_up() -> None:
    """Three ranks whose prompts come in steps of their own; at a rate, a rank waits for those of the others."""
    ranks, look = 3, _Look(server(ranks=3), QUESTION)
    requests, x = np.array([0.02, 8.0, 60.0]), np.array([0.03, 0.02, 0.01])
    steps = np.array([decode_s(each) for each in requests])
    alone = look._prompt_s(MOST / 2, 1) / look.beside_s
    assert alone == pytest.approx(0.5), "a prompt's tokens, and half of those of two other ranks"
    for held, step, prompt, got in zip(requests, steps, x, look._held_up(requests, steps, x), strict=True):
        together = 1.0
        for _ in range(8):
            part = alone + (1.0 - alone) * (together - 1.0) / (ranks - 1.0)
            cost = prompt * part * ranks / together
            together = min(max(ranks * (step + prompt * part) / (cost + 101 * step / held), 1.0), ranks)
        assert got == pytest.approx(cost)
    few, many = look._held_up(np.array([0.02, 60.0]), steps[[0, 2]], np.array([0.02, 0.02]))
    assert few == pytest.approx(3 * 0.02 * alone) and many < few, "apart they cost all; together they share a step"
    one = _Look(server(), QUESTION)
    assert one._held_up(requests, steps, x).tolist() == x.tolist()


def seen(gpu: str, tp: int = 1, dp: int = 1, prompt_s: float = 0.1, **more: Any) -> Screened:
    curve = Curve(np.array([1.0, 2.0, 4.0]), np.array([0.05, 0.06, 0.1]), np.array([0.01, 0.02, 0.04]))
    split = Split(gpu, tp, engine="vllm", dp=dp, **more)
    spread = dict.fromkeys(("ttft_ms", "tpot_ms", "e2e_ms"), 0.0)
    return Screened(split, 3.0, 2.0, prompt_s=prompt_s, moved_s=0.02, decode=curve, spread=spread)


def test_engines_apart_by_hand() -> None:
    question = replace(QUESTION, tpot_ms=20)
    one = seen("H100", prompt_s=0.5)
    (pair,) = pairs([one], question, 64)
    per_engine = 0.8 / 0.5  # prompts a second
    assert pair.split.workers == (2, 1), "2 requests a second by the limit, over 1.6 of an engine"
    assert pair.rate == pair.sure_rate == pytest.approx(2.0) and 2 * per_engine > 2.0
    waits = 0.8 / (2 * 0.2)
    first = 0.06 + 0.5 * (1 + waits) + 0.02
    assert pair.times_ms == pytest.approx((1e3 * first, 20.0, 1e3 * (first + 100 * 0.02)))
    assert pair.least_ms[0] == pytest.approx(1e3 * (0.05 + 0.5 * (1 + waits) + 0.02))
    assert pair.prompt_share == pytest.approx(2 / 3)


def test_decode_engines_side_by_side_share_one_of_prompts() -> None:
    (pair,) = pairs([seen("H100", prompt_s=0.05)], replace(QUESTION, tpot_ms=20), 64)
    assert pair.split.workers == (1, 8), "16 prompts a second, two requests of each"
    assert pair.rate == pytest.approx(16.0) and pair.split.gpus == 9
    assert pair.times_ms[1] == pytest.approx(20.0)
    (fewer,) = pairs([seen("H100", prompt_s=0.01)], replace(QUESTION, tpot_ms=20), 64)
    assert fewer.split.workers == (1, 16) and fewer.rate == pytest.approx(32.0), "no more than 16 of a pool"


def test_pairs_are_of_one_engine_cache_and_maker_and_no_larger_than_asked() -> None:
    others = [seen("H100", kv_dtype="fp8"), seen("MI300X"), seen("H200")]
    found = {(p.split.prefill.gpu, p.split.gpu, p.split.kv_dtype) for p in pairs([seen("H100"), *others], QUESTION, 64)}
    assert found == {("H100", "H100", None), ("H200", "H200", None), ("H100", "H200", None), ("H200", "H100", None),
                     ("H100", "H100", "fp8"), ("MI300X", "MI300X", None)}  # fmt: skip
    assert not list(pairs([seen("H100", prompt_s=0.05)], replace(QUESTION, tpot_ms=20), 8)), "nine GPUs"
    assert not list(pairs([seen("H100")], replace(QUESTION, tpot_ms=5), 64)), "no rate keeps the limit"
    assert not list(pairs([replace(seen("H100"), decode=None)], QUESTION, 64))
    drafting = seen("H100", speculative="method=mtp,tokens=1")
    assert [p.split.prefill.speculative for p in pairs([drafting, seen("H100")], QUESTION, 64)] == [None, None]


def test_the_cheapest_prompts_that_are_quick_enough() -> None:
    slow, quick = seen("H100", prompt_s=0.3), seen("H100", tp=4, prompt_s=0.1)
    wide = seen("H100", tp=1, dp=4, prompt_s=0.5)

    def of(question: Question, *some: Screened) -> set[tuple[int, int]]:
        return {(p.split.prefill.tp, p.split.prefill.dp) for p in pairs(some, question, 64)}

    assert of(QUESTION, slow, quick) == {(1, 1)}, "0.3 s of one GPU, 0.4 of four"
    assert of(replace(QUESTION, ttft_ms=1000), replace(slow, prompt_s=0.71), quick) == {(4, 1)}, "0.7 of the limit"
    assert of(QUESTION, slow, wide) == {(1, 1)}, "0.3 s, and 0.5 of four GPUs for four prompts"
    assert of(QUESTION, replace(slow, prompt_s=0.6), wide) == {(1, 4)}


def test_without_limits_a_deployment_is_not_driven_to_its_end() -> None:
    (pair,) = pairs([seen("H100", prompt_s=0.1)], QUESTION, 64)
    assert pair.rate == pytest.approx(min(2 * BUSY * 4.0, 0.8 / 0.1)) and pair.split.workers == (1, 2)
    assert HANDOVER_S < 0.02 and math.isfinite(pair.least_ms[0])

"""What a look says of a made-up server whose prompts slow down beside requests, and of engines apart at their edges."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pipewave.errors import BadInput
from pipewave.gpus import find
from pipewave.models import load
from pipewave.planning import Question, Split, screen
from pipewave.planning.screen import BUSY, HANDOVER_S, Curve, Screened, _Look, pairs
from pipewave.simulate.report import limits_of

MODEL, QUESTION = load("Llama-3.1-8B"), Question(1000, 101, spread=0.0)
STEP_S, REQUEST_S, CACHED_S, TOKEN_S, PIECE_S = 0.010, 1e-3, 1e-6, 1e-5, 2e-3
CACHE, MOST = 1000 + 50, 64


class Crowded:
    """Steps in which a token of a prompt takes longer the more requests decode beside it, and a piece a time of its
    own; ranks of a group wait for the slowest and for half of the prompts of the others.
    """

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks

    def _pieces_s(self, requests: int, pieces: Any) -> float:
        return sum(PIECE_S + TOKEN_S * tokens * (1.0 + requests / 16) for tokens, _ in pieces)

    def seconds(self, requests: int, held: int, pieces: Any) -> float:
        return STEP_S + REQUEST_S * requests + CACHED_S * held + self._pieces_s(requests, pieces)

    def group_seconds(self, ranks: Any) -> float:
        assert len(ranks) == self.ranks, "each rank takes part in each step"
        prompts = [self._pieces_s(requests, pieces) for requests, _, pieces in ranks]
        return max(self.seconds(*rank) for rank in ranks) + (sum(prompts) - max(prompts)) / 2


def server(ranks: int = 1, pages: float = 1e6, pp: int = 1, half: float = 0.1, **policy: Any) -> Any:
    front = SimpleNamespace(request_us=400.0, token_us=0.5, workers=2.0, transit_us=100.0)
    usual = {"max_batched_tokens": 512, "max_requests": MOST, "mixes_phases": True, "chunked_prefill": True}
    widths = {"ttft_ms": half, "tpot_ms": 2 * half, "e2e_ms": 3 * half}
    return SimpleNamespace(
        setup=SimpleNamespace(dp=ranks, front_end=front, stream_interval=1),
        runner=SimpleNamespace(deployment=SimpleNamespace(parallel=SimpleNamespace(pp=pp))),
        pool=lambda count: SimpleNamespace(timer=Crowded(ranks)),
        kv=SimpleNamespace(pages=pages, held=float, usable_prefix=lambda found, _: found // 16 * 16),
        policy=SimpleNamespace(**usual | policy),
        uncertain=SimpleNamespace(half=widths.__getitem__),
    )


def prompt_s(requests: int, pieces: int, *, mixed: bool = True) -> float:
    """What the prompt of one rank adds beside so many requests: its tokens and pieces, and steps where none ran."""
    steps = 0.0 if requests and mixed else STEP_S * pieces
    return steps + PIECE_S * pieces + 1000 * TOKEN_S * (1.0 + (requests if mixed else 0) / 16)


@pytest.mark.parametrize(
    ("policy", "alone", "beside", "mixed"),
    [
        ({}, 2, 3, True),  # 512 + 488; 480 + 480 + 40 beside 32 requests
        ({"max_batched_tokens": 250}, 4, 5, True),  # 218 tokens are left of a step
        ({"max_batched_tokens": 20}, 50, 1000, True),  # a token at least
        ({"max_batched_tokens": 250, "chunked_prefill": False}, 1, 1, True),
        ({"mixes_phases": False}, 2, 2, False),
        ({"max_batched_tokens": 2000}, 1, 1, True),
    ],
)
def test_a_prompt_beside_half_of_the_most_requests(
    policy: dict[str, Any], alone: int, beside: int, mixed: bool
) -> None:
    look = _Look(server(**policy), QUESTION)
    expected = prompt_s(0, alone), prompt_s(MOST // 2, beside, mixed=mixed)
    assert (look.prompt_s, look.beside_s) == pytest.approx(expected)


def test_prompts_of_three_ranks_in_one_step_and_of_one() -> None:
    look = _Look(server(ranks=3), QUESTION)
    assert look.prompt_s == pytest.approx(2 * STEP_S + 2 * (prompt_s(0, 2) - 2 * STEP_S)), "half of two others' beside"
    assert look.beside_s == pytest.approx(2 * prompt_s(32, 3))
    assert look._prompt_s(32, 1) == pytest.approx(prompt_s(32, 3))
    assert look._prompt_s(32, 2) == pytest.approx(1.5 * prompt_s(32, 3))
    assert look.lanes == 3 and _Look(server(ranks=3, pp=2), QUESTION).lanes == 6
    few = look._held_up(np.array([1e-6]), np.array([0.02]), np.array([0.02]))
    assert few.tolist() == pytest.approx([3 * 0.02 * 0.5], rel=1e-4), "half: of a step with prompts of all"


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("pages", [1e6, 10.0, CACHE * 3.0])
def test_what_prompts_cost_between_none_and_half_of_the_most_requests(ranks: int, pages: float) -> None:
    look = _Look(server(ranks=ranks, pages=pages), QUESTION)
    most = {1e6: 64.0, 10.0: 1.0, CACHE * 3.0: 0.9 * 3}[pages]
    requests = np.unique(np.concatenate(((0.02, 0.1, 0.3, 0.6, 1.0), np.geomspace(1.0, most, 40).round())))
    steps = [STEP_S + (REQUEST_S + CACHED_S * CACHE) * round(max(held, 1.0)) for held in requests]
    share = [min(held / max(most / 2, 1.0), 1.0) for held in requests]
    step = np.array([look.prompt_s + (look.beside_s - look.prompt_s) * part for part in share])
    prompt = look._held_up(requests, np.array(steps), step)
    found = look.curve(apart=False)
    assert found.rate == pytest.approx(ranks / (prompt + 101 * np.array(steps) / requests))
    assert found.tpot_s == pytest.approx(np.array(steps) + np.maximum(requests - 1, 0) * prompt / 101)
    busy = np.minimum(found.rate / ranks * prompt, 0.99)
    outside = 1e-6 * ((400 + 500) / 2 + 100)
    assert found.ttft_s == pytest.approx(outside + step * (1 + busy / (2 * (1 - busy))) + steps)


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Screened]:
    """A look at a deployment whose server is made up; what it was asked is in `looked.asked`."""
    at, asked = "pipewave.planning.screen.", dict[str, Any]()

    def of(split: Split, question: Question, made: Any = None, gpu: Any = None, at_rate: float = 0.0) -> Screened:
        def answer(*words: Any, **more: Any) -> Any:
            asked.update(server=words, **more)
            return made or server(ranks=split.dp, pp=split.pp)

        monkeypatch.setattr(at + "Server", SimpleNamespace(of=answer))
        monkeypatch.setattr(
            at + "fill", lambda told, longest: asked.update(longest=longest) or SimpleNamespace(setup=7)
        )
        monkeypatch.setattr(at + "check_prompts", lambda server, longest: asked.update(checked=longest))
        monkeypatch.setattr(at + "cache_bytes", lambda deployment, tokens: 1e6 * tokens)
        monkeypatch.setattr(at + "network_gbps", lambda gpu: 50.0)
        return screen.screen(MODEL, split, question, gpu, at_rate)

    of.asked = asked  # type: ignore[attr-defined]
    return of


SPLIT = Split("H100", engine="vllm")


def test_a_look_asks_for_mean_requests_and_checks_the_longest(looked: Any) -> None:
    found = looked(SPLIT, replace(QUESTION, spread=0.5))
    assert not found.refused
    model, card, setup, mean = looked.asked["server"]
    assert (model, card.name, setup, mean, looked.asked["prompt"]) == (MODEL, "H100", 7, 1101, 1000)
    longest = looked.asked["longest"]
    assert (longest.input_len.tolist(), longest.output_len.tolist()) == ([1500], [1651 - 1500])
    assert looked.asked["checked"] == 1500
    assert not looked(SPLIT, Question(1000, 1, spread=0.0)).refused
    assert looked.asked["longest"].output_len.tolist() == [1]
    better = find("H100").what_if(name="H100", dram_gbps=9000.0)
    looked(SPLIT, QUESTION, gpu=better)
    assert looked.asked["server"][1] is better
    looked(replace(SPLIT, power_limit_w=400.0), QUESTION)
    assert looked.asked["server"][1].tdp_w == 400.0


def test_rates_times_and_shares_of_a_look(looked: Any) -> None:
    question, look = replace(QUESTION, ttft_ms=60.0), _Look(server(), QUESTION)
    curve = look.curve(apart=False)
    found = looked(SPLIT, question)
    assert found.spread == {"ttft_ms": 0.1, "tpot_ms": 0.2, "e2e_ms": pytest.approx(0.3)}
    assert found.rate == pytest.approx(curve.within(question.limits, 101))
    assert found.sure_rate == pytest.approx(curve.within(limits_of(ttft_ms=60 * math.exp(-0.1)), 101))
    assert 0 < found.sure_rate < found.rate < curve.rate.max()
    assert found.prompt_share == pytest.approx(look.beside_s * found.rate)
    ttft, tpot = curve.at(found.rate)
    assert found.times_ms == pytest.approx((1e3 * ttft, 1e3 * tpot, 1e3 * (ttft + 100 * tpot)))
    assert found.least_ms == pytest.approx((1e3 * curve.ttft_s[0], 1e3 * curve.tpot_s[0]))
    assert found.prompt_s == look.prompt_s
    assert found.moved_s == HANDOVER_S + 1e6 * 1000 / 50e9, "to the last digit"
    assert found.decode.rate == pytest.approx(look.curve(apart=True).rate)
    slower = looked(SPLIT, question, at_rate=found.rate / 2)
    assert slower.rate == found.rate and slower.times_ms[:2] == pytest.approx(
        [1e3 * t for t in curve.at(found.rate / 2)]
    )
    assert slower.prompt_share == pytest.approx(found.prompt_share / 2)
    assert looked(SPLIT, question, at_rate=1e4).prompt_share == 1.0


def test_a_look_whose_limit_no_rate_keeps_shows_the_lowest(looked: Any) -> None:
    curve = _Look(server(), QUESTION).curve(apart=False)
    found = looked(SPLIT, replace(QUESTION, ttft_ms=1.0))
    assert (found.rate, found.sure_rate, found.refused) == (0.0, 0.0, "")
    assert found.times_ms[0] == pytest.approx(1e3 * curve.ttft_s[0])


def test_prompts_take_their_share_of_all_ranks_and_stages(looked: Any) -> None:
    for split, lanes in ((replace(SPLIT, pp=2), 2), (Split("H100", ep=3, dp=3, engine="vllm"), 3)):
        made = server(ranks=split.dp, pp=split.pp)
        found = looked(replace(split, ep=1, dp=1), QUESTION, made)
        assert found.prompt_share == pytest.approx(min(_Look(made, QUESTION).beside_s * found.rate / lanes, 1.0))


@pytest.mark.parametrize(("pp", "output", "kept"), [(1, 101, True), (2, 101, False), (1, 1, False), (1, 2, True)])
def test_engines_apart_decode_in_one_stage_and_more_than_a_token(pp: int, output: int, kept: bool, looked: Any) -> None:
    found = looked(replace(SPLIT, pp=pp), Question(1000, output, spread=0.0))
    assert (found.decode is not None) == kept and not found.refused


def test_a_refusal_is_the_reason_of_a_look(looked: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: Any) -> None:
        raise BadInput("too long for a step", field="input_len")

    looked(SPLIT, QUESTION)
    monkeypatch.setattr("pipewave.planning.screen.check_prompts", refuses)
    found = screen.screen(MODEL, SPLIT, QUESTION)
    assert (found.split, found.refused, found.rate, found.decode) == (SPLIT, "too long for a step", 0.0, None)
    assert screen.screen(MODEL, replace(SPLIT, tp=7), QUESTION).refused
    assert "does not run on MI300X" in screen.screen(MODEL, Split("MI300X", engine="trtllm"), QUESTION).refused


def test_times_that_fall_again_are_read_as_they_rose() -> None:
    curve = Curve(np.array([1.0, 2.0, 4.0, 8.0]), np.array([0.1, 0.4, 0.2, 0.8]), np.full(4, 0.01))
    assert curve.within(limits_of(ttft_ms=400), 11) == pytest.approx(4.0), "a limit that is met is kept"
    assert curve.within(limits_of(ttft_ms=300), 11) == pytest.approx(2 ** (math.log(3) / math.log(4)))
    wide = {"ttft_ms": 0.3, "tpot_ms": 0.2, "e2e_ms": 0.1}
    assert curve.within((), 11, wide) == pytest.approx(BUSY * 8.0), "without limits nothing is taken off"
    assert curve.within(limits_of(e2e_ms=1e5), 11, wide) == pytest.approx(BUSY * 8.0 / math.exp(0.2))
    assert curve.within(limits_of(e2e_ms=500 * math.exp(0.1)), 11, wide) == pytest.approx(4.0)
    assert curve.within(limits_of(ttft_ms=99.9), 11) == 0.0


def seen(gpu: str = "H100", prompt: float = 0.1, dp: int = 1, half: float = 0.0, **more: Any) -> Screened:
    curve = Curve(np.array([1.0, 2.0, 4.0]), np.array([0.05, 0.06, 0.1]), np.array([0.01, 0.02, 0.04]))
    split = Split(gpu, engine="vllm", dp=dp, **more)
    spread = dict.fromkeys(("ttft_ms", "tpot_ms", "e2e_ms"), half)
    return Screened(split, 3.0, 2.0, least_ms=(50.0, 10.0), prompt_s=prompt, moved_s=0.02, decode=curve, spread=spread)


LIMITED = replace(QUESTION, tpot_ms=20)


@pytest.mark.parametrize(
    ("prompt", "workers", "rate"),
    [
        (0.4, (1, 1), 2.0),  # 2 prompts a second, 2 requests a second
        (0.41, (2, 1), 2.0),
        (0.39, (1, 1), 2.0),
        (0.2, (1, 2), 4.0),
        (0.19, (1, 2), 4.0),
        (0.26, (1, 1), 2.0),  # 3.08 of prompts are enough for one
        (50.0, (16, 1), 16 * 0.8 / 50.0),  # no more than 16 of a pool
    ],
)
def test_engines_of_prompts_for_each_of_tokens(prompt: float, workers: tuple[int, int], rate: float) -> None:
    (pair,) = pairs([seen(prompt=prompt)], LIMITED, 64)
    assert (pair.split.workers, pair.rate) == (workers, pytest.approx(rate))
    assert pair.prompt_share == pytest.approx(workers[0] / sum(workers))
    waits = 0.8 / (2 * (1 - 0.8))
    each = rate / workers[1]
    first, tpot = np.interp(each, [1, 2, 4], [0.05, 0.06, 0.1]), np.interp(each, [1, 2, 4], [0.01, 0.02, 0.04])
    first += prompt * (1 + waits) + 0.02
    assert pair.times_ms == pytest.approx((1e3 * first, 1e3 * tpot, 1e3 * (first + 100 * tpot)))
    assert pair.least_ms == pytest.approx((1e3 * (0.05 + prompt * (1 + waits) + 0.02), 10.0))


def test_what_engines_apart_surely_serve() -> None:
    (pair,) = pairs([seen(prompt=0.2, half=math.log(2.0))], LIMITED, 64)
    assert (pair.split.workers, pair.rate, pair.sure_rate) == ((1, 2), pytest.approx(4.0), pytest.approx(2.0))
    assert pair.spread == dict.fromkeys(("ttft_ms", "tpot_ms", "e2e_ms"), math.log(2.0))
    (slow,) = pairs([seen(prompt=50.0, half=math.log(2.0))], LIMITED, 64)
    assert slow.rate == slow.sure_rate == pytest.approx(0.256), "prompts bound both"


def test_prompts_of_ranks_wait_for_fewer() -> None:
    """Four ranks take four prompts a step: of those before it a prompt waits for a quarter."""
    (pair,) = pairs([seen(prompt=0.8, dp=4, ep=4)], LIMITED, 64)
    assert pair.split.workers == (1, 2), "4 prompts a second"
    assert pair.least_ms[0] == pytest.approx(1e3 * (0.05 + 0.8 * (1 + 0.8 / (2 * 4 * 0.2)) + 0.02))
    assert pair.prompt_share == pytest.approx(4 / 12)


def test_one_engine_of_each_is_tried_whatever_they_take() -> None:
    assert len(list(pairs([seen()], LIMITED, 1))) == 0, "four of tokens for one of prompts"
    (pair,) = pairs([seen(prompt=0.4)], LIMITED, 1)
    assert pair.split.gpus == 2
    (wide,) = pairs([seen(prompt=0.4)], LIMITED, 2)
    assert wide.split.gpus == 2
    assert [p.split.workers for p in pairs([seen(prompt=0.2)], LIMITED, 3)] == [(1, 2)]


def test_prompts_that_take_seven_tenths_of_their_limit_are_passed_over() -> None:
    """A prompt in 0.71 s of one GPU is cheaper than one in 0.2 s of four; within a second it would come too late."""
    cheap, quick = seen(prompt=0.71), seen(prompt=0.2, tp=4)

    def prefills(question: Question, *some: Screened) -> set[int]:
        return {pair.split.prefill.tp for pair in pairs(some, question, 64) if pair.split.prefill}

    assert prefills(QUESTION, cheap, quick) == {1}
    limited = replace(QUESTION, ttft_ms=1000)
    assert prefills(limited, cheap, quick) == {4}
    assert prefills(limited, replace(cheap, prompt_s=0.69), quick) == set(), (
        "quick enough alone, and it waits for others"
    )
    assert prefills(limited, cheap) == prefills(replace(QUESTION, ttft_ms=10), cheap, quick) == set()
    assert prefills(replace(QUESTION, ttft_ms=2200), cheap) == {1}, "0.71 s, twice that of waiting, and 70 ms"
    assert prefills(replace(QUESTION, ttft_ms=2190), cheap) == set()

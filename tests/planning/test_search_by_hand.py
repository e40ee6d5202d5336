"""A search over made-up looks and made-up runs: what is served, in which order, and when the search ends."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pipewave.errors import BadInput
from pipewave.models import load
from pipewave.planning import Question, Space, Split, run, search
from pipewave.planning.fleet import Demand, Fleet, _replicas
from pipewave.planning.prices import Meter, Price, prices
from pipewave.planning.run import Point
from pipewave.planning.screen import Curve, Screened
from pipewave.planning.search import Search

QUESTION, MODEL = Question(1000, 100), load("Llama-3.1-8B")
KNOWN: dict[str, Price] = prices({"H100": 2.0, "H200": 3.0}, None, ("H100", "H200"))
FIGURES = {"e2e_mean_ms": 2000.0, "power_w": 500.0}


def seen(gpu: str = "H100", rate: float = 4.0, sure: float | None = None, **more: Any) -> Screened:
    decode = Curve(np.array([1.0, 2.0]), np.array([0.1, 0.1]), np.array([0.01, 0.01]))
    split = Split(gpu, engine="vllm", **more)
    return Screened(split, rate, rate if sure is None else sure, times_ms=(100.0, 10.0, 2000.0), decode=decode)


def point(rate: float, over: float = -0.01, high: float = -0.01, **figures: float) -> Point:
    return Point(rate, 1, 300, FIGURES | figures, over, high, 256, 2048)


def searched(*looked: Screened, demand: Demand = Demand(), **space: Any) -> Search:  # noqa: B008
    some = Space(("H100", "H200"), **space)
    return Search({"": MODEL}, QUESTION, some, demand, KNOWN, Meter(1.0, None), None, None, list(looked))


def test_what_a_design_costs_by_a_look() -> None:
    """2 USD an hour of an H100: of a request a second, or of whole replicas and a little for the part of the last."""
    two = seen(tp=2).split
    assert searched().costs(two, 4.0, 2.0) == pytest.approx(4.0 / 4.0)
    replicas = 10.0 / 4.0
    assert searched(demand=Demand(rate=10.0)).costs(two, 4.0, 2.0) == pytest.approx(
        4.0 * (math.ceil(0.85 * replicas) + 0.05 * replicas)
    )
    few = searched(demand=Demand(rate=0.1)).costs(two, 4.0, 2.0)
    assert few == pytest.approx(4.0 * (1 + 0.05 * 0.1 / 4.0)), "one replica at least"
    users = searched(demand=Demand(users=30.0, think_s=1.0))
    assert users.costs(two, 4.0, 2.0) == pytest.approx(4.0 * (math.ceil(0.85 * 2.5) + 0.05 * 2.5))
    unpriced = searched()
    unpriced.known = {}
    assert unpriced.costs(two, 4.0, 2.0) == 2e6 / 4.0
    month = 730.0
    some = searched(demand=Demand(budget=11.0 * month))
    assert some.costs(two, 4.0, 2.0) == pytest.approx(4.0 / 4.0 * 11.0 / 8.0), "it pays two: what is left is lost"
    dear = searched(demand=Demand(budget=3.9 * month))
    assert dear.costs(two, 4.0, 2.0) > 1e3 * dear.costs(seen("H200").split, 1.0, 2.0), "it pays none"
    assert searched(demand=Demand(rate=10.0, budget=month)).costs(two, 4.0, 2.0) == searched(
        demand=Demand(rate=10.0)
    ).costs(two, 4.0, 2.0)
    assert searched().seems(seen(rate=4.0, sure=2.0), sure=True) == 2 * searched().seems(seen(), sure=False)
    assert searched().seems(seen(sure=0.0), sure=True) == math.inf


def test_drafts_are_tried_with_what_is_near_the_best_of_its_gpu() -> None:
    best, near, far = seen(rate=4.0), seen(rate=4.0 / 1.55), seen(rate=4.0 / 1.65)
    other = seen("H200", rate=1.0)
    alone = searched(disaggregated=False)
    assert list(alone._promising([best, near, far, other])) == [best, near, other]
    assert not list(alone._promising([replace(best, rate=0.0)]))
    # Later tokens alone: 2 USD over 1.9 a second, whatever the whole costs.
    assert list(searched()._promising([best, near, far, other])) == [best, near, far, other]
    assert searched()._decode_seems(best) == pytest.approx(2.0 / 1.9, rel=0.06)
    assert searched()._decode_seems(replace(best, decode=None)) == math.inf == alone._decode_seems(best)


def test_the_order_is_by_the_sure_cost_then_by_the_likely() -> None:
    found = searched(seen(rate=9.0, sure=1.0), seen(rate=4.0, sure=2.0), seen(rate=5.0, sure=2.0), seen(rate=0.0))
    assert found._order(sure=True) == [2, 1, 0]
    assert found._order(sure=False) == [0, 2, 1]


def test_some_of_each_gpu_are_served_and_engines_apart_are_no_gpus_own() -> None:
    apart = Screened(Split("H100", engine="vllm", prefill=Split("H200", engine="vllm"), workers=(1, 1)), 9.0, 9.0)
    found = searched(apart, *(seen(rate=8.0 - n) for n in range(4)), *(seen("H200", rate=3.0 - n) for n in range(3)))
    assert list(found._each_gpu(found._order(sure=True))) == [1, 2, 5, 6], "two of each of two boards"
    limited = searched(*found.looked, power_limits=(None, 500.0))
    assert list(limited._each_gpu(limited._order(sure=True))) == [1, 5]


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool]]:
    """Designs that are served, and whether at their likely rate as well; each runs as its look says."""
    calls = list[tuple[str, bool]]()

    def best(model: Any, look: Screened, question: Question, demand: Demand, likely: bool) -> list[Fleet]:
        calls.append((look.split.label, likely))
        return [Fleet(1, look.sure_rate, point(look.sure_rate))]

    monkeypatch.setattr(search, "serve_best", best)
    return calls


def test_a_search_ends_when_nothing_else_could_be_cheaper(served: list[tuple[str, bool]]) -> None:
    near = [seen(rate=4.0 - 0.1 * n) for n in range(9)]
    found = searched(*near, seen("H200", rate=0.1))
    found.measure()
    # Two of each GPU of which the H200 has one; then twice two, while 0.85 of what one seems to cost is less.
    assert sorted(found.found) == [0, 1, 2, 3, 4, 5, 9]
    assert [likely for _, likely in served] == [True, True, False, False, False, False, False]
    served.clear()
    shares = searched(*(seen(rate=4.0 * share) for share in (1.0, 0.99, 0.86, 0.84)))
    shares.space = replace(shares.space, power_limits=(None, 400.0, 300.0))
    shares.measure()
    assert sorted(shares.found) == [0, 1, 2], "at 0.84 of the rate, 0.85 of its cost is more"


def test_a_design_is_served_once(served: list[tuple[str, bool]]) -> None:
    found = searched(seen(), seen(rate=3.0))
    found.serve([0])
    found.serve([0, 1])
    assert [label for label, _ in served] == [seen().split.label] * 2 and sorted(found.found) == [0, 1]


def test_lower_rates_of_the_cheapest(served: list[tuple[str, bool]], monkeypatch: pytest.MonkeyPatch) -> None:
    shares = list[tuple[str, float]]()

    def slower(model: Any, design: Any, question: Question, share: float) -> Fleet | None:
        shares.append((design.split.label, share))
        return Fleet(1, design.fleet.capacity, point(design.fleet.point.rate * share)) if share > 0.3 else None

    monkeypatch.setattr(search, "serve_slower", slower)
    found = searched(seen(rate=4.0), seen(rate=5.0, max_num_seqs=8), seen("H200", rate=1.0))
    found.measure()
    designs = found.designs()
    assert shares == [(seen().split.label, share) for share in (0.5, 0.2)]
    assert sorted(d.fleet.point.rate for d in designs) == [1.0, 2.5, 4.0, 5.0], "none where the limits are missed"
    assert [d.cost for d in designs[:3]] == pytest.approx([2.0 / 5.0, 2.0 / 4.0, 3.0 / 1.0])


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[tuple[float, int, int]]]:
    """Runs that go as they are told to: each is the point to answer with, made of its rate."""

    def told(largest: float | dict[bool, float], *answers: Callable[[float], Point]) -> list[tuple[float, int, int]]:
        calls, left = list[tuple[float, int, int]](), iter(answers)

        def serve(design: Any, question: Any, rate: float, requests: int, replicas: int = 1, **_: Any) -> Point:
            calls.append((rate, requests, replicas))
            return replace(next(left)(rate), replicas=replicas)

        def most(*_: Any, sure: bool, **__: Any) -> float:
            return largest[sure] if isinstance(largest, dict) else largest

        monkeypatch.setattr(search, "serve", serve)
        monkeypatch.setattr(search, "largest", most)
        return calls

    return told


def test_a_demand_takes_whole_replicas_and_four_at_most_are_run(runs: Any) -> None:
    calls = runs(4.0, point)
    (fleet,) = search.serve_best(MODEL, seen(), QUESTION, Demand(rate=23.0), False)
    assert (fleet.replicas, fleet.capacity) == (6, 4.0)
    assert calls == [(pytest.approx(23.0 * 4 / 6), run.requests_for(23.0 * 2.0 * 4 / 6), 4)]
    calls = runs(4.0, point)
    assert search.serve_best(MODEL, seen(), QUESTION, Demand(rate=8.0), False)[0].replicas == 2, "exactly two"
    assert calls == [(8.0, 300, 2)]
    calls = runs(4.0, point)
    (least,) = search.serve_best(MODEL, seen(), QUESTION, Demand(rate=1e-6), False)
    assert (least.replicas, calls) == (1, [(1e-6, 300, 1)]), "one, however little comes"


def test_a_missed_limit_lowers_the_rate_and_lengthens_the_run(runs: Any) -> None:
    def missed(rate: float) -> Point:
        return point(rate, 0.1, 0.1)

    calls = runs(40.0, missed, missed, point)
    (fleet,) = search.serve_best(MODEL, seen(), QUESTION, Demand(), False)
    rates = [40.0, 40.0 * 0.96, 40.0 * 0.96 * (1 - 0.04 * 1.25)]
    assert [rate for rate, _, _ in calls] == pytest.approx(rates) and fleet.capacity == pytest.approx(rates[-1])
    assert [n for _, n, _ in calls] == [run.requests_for(rate * 2.0 * (1 + at)) for at, rate in enumerate(rates)]
    calls = runs(40.0, *[missed] * 20)
    assert search.serve_best(MODEL, seen(sure=0.0), QUESTION, Demand(), False) == [] and len(calls) == 6


def test_surely_is_by_the_upper_ends_and_likely_by_the_times(runs: Any) -> None:
    def unsure(rate: float) -> Point:
        return point(rate, -0.1, 0.1)

    runs({True: 3.0, False: 4.0}, *[unsure] * 7)
    (likely,) = search.serve_best(MODEL, seen(), QUESTION, Demand(), False)
    assert likely.capacity == 4.0, "six runs fail surely; the seventh does likely"
    runs({True: 3.0, False: 4.0}, point)
    assert [f.capacity for f in search.serve_best(MODEL, seen(), QUESTION, Demand(), False)] == [3.0]
    runs({True: 3.0, False: 4.0}, point, point)
    assert [f.capacity for f in search.serve_best(MODEL, seen(), QUESTION, Demand(), True)] == [3.0, 4.0]
    runs(3.0, point, point)
    assert len(search.serve_best(MODEL, seen(), QUESTION, Demand(), True)) == 1, "the same run is told once"
    runs({True: 3.0, False: 4.0}, point, point)
    assert len(search.serve_best(MODEL, seen(), QUESTION, Demand(rate=2.0), True)) == 1, "as many replicas"
    runs({True: 3.0, False: 4.0}, point, point)
    found = search.serve_best(MODEL, seen(), QUESTION, Demand(rate=4.0), True)
    assert [f.replicas for f in found] == [2, 1]


def test_users_who_wait_longer_ask_for_less(runs: Any) -> None:
    """Twelve users who think for a second and wait for 2 s by the look and 1 s in the run."""

    def quick(rate: float) -> Point:
        return point(rate, e2e_mean_ms=1000.0)

    calls = runs(100.0, *[quick] * 12)
    (fleet,) = search.serve_best(MODEL, seen(), QUESTION, Demand(users=12.0, think_s=1.0), False)
    waits = [2.0]
    while 12.0 / 2.0 / (12.0 / (1.0 + waits[-1])) >= 1.01:
        waits.append(math.sqrt(waits[-1]))
    assert [rate for rate, _, _ in calls] == pytest.approx([12.0 / (1.0 + wait) for wait in waits])
    assert fleet.peak == calls[-1][0] and 5.9 < fleet.peak < 6.0


def test_a_design_that_cannot_be_run_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: Any, **__: Any) -> float:
        raise BadInput("too long", field="input_len")

    monkeypatch.setattr(search, "largest", refuses)
    assert search.serve_best(MODEL, seen(), QUESTION, Demand(), True) == []
    monkeypatch.setattr(search, "serve", refuses)
    slower: Any = SimpleNamespace(split=seen().split, fleet=Fleet(1, 4.0, point(4.0)))
    assert search.serve_slower(MODEL, slower, QUESTION, 0.5) is None


def test_a_share_of_a_rate(runs: Any) -> None:
    design: Any = SimpleNamespace(split=seen().split, fleet=Fleet(1, 4.5, point(400.0)))
    calls = runs(0.0, point)
    fleet = search.serve_slower(MODEL, design, QUESTION, 0.2)
    assert fleet is not None and (fleet.capacity, fleet.point.rate) == (4.5, pytest.approx(80.0))
    assert calls == [(pytest.approx(80.0), 960, 1)], "six turns of 160 in flight"
    runs(0.0, lambda rate: point(rate, 0.01))
    assert search.serve_slower(MODEL, design, QUESTION, 0.2) is None


LAWS: list[tuple[Callable[[float], float], float]] = [
    (lambda rate: math.log(rate / 10.0), 10.0),  # times that grow as the rate
    (lambda rate: 4.0 * math.log(rate / 3.0), 3.0),
    (lambda rate: 0.3 * math.log(rate / 20.0), 20.0),
]


@pytest.mark.parametrize(("law", "most"), LAWS)
@pytest.mark.parametrize("guess", [2.0, 9.0, 40.0])
def test_the_largest_rate_is_where_times_are_the_limits(
    law: Callable[[float], float], most: float, guess: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = list[tuple[float, int]]()
    question = replace(QUESTION, ttft_ms=100)

    def above(ready: tuple[float, int], *_: Any, sure: bool) -> float:
        tried.append(ready)
        return law(ready[0])

    def traffic(self: Question, requests: int, rate: float) -> tuple[float, int]:
        return rate, requests

    monkeypatch.setattr(run, "deploy", lambda told, drawn: drawn)
    monkeypatch.setattr(run, "_above", above)
    monkeypatch.setattr(run, "_surely_above", partial(above, sure=True))
    monkeypatch.setattr(Question, "traffic", traffic)
    design = run.ready_for(MODEL, seen().split, question)
    found = run.largest(design, question, guess, 100.0, sure=True, near=0.03)
    kept = [rate for rate, _ in tried if law(rate) <= 0]
    assert len(tried) <= 5 and found == max(kept, default=0.0)
    assert law(found) >= -0.03 * 1.01 if found and len(tried) < 5 else True
    assert [n for _, n in tried] == [
        max(min(max(int(400.0 * rate / guess), 300), 700), int(min(200.0 * rate / guess, 6000))) for rate, _ in tried
    ], "two for each that is in flight at least: fewer only fill the engines"
    assert run.largest(
        run.ready_for(MODEL, seen().split, QUESTION), QUESTION, 1.5, 100.0, sure=True, near=0.03
    ) == pytest.approx(1.5)


def steps() -> Iterator[tuple[list[tuple[float, float]], list[tuple[float, float]], float]]:
    yield [(0.0, -0.2)], [], (0.2 - 0.015) / 2  # a slope of two
    yield [(0.0, -2.0)], [], 0.7  # one stride at most
    yield [], [(0.0, 0.5)], (-0.5 - 0.015) / 2
    yield [], [(0.0, 2.0)], -0.7
    yield [(-0.1, -0.6), (0.0, -0.2)], [], (0.2 - 0.015) / 4.0  # the slope of the last two
    yield [(-0.1, -5.0), (0.0, -0.2)], [], (0.2 - 0.015) / 8.0  # the steepest
    yield [(-0.1, -0.2), (0.0, -0.2)], [], 0.7  # the flattest: 0.15
    yield [(0.0, -0.4)], [(0.4, 0.4)], (0.4 - 0.015) / 2.0
    yield [(0.0, -0.01)], [(0.4, 0.4)], 0.15 * 0.4  # not outside of what is known, nor near its ends
    yield [(0.0, -0.5)], [(0.4, 0.01)], 0.85 * 0.4


@pytest.mark.parametrize(("passed", "missed", "following"), list(steps()))
def test_where_to_look_next(
    passed: list[tuple[float, float]], missed: list[tuple[float, float]], following: float
) -> None:
    assert run._next(passed, missed, -0.015) == pytest.approx(following)


def test_replicas_come_after_a_delay_and_are_counted_once() -> None:
    assert list(_replicas(np.array([1, 2, 3, 3, 3, 3]), 2)) == [1, 1, 1, 1, 2, 3]
    assert list(_replicas(np.array([1, 3, 3, 1, 1, 1]), 1)) == [1, 1, 1, 3, 3, 1]


def test_the_command_of_engines_apart_says_what_is_not_one() -> None:
    split = Split("H200", tp=4, engine="vllm", prefill=Split("H100", tp=2, engine="vllm"), workers=(3, 1))
    words = run.command_line("M", split, QUESTION, point(4.0))
    assert words.startswith("pipewave serve --model M --gpu H200 --engine vllm "
                            "--prefill workers=3,gpu=H100,tp=2 --decode gpu=H200,tp=4 --isl 1000 --osl 100 ")  # fmt: skip
    assert words.endswith("--request-rate 4.0 --requests 300 --steady")


def test_users_for_whom_no_count_settles_get_no_fleet(runs: Any) -> None:
    """Runs that always take a tenth less than was assumed, so that a tenth more comes."""
    runs(100.0, *[lambda rate: point(rate, e2e_mean_ms=1e3 * (12.0 / rate / 1.1 - 1.0))] * 24)
    assert search.serve_best(MODEL, seen(), QUESTION, Demand(users=12.0, think_s=1.0), False) == []

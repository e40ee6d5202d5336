"""Which designs a search looks at and runs, and what a run of a made-up deployment says of its limits."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pipewave.errors import UnknownGPU
from pipewave.models import load
from pipewave.planning import Demand, Meter, Owned, Question, Space, Split, plan, prices, run, search
from pipewave.planning.fleet import Fleet
from pipewave.planning.prices import Price
from pipewave.planning.run import FEWEST, MOST, OVERLOADED, Point, requests_for
from pipewave.planning.screen import Curve, Screened
from pipewave.planning.search import Search

MODEL, QUESTION = load("Llama-3.1-8B"), Question(1000, 100)
KNOWN: dict[str, Price] = prices({"H100": 2.0, "H200": 3.0}, None, ("H100", "H200"))
FIGURES = {"e2e_mean_ms": 2000.0, "power_w": 500.0}
DRAFT, MORE = "method=mtp,tokens=1", "method=mtp,tokens=3"


def searching(space: Space, models: dict[str, Any] | None = None, **more: Any) -> Search:
    usual = {"demand": Demand(), "known": KNOWN, "meter": Meter(), "executor": None, "progress": None} | more
    return Search(models or {"": MODEL}, QUESTION, space, **usual)


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, Split]]:
    """What is looked at, in order; a GPU's rate is 4 less one for each doubling of its engine, 1.2 times with drafts."""
    asked = list[tuple[Any, Split]]()

    def screen(model: Any, split: Split, question: Question) -> Screened:
        asked.append((model, split))
        rate = {1: 4.0, 2: 3.0, 8: 1.0}[split.tp] * (1.2 if split.speculative else 1.0)
        curve = Curve(np.array([1.0, 2.0]), np.array([0.1, 0.1]), np.array([0.01, 0.01]))
        return Screened(split, rate, rate, times_ms=(1.0, 1.0, 100.0), prompt_s=0.1, decode=curve, spread={})

    monkeypatch.setattr(search, "screen", screen)
    return asked


def test_designs_are_looked_at_then_the_promising_with_drafts(looked: Any) -> None:
    """Of an H100, 0.5 USD of one and 1.33 of two: beyond 1.6 times the best, so no drafts for it."""
    heard = list[tuple[int, int]]()
    space = Space(("H100", "H200"), (1, 2), engines=("vllm",), speculative=(None, DRAFT, MORE), disaggregated=False)
    found = searching(space, progress=lambda more, of: heard.append((more, of)))
    found.look()
    said = [(split.gpu, split.tp, split.speculative) for _, split in looked]
    plain = [(gpu, tp, None) for gpu in ("H100", "H200") for tp in (1, 2)]
    assert said == plain + [(gpu, 1, way) for way in (DRAFT, MORE) for gpu in ("H100", "H200")]
    assert [(one.split.gpu, one.split.tp, one.split.speculative) for one in found.looked] == said
    assert heard == [(1, 8)] * 4 + [(1, 2)] * 4, "as many again may come with drafts"
    looked.clear(), heard.clear()
    searching(replace(space, speculative=(DRAFT,)), progress=lambda more, of: heard.append((more, of))).look()
    assert [split.speculative for _, split in looked] == [DRAFT] * 4 and heard == [(1, 4)] * 4


def test_weights_settings_and_pools_of_a_search(looked: Any) -> None:
    space = Space(("H100",), (1,), engines=("vllm",), weights=("", "w"), budgets=(None, 2048), batches=(8, 16))
    models = {"": MODEL, "w": replace(MODEL, name="w")}
    found = searching(space, models)
    found.look()
    assert all(model == models[split.weights] for model, split in looked)
    several = [(split.weights, split.max_num_batched_tokens, split.max_num_seqs) for _, split in looked]
    assert several == [(form, budget, batch) for form in ("", "w") for budget in (None, 2048) for batch in (8, 16)]
    apart = found.looked[8:]
    assert {one.split.weights for one in apart} == {"", "w"} and all(one.split.prefill for one in apart)
    assert len(apart) == 8, "each beside the cheapest prompts of its weights"
    alone = searching(replace(space, disaggregated=False), models)
    alone.look()
    assert len(alone.looked) == 8
    few = searching(replace(space, gpus_most=1), models)
    few.look()
    assert all(one.split.gpus == 2 for one in few.looked[8:])


class Pool:
    """An executor that remembers how its tasks were cut."""

    def __init__(self) -> None:
        self.chunks = list[int]()

    def map(self, work: Callable[..., Any], *columns: Iterable[Any], chunksize: int) -> Iterable[Any]:
        self.chunks.append(chunksize)
        return map(work, *columns)


def test_looks_are_spread_eight_at_a_time_and_runs_one_by_one(looked: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = Pool()
    space = Space(("H100",), (1, 2), engines=("vllm",), disaggregated=False)
    found = searching(space, executor=pool)

    def served(*_: Any) -> list[Fleet]:
        return [Fleet(2, 4.0, Point(4.0, 1, 300, FIGURES, -0.1, -0.1, 256, 2048))]

    monkeypatch.setattr(search, "serve_best", served)
    monkeypatch.setattr(search, "serve_slower", lambda *_: None)
    told = found.run()
    assert pool.chunks == [8, 1, 1], "looks, runs and the lower rates of the best"
    assert (len(told.looked), len(told.designs), told.demand, told.space) == (2, 2, Demand(), space)
    (one, two) = (design.fleet.usd_per_hour for design in told.designs)
    assert (one, two) == (2 * 2.0, 2 * 2 * 2.0) and told.designs[1].cost == 8.0 / 8.0, "of a request a second"
    assert told.prices == KNOWN and told.meter == Meter() and told.spec is MODEL
    given = searching(space, demand=Demand(rate=8.0))
    given.look()
    given.measure()
    assert [design.cost for design in given.designs()] == [4.0, 8.0], "an hour of what the demand takes"
    unpriced = searching(space, known={})
    unpriced.look()
    unpriced.measure()
    assert [design.cost for design in unpriced.designs()] == [2e6 / 8, 4e6 / 8]
    assert {design.fleet.usd_per_hour for design in unpriced.designs()} == {None}


def test_a_plan_starts_with_what_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Search, "run", lambda self: self)
    space = Space(("H100",))
    found: Any = plan(MODEL, QUESTION, space)
    assert (found.models, found.demand, found.meter, found.executor) == ({"": MODEL}, Demand(), Meter(1.0, None), None)
    assert found.known == prices() and found.looked == [] and found.progress is None
    owned = Owned(4.0, 0.1, {"H100": 25000.0}, pue=1.25)
    asked: Any = plan(MODEL, QUESTION, space, demand=Demand(rate=2.0), variants={"w": MODEL}, owned=owned,
                      grid_g_per_kwh=300.0, own_prices={"H200": 2.0}, progress=print)  # fmt: skip
    assert asked.models == {"": MODEL, "w": MODEL} and asked.demand.rate == 2.0 and asked.progress is print
    assert asked.meter == Meter(1.25, 300.0) and set(asked.known) == {"H100", "H200"}
    with pytest.raises(UnknownGPU):
        plan(MODEL, QUESTION, Space(("H100", "H1000")))


@pytest.mark.parametrize(
    ("in_flight", "requests"), [(0.1, 300), (50.0, 300), (50.5, 303), (250.0, 1500), (900, 1800), (1e4, 6000)]
)
def test_requests_of_a_run(in_flight: float, requests: int) -> None:
    assert requests_for(in_flight) == requests and (FEWEST, MOST) == (300, 1500)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """A run of a made-up deployment: its mean TPOT, and of slower and quicker steps; what was asked is in its list."""

    def of(ms: float, ends: dict[float, float], *, overloaded: bool = False, late: bool = False, **kv: Any) -> Any:
        asked, grows = list[Any](), kv.pop("grows", {})

        def steady(scale: float = 1.0) -> tuple[dict[str, float], bool]:
            if scale == 1.0:
                return {"tpot_mean_ms": ms} | grows, overloaded
            asked.extend([scale] if scale not in asked else [])  # a run is made once
            return {"tpot_mean_ms": ends[scale]}, late and scale > 1

        wide = SimpleNamespace(
            ends=lambda _, value: {"_low": value / 1.1, "_high": 1.1 * value}, tried=lambda _: list(ends)
        )
        cache = {"pages": 1e4, "most": 256} | kv
        decode = SimpleNamespace(
            kv=SimpleNamespace(pages=cache["pages"], held=lambda tokens: -(-tokens // 16)),
            policy=SimpleNamespace(max_requests=cache["most"], max_batched_tokens=2048),
        )
        ready = SimpleNamespace(
            run=lambda: "record", window=lambda record, steady: (record, steady), traffic="traffic",
            energy=lambda record, figures, window: {"power_w": 500.0, "window": window}, steady_figures=steady,
            engines=SimpleNamespace(uncertain=wide, decode=decode), all_notes=["one", "two"],
        )  # fmt: skip
        monkeypatch.setattr(
            run, "deploy", lambda stated, traffic: asked.append((stated.setup.replicas, traffic)) or ready
        )
        monkeypatch.setattr(Question, "traffic", lambda self, requests, rate: (requests, rate))
        return asked

    return of


LIMITED = replace(QUESTION, tpot_ms=20)
SPLIT = Split("H100", engine="vllm")


def served(question: Question, *words: Any, **more: Any) -> Point:
    return run.serve(run.ready_for(MODEL, SPLIT, question), question, *words, **more)


def test_a_run_within_its_limits_and_its_ends(told: Any) -> None:
    asked = told(10.0, {0.9: 8.0, 1.2: 15.0})
    point = served(LIMITED, 4.0, 320, 2)
    assert asked == [(2, (320, 4.0)), 1.2, 0.9], "two replicas, then both ends"
    assert (point.rate, point.replicas, point.requests, point.notes) == (4.0, 2, 320, ("one", "two"))
    assert point.over == pytest.approx(math.log(10 / 20)) and point.over_high == pytest.approx(math.log(15 / 20))
    assert point.sure and point.figures["tpot_mean_ms_low"] == 8.0 and point.figures["tpot_mean_ms_high"] == 15.0
    assert point.figures["power_w"] == 500.0 and point.figures["window"] == ("record", True)
    assert (point.max_num_seqs, point.max_num_batched_tokens) == (10_000 // 69, 2048)
    told(10.0, {1.2: 20.0})
    near = served(LIMITED, 4.0, 320)
    assert near.over_high == 0.0 and near.sure and near.replicas == 1, "a limit that is met is kept"
    told(10.0, {1.2: 20.1})
    over = served(LIMITED, 4.0, 320)
    assert over.over < 0 < over.over_high and not over.sure


def test_ends_of_a_run_that_misses_are_not_run(told: Any) -> None:
    asked = told(22.0, {1.2: 30.0})
    point = served(LIMITED, 4.0, 320)
    assert len(asked) == 1 and point.over == pytest.approx(math.log(1.1)) and not point.sure
    assert point.over_high == pytest.approx(math.log(1.21)) and point.figures["tpot_mean_ms_high"] == pytest.approx(
        24.2
    )
    asked = told(20.0, {1.2: 20.0})
    assert served(LIMITED, 4.0, 320).over == 0.0 and len(asked) == 2


def test_times_of_engines_that_still_fill_count_as_they_grow(told: Any) -> None:
    told(10.0, {1.2: 15.0}, grows={"tpot_ms_grown": 1.9})
    point = served(LIMITED, 4.0, 320)
    assert point.over == pytest.approx(math.log(19 / 20)) and point.over_high == pytest.approx(math.log(20.9 / 20))
    assert not point.sure and point.figures["tpot_mean_ms"] == 10.0, "what is told is as the run has it"


def test_the_lower_end_is_not_run_of_a_design_that_surely_misses(told: Any) -> None:
    asked = told(10.0, {0.9: 8.0, 1.2: 21.0})
    assert not served(LIMITED, 4.0, 320, sure=True).sure and asked[1:] == [1.2]
    asked = told(10.0, {0.9: 8.0, 1.2: 21.0})
    assert not served(LIMITED, 4.0, 320).sure and asked[1:] == [1.2, 0.9]


def test_a_run_that_does_not_keep_up(told: Any) -> None:
    asked = told(1.0, {1.2: 2.0}, overloaded=True)
    point = served(LIMITED, 4.0, 320)
    assert (point.over, point.over_high, len(asked)) == (OVERLOADED, OVERLOADED, 1)
    told(1.0, {1.2: 2.0}, late=True)
    point = served(LIMITED, 4.0, 320)
    assert point.over < 0 and point.over_high == OVERLOADED, "slow steps do not keep up"
    told(1.0, {1.2: 2.0}, late=True)
    assert served(QUESTION, 4.0, 320).sure, "which is no matter without limits"


@pytest.mark.parametrize(("pages", "most", "seqs"), [(1e4, 64, 64), (69.0, 64, 1), (10.0, 64, 1), (138.0, 64, 2)])
def test_as_many_requests_as_a_cache_holds_whole(pages: float, most: int, seqs: int, told: Any) -> None:
    told(10.0, {}, pages=pages, most=most)
    assert served(QUESTION, 4.0, 320).max_num_seqs == seqs


def test_users_who_wait_longer_than_thought(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twelve users who think for a second and wait for 3 s, where the look said 2: half way each time, from below."""
    rates = list[float]()

    def serve(design: Any, question: Any, rate: float, requests: int, replicas: int = 1, **_: Any) -> Point:
        rates.append(rate)
        return Point(rate, replicas, requests, FIGURES | {"e2e_mean_ms": 3000.0}, -0.1, -0.1, 256, 2048)

    monkeypatch.setattr(search, "serve", serve)
    monkeypatch.setattr(search, "largest", lambda *_, **__: 100.0)
    look = Screened(SPLIT, 4.0, 4.0, times_ms=(100.0, 10.0, 2000.0))
    (fleet,) = search.serve_best(MODEL, look, QUESTION, Demand(users=12.0, think_s=1.0), False)
    waits = [2.0]
    while 3.0 / (12.0 / (1.0 + waits[-1])) <= 0.95:
        waits.append(math.sqrt(3.0 * waits[-1]))
    assert rates == pytest.approx([12.0 / (1.0 + wait) for wait in waits]) and len(rates) == 4
    assert fleet.peak == rates[-1] and 0.95 < 3.0 / fleet.peak < 1.0


def test_what_the_search_for_a_rate_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[Any]()
    point = partial(Point, replicas=1, requests=300, figures=FIGURES, over=-0.1, over_high=-0.1, max_num_seqs=1,
                    max_num_batched_tokens=1)  # fmt: skip
    monkeypatch.setattr(search, "largest", lambda *words, **more: asked.append((*words[1:], more)) or 3.0)
    monkeypatch.setattr(search, "serve", lambda design, question, rate, *_, **__: point(rate))
    look = Screened(SPLIT, 4.0, 2.0, times_ms=(100.0, 10.0, 2000.0))
    search.serve_best(MODEL, look, QUESTION, Demand(), True)
    search.serve_best(MODEL, look, QUESTION, Demand(rate=1.0), False)
    told = [(QUESTION, 2.0, 4.0, {"sure": True, "near": 0.05}), (QUESTION, 4.0, 8.0, {"sure": False, "near": 0.05}),
            (QUESTION, 2.0, 4.0, {"sure": True, "near": 0.08})]  # fmt: skip
    assert asked == told, "its rate by the look, and what is in flight then"


@pytest.mark.parametrize(
    ("slow", "late", "above", "asked"),
    [
        ({"tpot": 18.0, "ttft": 40.0}, False, math.log(0.9), [1.25]),  # likely 14.4 at most, so 18 by law
        ({"tpot": 24.0, "ttft": 40.0}, False, math.log(1.2), [1.25]),
        ({"tpot": 10.0, "ttft": 40.0}, True, OVERLOADED, [1.25]),
        ({"tpot": 10.0, "ttft": 70.0}, False, math.log(0.8), [1.25, 1.0, 1.25]),  # 56 at most, 89.6 by law: too much
    ],
)
def test_likely_steps_are_run_where_the_slowest_do_not_tell(
    slow: dict[str, float], late: bool, above: float, asked: list[float]
) -> None:
    """Factors of 1.25 of later tokens and of 1.6 of first ones, which take 50 ms in likely steps."""
    scales, factors = list[float](), {"ttft_ms": 1.6, "tpot_ms": 1.25}

    def steady(scale: float = 1.0) -> tuple[dict[str, float], bool]:
        scales.append(scale)
        times = slow if scale > 1 else {"tpot": 8.0, "ttft": 50.0}
        return {f"{name}_mean_ms": ms for name, ms in times.items()}, late and scale > 1

    uncertain = SimpleNamespace(
        ends=lambda metric, ms: {"_low": ms / factors[metric], "_high": ms * factors[metric]},
        tried=lambda _: (0.8, 1.25),
    )
    ready: Any = SimpleNamespace(steady_figures=steady, engines=SimpleNamespace(uncertain=uncertain))
    both = replace(LIMITED, ttft_ms=100)
    assert run._surely_above(ready, both) == pytest.approx(above) and scales == asked


def test_a_run_of_a_design_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = list[Any]()
    monkeypatch.setattr(
        run, "deploy", lambda stated, traffic: made.append((stated.setup.replicas, traffic)) or made[-1]
    )
    monkeypatch.setattr(Question, "traffic", lambda self, requests, rate: (requests, rate))
    design, other = (run.ready_for(MODEL, SPLIT, QUESTION) for _ in range(2))
    assert design(4.0, 320, 2) is design(4.0, 320, 2) == (2, (320, 4.0)) and len(made) == 1
    assert other(4.0, 320, 2) is not design(4.0, 320, 2), "a search has its own"


@pytest.mark.parametrize("edge", [7.0, 9.0, 10.5, 13.0])
def test_the_largest_rate_below_a_cliff(edge: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Times that keep their limits until the server no longer keeps up: between what kept up and what did not."""
    tried = list[float]()
    monkeypatch.setattr(run, "deploy", lambda stated, traffic: traffic)
    monkeypatch.setattr(Question, "traffic", lambda self, requests, rate: tried.append(rate))
    monkeypatch.setattr(run, "_surely_above", lambda *_: OVERLOADED if tried[-1] > edge else -0.5)

    def largest(guess: float) -> float:
        return run.largest(run.ready_for(MODEL, SPLIT, LIMITED), LIMITED, guess, 16.0, sure=True, near=0.03)

    found = largest(8.0)
    assert found == max(rate for rate in tried if rate <= edge) and len(tried) <= 5
    assert edge / 1.3 < found <= edge
    above = [rate for rate in tried if rate > edge]
    assert all(rate < min(above[:at], default=math.inf) for at, rate in enumerate(above)), "never beyond what failed"
    late = largest(1e4 * edge)
    assert late == 0.0, "nothing was kept in five runs"
    tried.clear()
    assert largest(8.0 * edge) in (0.0, *tried)

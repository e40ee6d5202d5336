"""What a plan tells of made-up designs: rows, fronts, budgets, lengths of servers, what would move the winner."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np
import pytest

from pipewave.models import load
from pipewave.planning import Demand, Meter, Plan, Question, Space, Split, prices
from pipewave.planning.fleet import Fleet, curve, hourly
from pipewave.planning.plan import Design, _pools
from pipewave.planning.run import Point
from pipewave.planning.screen import Screened
from pipewave.simulate.traffic import Traffic, synthetic

PLANS = import_module("pipewave.planning.plan")
MODEL, QUESTION, SPACE = load("Llama-3.1-8B"), Question(1000, 200), Space(("H100", "H200"))
ENDS = ("", "_low", "_high")
FIGURES = {
    f"{name}{end}": value * factor
    for name, value in {"ttft_mean_ms": 100.0, "tpot_mean_ms": 12.0, "e2e_mean_ms": 500.0, "ttft_p99_ms": 300.0,
                        "power_w": 412.34567, "energy_j_per_output_token": 0.123456789}.items()
    for end, factor in zip(ENDS, (1.0, 0.8, 1.25), strict=True)
}  # fmt: skip


def point(
    rate: float = 3.0, *, replicas: int = 1, high: float = -1.0, notes: tuple[str, ...] = (), **more: Any
) -> Point:
    return Point(rate, replicas, 300, FIGURES | more, -1.0, high, 200, 4096, notes)


def design(cost: float = 1.0, tpot: float = 12.0, joules: float = 1.0, gpu: str = "H100", **more: Any) -> Design:
    at = point(tpot_mean_ms=tpot, energy_j_per_output_token=joules, **more)
    split = Split(gpu, engine="vllm")
    return Design(Screened(split, 3.0, 3.0), Fleet(1, 4.0, at, cost), cost)


def plan(*designs: Design, demand: Demand = Demand(), **more: Any) -> Plan:  # noqa: B008
    return Plan(MODEL, more.pop("question", QUESTION), SPACE, demand, more.pop("looked", ()), designs, prices(), **more)


def test_a_row_by_hand() -> None:
    """Five replicas of two GPUs, of which three were run, at 2 USD an hour of a replica."""
    split = Split("H100", tp=2, engine="vllm", power_limit_w=400.0)
    of = Design(Screened(split), Fleet(5, 1.5, point(3.0, replicas=3), 10.0), 10.0, Meter(1.25, 400.0))
    row = of.row(replace(QUESTION, ttft_ms="p99=1000", tpot_ms=40))
    expected = {
        "gpu": "H100", "gpus": 2, "replicas": 5, "engines": "one", "tp": 2, "pp": 1, "ep": 1, "dp": 1,
        "power_limit_w": 400.0, "dcp": None, "drafts": "none", "engine": "vllm", "weights": "as asked", "kv_dtype": "auto",
        "max_num_seqs": 200, "max_num_batched_tokens": 4096, "requests": 300, "requests_per_s": 5.0, "in_flight": 0.5,
        "ttft_ms": 100.0, "ttft_ms_low": 80.0, "ttft_ms_high": 125.0, "tpot_ms": 12.0, "tpot_ms_low": 9.6,
        "tpot_ms_high": 15.0, "e2e_ms": 500.0, "e2e_ms_low": 400.0, "e2e_ms_high": 625.0,
        "ttft_p99_ms": 300.0, "ttft_p99_ms_low": 240.0, "ttft_p99_ms_high": 375.0,
        "tokens_per_s_per_gpu": 100.0, "tokens_per_s_per_user": 83.3333,
        "usd_per_million_tokens": round(10.0 / (3600 * 5 * 200) * 1e6, 4), "usd_per_hour": 10.0, "usd_per_month": 7300.0,
        "tokens_per_mwh": round(3.6e9 / (0.123456789 * 1.25), 4),
        "kg_co2_per_million_tokens": round(1e6 * 0.123456789 * 1.25 / 3.6e6 * 0.4, 4), "sure": "yes",
        "power_w": 412.34567, "power_w_low": 0.8 * 412.34567, "power_w_high": 1.25 * 412.34567,
        "energy_j_per_output_token": 0.123456789, "energy_j_per_output_token_low": 0.8 * 0.123456789,
        "energy_j_per_output_token_high": 1.25 * 0.123456789,
    }  # fmt: skip
    assert row == expected, "limits on means add no column"
    assert (of.joules, of.speed) == (0.123456789, 1e3 / 12.0)
    other = Split("H100", engine="vllm", weights="w", kv_dtype="fp8", speculative="mtp,tokens=1")
    row = Design(Screened(other), Fleet(1, 4.0, point(tpot_mean_ms=0.0, high=0.1)), 1e6).row(QUESTION)
    assert (row["weights"], row["kv_dtype"], row["drafts"], row["sure"]) == ("w", "fp8", "mtp,tokens=1", "perhaps")
    none = ("usd_per_million_tokens", "usd_per_hour", "usd_per_month", "tokens_per_s_per_user", "power_limit_w")
    assert all(row[name] is None for name in none) and "kg_co2_per_million_tokens" not in row
    assert row["tokens_per_mwh"] == round(3.6e9 / 0.123456789, 4)


@pytest.mark.parametrize(
    ("prefill", "decode", "said"),
    [
        (None, Split("H100", tp=2), "one"),
        (Split("H100", tp=4), Split("H100", ep=8, dp=8), "3 tp4 + 2 dp8"),
        (Split("H100", ep=2, dp=2), Split("H200", tp=1), "3 dp2 H100 + 2 tp1 H200"),
    ],
)
def test_engines_of_a_row(prefill: Split | None, decode: Split, said: str) -> None:
    split = replace(decode, prefill=prefill, workers=(3, 2))
    assert _pools(split) == said
    if prefill:
        by_gpu = {"H100": 3 * prefill.tp * prefill.dp} if prefill.gpu == "H100" else {}
        by_gpu[split.gpu] = by_gpu.get(split.gpu, 0) + 2 * decode.tp * decode.dp
        assert split.by_gpu == by_gpu and split.gpus == sum(by_gpu.values())


def test_who_wins_and_who_is_shown_first() -> None:
    fast, slow, dear = design(2.0, 10.0), design(2.0, 12.0), design(3.0, 8.0, gpu="H200")
    unsure = design(1.0, 20.0, high=0.1)
    found = plan(dear, slow, unsure, fast)
    assert found.ranked == (fast, slow, dear, unsure), "sure ones first; of a cost the quicker one"
    assert found.winner is fast and found.likely is unsure
    assert found.best_by_gpu == (fast, dear) and found.front == (unsure, fast, dear)
    assert [row["tpot_ms"] for row in found.rows()] == [10.0, 8.0, 12.0, 20.0], "the best of each GPU, then the others"
    assert plan(unsure).winner is unsure and plan(unsure).likely is None
    assert plan(fast).likely is None and plan().winner is plan().likely is None and plan().front == ()
    capped = replace(slow, look=replace(slow.look, split=replace(slow.split, power_limit_w=400.0)))
    assert plan(capped, fast).best_by_gpu in ((capped, fast), (fast, capped)), "a power limit is a card of its own"
    unpriced = replace(design(1e6, 1.0), fleet=replace(fast.fleet, usd_per_hour=None))
    assert plan(unpriced, slow).front == (slow,) and plan(unpriced).front == (unpriced,)
    assert found.model == "Llama-3.1-8B"


def test_fronts_of_energy() -> None:
    frugal, fast, dear = design(2.0, 10.0, 0.5), design(1.0, 5.0, 1.0), design(3.0, 10.0, 0.6)
    twin, unsure = design(2.0, 10.0, 0.5), design(9.0, 50.0, 0.1, high=0.2)
    found = plan(dear, frugal, fast, twin, unsure)
    assert found.energy_front == (fast, frugal, twin, unsure), (
        "an equal one beats none; what is worse in two and better in none is out"
    )
    assert found.least_energy is frugal and plan(unsure).least_energy is unsure and plan().least_energy is None


def test_rows_as_a_table_and_none() -> None:
    read = list(csv.DictReader(io.StringIO(plan(design(2.0), design(1.0, gpu="H200")).csv())))
    assert [row["gpu"] for row in read] == ["H200", "H100"] and list(read[0]) == list(design().row(QUESTION))
    assert plan().csv().strip() == ""


def arrivals(*times: float) -> Traffic:
    return replace(synthetic(len(times), input_len=8, output_len=8), arrival_s=np.array(times))


@pytest.mark.parametrize(
    ("budget", "replicas", "enough"), [(730.0 * 6, 3, True), (730.0 * 5.9, 2, False), (730 * 4.1, 2, False)]
)
def test_what_a_budget_pays_for(budget: float, replicas: int, enough: bool) -> None:
    of = replace(design(), fleet=Fleet(3, 1.23456, point(3.0), 6.0))
    found = plan(of, demand=Demand(rate=3.0, budget=budget)).fleet(of)
    rate = round(replicas * 1.23456, 4)
    assert found["budget"] == {
        "usd_per_month": budget, "enough": enough, "replicas": replicas, "requests_per_s": rate,
    }  # fmt: skip
    assert "autoscaler" not in found and "budget" not in plan(of, demand=Demand(rate=3.0)).fleet(of)
    unpriced = replace(of, fleet=replace(of.fleet, usd_per_hour=None))
    alone = plan(unpriced, demand=Demand(rate=3.0, budget=budget)).fleet(unpriced)
    assert "budget" not in alone and alone["usd_per_hour"] is alone["usd_per_month"] is None
    assert alone["usd_per_million_output_tokens"] is alone["usd_per_million_input_tokens"] is None
    day = Demand(arrivals=arrivals(*range(49)))
    scaled = plan(of, demand=day).fleet(of)["autoscaler"]
    assert scaled == curve(day, 1.23456, 2.0) and scaled["scale_delay_s"] == 300.0
    assert plan(unpriced, demand=day).fleet(unpriced)["autoscaler"]["usd_per_month"] is None


def test_a_curve_is_rounded_and_its_delay_is_in_whole_parts() -> None:
    """24 parts of 10.0125 s; the second half of them twice as busy."""
    times = sorted([at * 10.0125 + 0.01 for at in range(24)] + [at * 10.0125 + 5 for at in range(12, 24)])
    demand = Demand(arrivals=arrivals(0.0, *times[1:], 240.3), scale_delay_s=10.02)
    found = curve(demand, 1 / 10.0125, None)
    assert found["start_s"][1:4] == [10.0, 20.0, 30.0] and found["start_s"][-1] == 230.3
    assert found["requests_per_s"][:2] == [0.0999, 0.0999] and found["requests_per_s"][13] == 0.1998
    assert found["needed"] == [1] * 12 + [2] * 11 + [3], "a rate of exactly two takes two"
    assert found["replicas"][:15] == [1] * 15 and found["replicas"][15] == 2, "wanted after the 13th, two parts later"
    assert found["usd_per_month"] is None and found["scale_delay_s"] == 10.02
    quiet = curve(Demand(arrivals=arrivals(0.0, 1.0, 240.0), scale_delay_s=0.0), 0.2, 1.0)
    assert quiet["needed"][1:-1] == [0] * 22 and min(quiet["replicas"]) == 1, "one always runs"


def test_an_hour_of_two_kinds_of_gpus() -> None:
    known = prices({"H100": 2.0, "H200": 3.0})
    split = Split("H200", tp=4, engine="vllm", prefill=Split("H100", tp=2, engine="vllm"), workers=(3, 1))
    assert hourly(split, known, 700.0) == 3 * 2 * 2.0 + 4 * 3.0
    assert hourly(split, known, 700.0, replicas=5) == 5 * 24.0
    one = {"H200": known["H200"]}
    assert hourly(split, one, 700.0) is None and hourly(Split("H200", tp=2), one, 0.0) == 6.0
    power = replace(known["H200"], usd_per_kwh=0.1)
    assert hourly(Split("H200", tp=2), {"H200": power}, 500.0) == pytest.approx(2 * (3.0 + 0.05))


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """What the launch of a design is made of."""

    def of(found: Plan, split: Split) -> dict[str, Any]:
        asked = dict[str, Any]()

        def pools(*words: Any, **more: Any) -> list[Any]:
            asked.update(zip(("model", "split", "batch", "budget"), words, strict=True), **more)
            return []

        monkeypatch.setattr(PLANS, "pools", pools)
        monkeypatch.setattr(PLANS, "render", lambda *words: asked.update(form=words) or "line")
        one = Design(Screened(split), Fleet(1, 4.0, point(), 1.0), 1.0)
        assert found.launch(one, "docker") == "line"
        return asked

    return of


def test_lengths_batches_and_weights_of_a_launch(launched: Any) -> None:
    question = Question(1000, 200, spread=0.5)
    asked = launched(plan(question=question), Split("H100", engine="vllm:0.22.1"))
    assert (asked["model"], asked["batch"], asked["budget"], asked["length"]) == ("Llama-3.1-8B", 200, 4096, 1864)
    assert asked["form"][:3] == ("docker", "vllm", "0.22.1") and asked["engine"].name == "vllm"
    whole = Question(100_000, 31_050, spread=0.0)
    assert launched(plan(question=whole), Split("H100", engine="vllm"))["length"] == 131_072, "the model's own limit"
    endless = replace(plan(question=question), spec=replace(MODEL, max_length=None))
    assert launched(endless, Split("H100", engine="vllm"))["length"] == 1800
    pools = Split("H100", tp=2, engine="vllm", prefill=Split("H100", engine="vllm"), workers=(1, 3))
    assert launched(plan(), pools)["batch"] == 600
    ranks = plan(question=question)
    assert (
        launched(replace(ranks, spec=load("Qwen3-30B-A3B")), Split("H200", ep=4, dp=4, engine="vllm"))["batch"] == 800
    )
    assert launched(plan(), Split("H100", engine="vllm", weights="fp8"))["model"] == "Llama-3.1-8B", (
        "made while loading"
    )
    assert launched(plan(), Split("H100", engine="vllm", weights="o/awq"))["model"] == "o/awq"


def test_notes_are_said_once_and_the_last_by_the_winner() -> None:
    first = design(1.0, notes=("both", "rows of this GPU: few", "run of the first"))
    other = design(2.0, 5.0, gpu="H200", notes=("both", "rows of this GPU: few", "run of the other"))
    found = plan(first, other).notes()
    assert found == ["both", "rows of H100, H200: few", "run of the first"]
    assert plan().notes() == []


def looks(*rates: float, refused: frozenset[int] = frozenset(), gpus: int = 1) -> Callable[..., Screened]:
    """Looks in order: rate, and times a hundred and ten times its inverse."""
    left = iter(enumerate(rates))

    def screen(spec: Any, split: Split, question: Any, gpu: Any = None, at_rate: float = 0.0) -> Screened:
        number, rate = next(left)
        times = (100.0 / rate, 10.0 / rate, 0.0) if rate else (0.0, 0.0, 0.0)
        return Screened(split, rate, times_ms=times, refused="why" if number in refused else "")

    return screen


def test_what_a_tenth_more_changes_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, answer = list[Any](), looks(4.0, 4.0, 5.0, 2.0, 4.0, 4.4, 4.1, refused=frozenset({4}))

    def screen(spec: Any, split: Split, question: Any, gpu: Any = None, at_rate: float = 0.0) -> Screened:
        asked.append((gpu, at_rate))
        return answer(spec, split, question)

    monkeypatch.setattr(PLANS, "screen", screen)
    found = plan(design()).elasticities()
    keys = ("more", "ttft_ms_change_percent", "tpot_ms_change_percent", "tokens_per_s_per_gpu_change_percent")
    rows = [("DRAM bandwidth", 0.0, 0.0, 0.0), ("clock", -20.0, -20.0, 25.0), ("L2 bandwidth", 100.0, 100.0, -50.0),
            ("power", -9.09, -9.09, 10.0), ("memory size", -2.44, -2.44, 2.5)]  # fmt: skip
    expected = [dict(zip(keys, (f"+10 % {row[0]}", *row[1:]), strict=True)) for row in rows]
    assert found == expected
    usual = asked[0][0]
    names = ("dram_gbps", "boost_clock_mhz", "l2_gbps", "link_gbps", "tdp_w", "dram_gib")
    assert [rate for _, rate in asked] == [0.0] + [4.0] * 6 and all(gpu.name == "H100" for gpu, _ in asked)
    for name, (gpu, _) in zip(names, asked[1:], strict=True):
        assert getattr(gpu, name) == pytest.approx(1.1 * getattr(usual, name))
        assert all(getattr(gpu, other) == getattr(usual, other) for other in ("dram_gbps", "tdp_w") if other != name)
    assert plan().elasticities() == plan().left_out() == []


def test_what_was_left_out_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a winner at 3 requests a second: a cache of 1 byte, two budgets, two stages and forms of the weights."""
    monkeypatch.setattr(PLANS, "screen", looks(4.5, 3.0, 0.0, 9.0, *[3.3] * 9, refused=frozenset({1})))
    found = {row["option"]: row["rate_change_percent"] for row in plan(design()).left_out()}
    assert found.pop("--quantize fp8") == 10.0
    assert {name: found[name] for name in found if "quantize" not in name} == {
        "--kv-cache-dtype fp8": 50.0,
        "--pp 2": 50.0,
    }
    monkeypatch.setattr(PLANS, "screen", looks(*[3.0] * 9))
    other = design()
    split = replace(other.split, pp=2, kv_dtype="fp8", max_num_batched_tokens=4096)
    of = replace(other, look=replace(other.look, split=split))
    mine = replace(plan(of), spec=replace(MODEL, name="mine"))
    assert mine.left_out() == [], "what was tried, and forms of a model that is not listed"


def test_a_plan_as_one_object(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("launch", "left_out", "elasticities"):
        monkeypatch.setattr(Plan, name, lambda *words: (words[0].model, *words[2:]))
    split = Split("H100", engine="vllm")
    tall = replace(split, tp=2)
    looked = (
        Screened(split, 3.0, 3.0, least_ms=(50.1234, 9.0)), Screened(tall, 0.0, least_ms=(60.0, 7.00049)),
        Screened(replace(split, tp=4), refused="too large"), Screened(replace(split, tp=8), refused="too large"),
        Screened(replace(split, gpu="GB300"), refused="no engine"),
    )  # fmt: skip
    one, two = design(1.0), design(2.0, 10.0, gpu="H200")
    question = replace(QUESTION, ttft_ms=900, prefix_share=0.5)
    found = plan(one, two, looked=looked, question=question)
    found = replace(found, space=Space(("H100", "GB300", "h200")))
    told = found.to_dict(1, "docker")
    assert told["asked"] == {
        "limits": ["mean TTFT ≤ 900 ms"],
        "input_len": 1000,
        "output_len": 200,
        "prefix_share": 0.5,
    }
    assert (told["model"], told["designs"], told["meet_the_limits"], told["served"]) == ("Llama-3.1-8B", 2, 1, 2)
    assert told["shortest"] == {"ttft_ms": 50.123, "tpot_ms": 7.0}
    assert told["does_not_fit"] == [
        {"why": "too large", "splits": ["H100 tp4 pp1 ep1 vllm", "H100 tp8 pp1 ep1 vllm"]},
        {"why": "no engine", "splits": ["GB300 tp1 pp1 ep1 vllm"]},
    ]
    assert told["impossible"] == {"GB300": "no engine"} and told["without_price"] == ["GB300"]
    assert [price["gpu"] for price in told["prices"]] == ["H100", "H200"]
    assert told["winner"] == one.row(question) and told["likely"] is None and told["fleet"] == found.fleet(one)
    assert told["serve"] == found.serve_command(one) and told["launch"] == ("Llama-3.1-8B", "docker")
    assert len(told["best_by_gpu"]) == 2, "of each GPU, however few rows are asked for"
    assert [len(told[name]) for name in ("front", "energy_front", "rows")] == [1, 1, 1]
    none = plan().to_dict()
    empty = ("winner", "likely", "fleet", "serve", "launch", "least_energy", "shortest")
    assert all(none[name] is None for name in empty) and none["prices"] == none["rows"] == []

"""Small laws behind a plan, by hand: questions, splits of a space, demand, an autoscaler's curve, rates of a look."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pipewave.errors import BadInput
from pipewave.models import load
from pipewave.planning import Demand, Limit, Plan, Question, Space, Split
from pipewave.planning.fleet import Fleet, curve
from pipewave.planning.plan import Design
from pipewave.planning.run import Point, command_line
from pipewave.planning.screen import Curve, Screened, screen
from pipewave.simulate.traffic import Traffic, synthetic

MODEL, QUESTION = load("Llama-3.1-8B"), Question(1000, 200, spread=0.5)


def arrivals(*times: float) -> Traffic:
    traffic = synthetic(len(times), input_len=8, output_len=8)
    return replace(traffic, arrival_s=np.array(times))


def point(rate: float, tpot_ms: float = 10.0, *, high: float = -1.0, replicas: int = 1) -> Point:
    figures = {
        "tpot_mean_ms": tpot_ms,
        "ttft_mean_ms": 100.0,
        "e2e_mean_ms": 500.0,
        "energy_j_per_output_token": tpot_ms,
    }
    ends = {f"{name}{end}": 1.0 for name in ("power_w", "energy_j_per_output_token") for end in ("", "_low", "_high")}
    return Point(rate, replicas, 300, ends | figures, -1.0, high, 256, 8192)


def design(cost: float, tpot_ms: float, *, sure: bool = True) -> Design:
    split = Split("H100", engine="vllm")
    at = point(2.0, tpot_ms, high=-1.0 if sure else 1.0)
    return Design(Screened(split, 2.0, 2.0), Fleet(1, 4.0, at, cost), cost)


@pytest.mark.parametrize(
    ("spread", "prompt", "request_len"), [(0.5, 1500, 1800), (0.0, 1000, 1200), (0.25, 1250, 1500)]
)
def test_the_longest_request_of_a_question(spread: float, prompt: int, request_len: int) -> None:
    question = replace(QUESTION, spread=spread)
    assert (question.longest_prompt, question.longest) == (prompt, request_len)


@pytest.mark.parametrize(
    ("model", "options", "degrees"),
    [
        ("Llama-3.1-8B", {}, [(1, 1, 1, 1), (2, 1, 1, 1), (4, 1, 1, 1), (8, 1, 1, 1)]),
        ("Llama-3.1-8B", {"tps": (1, 4), "pps": (1, 2)}, [(1, 1, 1, 1), (1, 2, 1, 1), (4, 1, 1, 1), (4, 2, 1, 1)]),
        ("Llama-3.1-8B", {"tps": (2,), "pps": (1, 2), "gpus_most": 2}, [(2, 1, 1, 1)]),
        ("Llama-3.1-8B", {"tps": (1,), "dps": (1, 2)}, [(1, 1, 1, 1)]),
        ("Qwen3-30B-A3B", {"tps": (2,)}, [(2, 1, 1, 1), (2, 1, 2, 1)]),
        ("Qwen3-30B-A3B", {"tps": (2,), "experts": False}, [(2, 1, 1, 1)]),
        ("Qwen3-30B-A3B", {"tps": (1, 2), "dps": (2,)}, [(1, 1, 2, 2), (2, 1, 4, 2)]),
        ("Qwen3-30B-A3B", {"tps": (1,)}, [(1, 1, 1, 1), (1, 1, 2, 2), (1, 1, 4, 4), (1, 1, 8, 8)]),
        ("Llama-3.1-405B", {}, [(1, 1, 1, 1), (2, 1, 1, 1), (4, 1, 1, 1), (8, 1, 1, 1), (8, 2, 1, 1), (8, 4, 1, 1)]),
    ],
)
def test_every_split_of_a_space(model: str, options: dict[str, Any], degrees: list[tuple[int, int, int, int]]) -> None:
    """tp, pp, ep, dp on H100 nodes: 8 × 79.6 GiB do not hold 405B parameters in 16 bits."""
    space = Space(("H100",), engines=("vllm",), **options)
    assert [(s.tp, s.pp, s.ep, s.dp) for s in space.splits(load(model), "H100")] == degrees


def test_settings_and_power_limits_of_a_space() -> None:
    space = Space(("H100",), budgets=(None, 4096), batches=(8, 16), power_limits=(None, 500.0, 900.0))
    assert [tuple(each.values()) for each in space.settings()] == [(None, 8), (None, 16), (4096, 8), (4096, 16)]
    card = Split("H100", engine="vllm").card
    assert list(space.limits_on(card)) == [None, 500.0]
    assert list(replace(space, rack_w=3200.0, gpus_per_rack=8).limits_on(card)) == [400.0]


@pytest.mark.parametrize("name", ["rate", "tokens_per_s", "users", "budget"])
def test_a_demand_is_above_nothing(name: str) -> None:
    for fine in (1e-6, 0.5, 1.0, 9.9e8):
        assert getattr(Demand(**{name: fine}), name) == fine  # type: ignore[arg-type]
    for wrong in (0, -1.0, 1e9, True):
        with pytest.raises(BadInput, match=name):
            Demand(**{name: wrong})  # type: ignore[arg-type]


def test_an_autoscaler_by_hand() -> None:
    """24 bins of 10 s: two requests in each but the seventh, which has twelve; a replica serves 0.2 a second."""
    times = [10.0 * at + more for at in range(24) for more in (0.0, 5.0)] + [60.0 + each / 2 for each in range(1, 11)]
    demand = Demand(arrivals=arrivals(*sorted(times)[:-1], 240.0), scale_delay_s=20.0)
    starts, rates = demand.rates()
    assert starts.tolist() == [10.0 * at for at in range(24)]
    assert rates.tolist() == [1.2 if at == 6 else 0.2 for at in range(24)]
    found = curve(demand, 0.2, 3.0)
    assert found["start_s"][:3] == [0.0, 10.0, 20.0] and found["bin_s"] == 10.0
    assert found["needed"] == [6 if at == 6 else 1 for at in range(24)]
    assert found["replicas"] == [6 if at == 9 else 1 for at in range(24)], "wanted after the seventh, there 20 s later"
    assert found["replica_hours"] == round((23 + 6) * 10 / 3600, 2)
    assert found["fixed_replica_hours"] == round(6 * 240 / 3600, 2)
    assert found["share_of_requests_while_short"] == round(1.2 / (23 * 0.2 + 1.2), 4)
    assert found["usd_per_month"] == round(3.0 * 29 / 24 * 730, 2)


def test_a_fleet_by_hand() -> None:
    fleet = Fleet(4, 2.0, point(3.0, replicas=2), 12.0)
    assert (fleet.peak, fleet.utilisation) == (6.0, 0.75)
    found = fleet.to_dict(Split("H100", tp=2, engine="vllm"), QUESTION, 0.25)
    assert (found["gpus"], found["usd_per_month"], found["headroom"]) == (8, 8760.0, round(1 / 0.75 - 1, 4))
    assert found["usd_per_million_output_tokens"] == round(12 * 0.75 * 1e6 / (3600 * 6 * 200), 4)
    assert found["usd_per_million_input_tokens"] == round(12 * 0.25 * 1e6 / (3600 * 6 * 1000), 4)


def test_the_front_and_the_winner_by_hand() -> None:
    cheap, fast, beaten, likely = design(1.0, 20.0), design(3.0, 10.0), design(2.0, 30.0), design(0.5, 40.0, sure=False)
    found = Plan(MODEL, QUESTION, Space(("H100",)), Demand(), (), (fast, beaten, likely, cheap), {})
    assert found.winner is cheap and found.likely is likely
    assert found.ranked == (cheap, beaten, fast, likely)
    assert found.front == (likely, cheap, fast)
    assert found.least_energy is fast and found.best_by_gpu == (cheap,)
    assert "cheapest: 1 × 1 × H100, tp 1, vllm: TTFT 100 ms, TPOT 20 ms" in repr(found)
    assert repr(replace(found, designs=())).endswith("0 served; none keeps the limits>")


def test_requests_in_flight_by_littles_law() -> None:
    assert point(4.0).in_flight == 2.0


CURVE = Curve(np.array([1.0, 2.0, 4.0]), np.array([0.1, 0.2, 0.4]), np.array([0.01, 0.02, 0.04]))


@pytest.mark.parametrize(
    ("limits", "rate"),
    [
        ({}, 0.93 * 4),
        ({"ttft_ms": 200}, 2.0),
        ({"tpot_ms": 20}, 2.0),
        ({"ttft_ms": 50}, 0.0),
        ({"e2e_ms": 400}, 2.0),  # 0.2 + (11 - 1) · 0.02
        ({"ttft_ms": 200 * math.sqrt(2)}, 2 * math.sqrt(2)),  # between two points, in logarithms
        ({"ttft_ms": 200, "tpot_ms": 10}, 1.0),
        ({"ttft_ms": "p90=360"}, 2.0),
    ],
)
def test_the_largest_rate_within_limits(limits: dict[str, Any], rate: float) -> None:
    asked = tuple(one for name, value in limits.items() if (one := Limit.of(name, value)))
    assert CURVE.within(asked, 11) == pytest.approx(rate)
    assert CURVE.at(3.0) == pytest.approx((0.3, 0.03))


def test_intervals_take_from_the_largest_rate() -> None:
    wide = {"ttft_ms": math.log(2.0), "tpot_ms": math.log(1.5)}
    limits = tuple(one for one in (Limit.of("ttft_ms", 400), Limit.of("tpot_ms", 1000)) if one)
    assert CURVE.within(limits, 11, wide) == pytest.approx(2.0)
    loose = tuple(one for one in (Limit.of("ttft_ms", 1e5),) if one)
    assert CURVE.within(loose, 11, wide) == pytest.approx(0.93 * 4 / 1.5)


@pytest.mark.parametrize(
    ("split", "said"),
    [
        ({"tp": 2, "ep": 8, "dp": 4}, "--tp 2 --ep 8 --dp 4 --gpus 8"),
        ({"tp": 4}, "--tp 4"),
        ({"dp": 8, "ep": 8}, "--ep 8 --dp 8"),
        ({"tp": 2, "pp": 2, "max_num_seqs": 64}, "--tp 2 --pp 2 --max-num-seqs 64"),
    ],
)
def test_the_line_that_serves_a_design(split: dict[str, Any], said: str) -> None:
    line = command_line("m", Split("H100", engine="vllm", **split), QUESTION, point(2.0))
    assert line.startswith(
        f"pipewave serve --model m --gpu H100 --engine vllm {said} --isl 1000 --osl 200 --spread 0.5"
    )
    assert "--quantize fp8 " in command_line("m", Split("H100", weights="fp8"), QUESTION, point(2.0))


def test_what_a_tenth_more_of_a_gpu_and_what_was_left_out_would_change() -> None:
    """Decoding waits for the memory: a tenth more of anything moves no time or rate by much more."""
    split = Split("H100", engine="vllm")
    question = Question(500, 40, tpot_ms=12)
    look = screen(MODEL, split, question)
    served = Design(look, Fleet(1, look.rate, point(look.rate), 3.0), 3.0)
    found = Plan(MODEL, question, Space(("H100",)), Demand(), (look,), (served,), {})
    moved = {row["more"]: row for row in found.elasticities()}
    assert len(moved) == 6
    assert all(abs(change) < 10.5 for row in moved.values() for name, change in row.items() if name != "more")
    assert moved["+10 % DRAM bandwidth"]["tpot_ms_change_percent"] < -2
    two = {row["option"]: row["rate_change_percent"] for row in found.left_out()}["--pp 2"]
    rate = screen(MODEL, replace(split, pp=2), question).rate
    assert two == pytest.approx(100 * (rate / look.rate / 2 - 1), abs=0.06), "a replica of two GPUs against two of one"

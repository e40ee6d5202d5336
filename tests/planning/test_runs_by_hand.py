"""How far made-up runs are above their limits, and of which winners a plan says what would change."""

from __future__ import annotations

import math
from dataclasses import replace
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pipewave.models import load
from pipewave.planning import Question, Split
from pipewave.planning.fleet import Demand
from pipewave.planning.plan import Plan
from pipewave.planning.run import OVERLOADED, _above, budget_of, stated
from pipewave.planning.screen import Screened
from pipewave.simulate.report import over

QUESTION, MODEL = Question(1000, 100), load("Llama-3.1-8B")


@pytest.mark.parametrize(
    ("sure", "limited", "late", "late_slow", "slow_ms", "above"),
    [
        (False, True, False, False, 99.0, math.log(10.0 / 20.0)),  # as it is
        (False, True, True, False, 99.0, OVERLOADED),
        (True, True, True, False, 99.0, OVERLOADED),  # whatever the interval
        (True, False, True, False, 99.0, OVERLOADED),
        (True, False, False, True, 99.0, over({}, ())),  # without limits nothing is run again
        (True, True, False, False, 15.0, math.log(18.0 / 20.0)),  # the upper end
        (True, True, False, False, 19.0, math.log(19.0 / 20.0)),  # steps at their slowest
        (True, True, False, True, 19.0, OVERLOADED),
    ],
)
def test_how_far_a_run_is_above_its_limits(
    sure: bool, limited: bool, late: bool, late_slow: bool, slow_ms: float, above: float
) -> None:
    def answers(scale: float = 1.0) -> tuple[dict[str, float], bool]:
        return ({"tpot_mean_ms": 10.0}, late) if scale == 1.0 else ({"tpot_mean_ms": slow_ms}, late_slow)

    wide = SimpleNamespace(ends=lambda _, value: {"low": value / 1.8, "high": 1.8 * value}, tried=lambda _: [0.5, 1.5])
    ready: Any = SimpleNamespace(steady_figures=answers, engines=SimpleNamespace(uncertain=wide))
    question = replace(QUESTION, tpot_ms=20) if limited else QUESTION
    assert _above(ready, question, sure=sure) == pytest.approx(above)


def test_steps_without_an_interval_are_run_as_they_are() -> None:
    asked = list[float]()

    def answers(scale: float = 1.0) -> tuple[dict[str, float], bool]:
        asked.append(scale)
        return {"tpot_mean_ms": 10.0}, False

    exact = SimpleNamespace(ends=lambda _, value: {"low": value, "high": value}, tried=lambda _: [])
    ready: Any = SimpleNamespace(steady_figures=answers, engines=SimpleNamespace(uncertain=exact))
    assert _above(ready, replace(QUESTION, tpot_ms=20), sure=True) == pytest.approx(math.log(0.5))
    assert asked == [1.0, 1.0]


@pytest.mark.parametrize("more", [{"weights": "fp8"}, {"prefill": Split("H100", engine="vllm"), "workers": (1, 1)}])
def test_nothing_is_said_of_changes_to_engines_apart_or_to_other_weights(more: dict[str, Any]) -> None:
    found: Any = SimpleNamespace(winner=SimpleNamespace(split=Split("H100", engine="vllm", **more)))
    assert Plan.left_out(found) == Plan.elasticities(found) == []


def test_a_better_gpu_that_cannot_be_asked_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    split = Split("H100", engine="vllm")
    answers = iter([Screened(split, 4.0), *[Screened(split, refused="why")] * 6])
    monkeypatch.setattr(import_module("pipewave.planning.plan"), "screen", lambda *_, **__: next(answers))
    found: Any = SimpleNamespace(winner=SimpleNamespace(split=split), spec=MODEL, question=QUESTION)
    assert Plan.elasticities(found) == []


@pytest.mark.parametrize(
    ("times", "starts", "peak"),
    [
        ([0.0, 1.0, 1.5, 2.0, 30.0], 1.25, 2 / 1.25),  # half a minute in 24 parts
        ([5.0, 905.0, 906.0, 7355.0], 294.0, 2 / 294.0),  # two hours and 150 s in 25 parts of at most five minutes
    ],
)
def test_the_peak_of_arrivals_is_their_busiest_part(times: list[float], starts: float, peak: float) -> None:
    demand = Demand(arrivals=SimpleNamespace(arrival_s=np.array(times)))  # type: ignore[arg-type]
    found, rates = demand.rates()
    assert found[:2].tolist() == pytest.approx([0.0, starts])
    assert demand.peak(QUESTION, 1.0) == rates.max() == pytest.approx(peak)


def test_engines_of_a_pool_stand_beside_one_another() -> None:
    split = Split("H200", tp=4, engine="vllm", prefill=Split("H100", tp=2, engine="vllm"), workers=(3, 2))
    pools = stated(MODEL, split, QUESTION, replicas=2).pools
    assert [(one.workers, one.tp) for one in pools or () if one] == [(6, 2), (4, 4)]


@pytest.mark.parametrize(("prompt", "budget"), [(8192, None), (8193, 16384), (16384, 16384), (16385, 32768)])
def test_a_step_holds_the_longest_prompt_of_an_engine_that_cuts_none(prompt: int, budget: int | None) -> None:
    assert budget_of(Split("H200", engine="trtllm"), Question(prompt, 100, spread=0.0)) == budget

"""Answers of `estimate` and `serve`, whose figures are not those of a case, corrected by measured runs."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pipewave.published.answers import deploy
from pipewave.published.cases import Case, from_dict
from pipewave.published.unstated import Stated
from pipewave.simulate.estimate import Estimate
from pipewave.simulate.setup import Pace
from pipewave.simulate.traffic import Traffic
from pipewave.told.answers import Learned, learn, off_by
from pipewave.told.figures import RATE, Figures, figures, measured_by
from pipewave.told.readers import Run

TIMES = re.compile(r"(ttft|tpot|itl|e2e)_\w+?_ms(?=$|_low$|_high$)")
AS = {"itl": "tpot"}  # an interval between two tokens is one of those that TPOT is the mean of
RATES = (RATE, "total_tokens_per_s", "requests_per_s", "output_tokens_per_s_per_gpu")
AS_PREDICTED = "steps, goodput and what happened in each step are as predicted"


def corrected_estimate(found: Estimate, case: Mapping[str, Any], told: Sequence[Run]) -> Estimate:
    """A static batch, corrected by measured runs. Raises what reading the case raises."""
    asked, learned, notes = _learned(case, {"mode": "estimate"}, told)
    if learned is None:
        return replace(found, notes=(*found.notes, *notes))
    each = off_by(figures(asked), learned)
    times: dict[str, Any] = {}
    for name, ours in (("prefill_ms", "ttft_ms"), ("tpot_ms", "tpot_ms"), ("e2e_ms", "e2e_ms")):
        for side, end in (("", 0.0), ("_low", -1.0), ("_high", 1.0)):
            times[name + side] = getattr(found, name) * _factor(each, ours, end)
    rate = found.output_tokens_per_s * found.e2e_ms / times["e2e_ms"]
    return replace(found, **times, output_tokens_per_s=rate, notes=(*found.notes, *notes))


def corrected_run(
    found: Mapping[str, Any], stated: Stated, traffic: Traffic, case: Mapping[str, Any], told: Sequence[Run]
) -> dict[str, Any]:
    """Percentiles and rates of `serve`, corrected by measured runs; each by what its mean is off by.

    `case`: the deployment in the fields of a case. Raises what reading it raises.
    """
    last_s = float(traffic.arrival_s.max())
    rate = len(traffic) / last_s if last_s else math.inf
    load = {"concurrency": traffic.concurrency} if traffic.concurrency else {"rate": rate, "requests": len(traffic)}
    lengths = {"isl": float(traffic.input_len.mean()), "osl": float(traffic.output_len.mean())}
    asked, learned, sentences = _learned(case, lengths | load, told)
    notes = [*found["notes"], *sentences]
    if learned is None:
        return {**found, "notes": notes}
    each = off_by(_of_run(asked, stated, traffic), learned)
    out = {name: value * _factor(each, RATE) if name in RATES else value for name, value in found.items()}
    for name in found:
        if match := TIMES.match(name):
            middle, side = match.group(), name[match.end() :]
            figure = f"{AS.get(match.group(1), match.group(1))}_ms"
            out[name] = found[middle] * _factor(each, figure, {"_low": -1.0, "_high": 1.0}.get(side, 0.0))
    return {**out, "notes": [*notes, AS_PREDICTED]}


def _learned(
    case: Mapping[str, Any], load: Mapping[str, Any], told: Sequence[Run]
) -> tuple[Case, Learned | None, tuple[str, ...]]:
    """The case without what it is told, what that says, and sentences."""
    given = {name: value for name, value in case.items() if value is not None}
    asked = from_dict({**given, **load, "told": [{"mode": "serve"} | one for one in told]})
    learned, refused = learn(asked.told)
    return replace(asked, told=()), learned, (*refused, *(learned.sentences() if learned else ()))


def _of_run(asked: Case, stated: Stated, traffic: Traffic) -> Figures:
    """What the figures of these very requests hinge on."""

    def run(pace: Pace) -> dict[str, Any]:
        ready = deploy(replace(stated, setup=replace(stated.setup, pace=pace)), traffic)
        summary = ready.figures(ready.run())
        means = {f"{name}_ms": summary.get(f"{name}_mean_ms", 0.0) for name in ("ttft", "tpot", "e2e")}
        return means | {RATE: summary[RATE]}

    return measured_by(asked, run)


def _factor(each: Mapping[str, tuple[float, float]], name: str, end: float = 0.0) -> float:
    """What a figure is multiplied with, or an end of its interval."""
    mean, half = each.get(name, (0.0, 0.0))
    return math.exp(mean + end * half)

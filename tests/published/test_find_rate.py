"""The largest rate within limits: what it promises is what runs at that rate say."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

import pipewave as pw
from pipewave.cli import build
from pipewave.errors import BadInput
from pipewave.published.find_rate import NEAR, SURE, FoundRate
from pipewave.published.find_rate import find_rate as largest_rate
from pipewave.simulate.interval import Uncertainty
from pipewave.simulate.report import Limit
from pipewave.simulate.simulation import Record
from tests.command_line import CliRunner

CASE = {"input_len": 256, "output_len": 8, "max_num_seqs": 8, "spread": 0.2}


def found(**limits: float | str) -> FoundRate:
    return pw.find_rate("Llama-3.1-8B", "H200", **CASE, **limits)


@pytest.fixture(scope="module")
def mean() -> FoundRate:
    return found(tpot_ms=6.0)


@pytest.mark.slow
def test_limit_is_kept_at_the_rate_and_not_above_it(mean: FoundRate) -> None:
    rows = {row["rate"]: row for row in mean.curve}
    best = rows[round(mean.rate_per_s, 4)]
    assert 6.0 * (1 - 3 * NEAR) < best["tpot_mean_ms"] <= 6.0
    assert min(row["tpot_mean_ms"] for row in rows.values() if row["rate"] > best["rate"]) > 6.0
    assert mean.bound_by == "mean TPOT ≤ 6 ms"
    assert mean.rate_per_s_low < mean.rate_per_s < mean.rate_per_s_high


def test_times_and_rates_of_the_curve_rise_until_it_saturates(mean: FoundRate) -> None:
    kept = [row for row in mean.curve if not row["saturated"]]
    assert [row["tpot_mean_ms"] for row in kept] == sorted(row["tpot_mean_ms"] for row in kept)
    flooded = [row for row in mean.curve if row["saturated"]]
    assert flooded[-1]["rate"] > mean.capacity_per_s
    assert flooded[-1]["requests_per_s"] == pytest.approx(mean.capacity_per_s, rel=0.05)


@pytest.mark.slow
def test_percentile_binds_before_the_mean(mean: FoundRate) -> None:
    assert 0 < found(tpot_ms="p99=6").rate_per_s < mean.rate_per_s


@pytest.mark.slow
def test_without_limits_the_deployment_has_to_keep_up() -> None:
    free = found()
    assert free.bound_by == "capacity"
    assert 0.85 * free.capacity_per_s < free.rate_per_s < 1.15 * free.capacity_per_s


@pytest.mark.slow
def test_limit_that_no_rate_keeps() -> None:
    none = found(ttft_ms=0.01)
    assert (none.rate_per_s, none.rate_per_s_low) == (0.0, 0.0)
    assert none.verdict.startswith("no rate is within mean TTFT ≤ 0.01 ms")


@pytest.mark.parametrize("given", ["p42=3", "p99=", "fast", -1.0, True, "p99=nan"])
def test_limit_that_cannot_be(given: float | str) -> None:
    with pytest.raises(BadInput, match="ttft_ms"):
        Limit.of("ttft_ms", given)


def test_load_that_has_no_rate() -> None:
    with pytest.raises(BadInput, match="leave out told"):
        pw.find_rate("Llama-3.1-8B", "H200", **CASE, told=[{"concurrency": 4, "tpot_ms": 9.0}])
    with pytest.raises(BadInput, match="concurrency"):
        pw.find_rate("Llama-3.1-8B", "H200", **CASE, concurrency=4)
    for mode in ("offline", "estimate"):  # where all requests come at once, whatever the rate
        with pytest.raises(BadInput, match="leave out mode"):
            pw.find_rate("Llama-3.1-8B", "H200", **CASE, mode=mode)


@pytest.mark.slow
def test_command_says_what_python_says(mean: FoundRate) -> None:
    words = ["serve", "--model", "Llama-3.1-8B", "--gpu", "H200", "--isl", "256", "--osl", "8", "--spread", "0.2"]
    words += ["--max-num-seqs", "8", "--find-rate", "--tpot", "6"]
    told, shown = (CliRunner().invoke(build(), [*words, *more]).output for more in (["--json"], []))
    assert json.loads(told)["rate_per_s"] == pytest.approx(mean.rate_per_s, rel=1e-3)
    assert mean.verdict in shown


@pytest.mark.slow
def test_runs_say_whether_they_keep_up() -> None:
    case = {**CASE, "model": "Llama-3.1-8B", "gpu": "H200"}
    most = found().capacity_per_s
    assert pw.serve(**case, rate=0.5 * most, requests=500)["verdict"] == "steady"
    flooded = pw.serve(**case, rate=4 * most, requests=500)["verdict"]
    served = float(flooded.removeprefix("saturated: ").split(" ")[0])
    assert served == pytest.approx(most, rel=0.05)
    assert "no steady state" in pw.serve(**case, rate=0.5 * most, requests=3)["verdict"]


@pytest.mark.parametrize("limits", [(), (Limit("ttft_ms", 1e9),)])
def test_search_ends_where_every_run_seems_to_keep_up(limits: tuple[Limit, ...]) -> None:
    """A deployment of which no run is long enough to show that its queue grows, done with ten a second."""
    names = {"model": "M", "gpu": "G", "gpus": 1, "engine": "E"}
    engines = SimpleNamespace(uncertain=Uncertainty(0.1, "vllm", version_given=True), names=lambda: names)

    def load(rate: float, count: int) -> Any:
        done = np.arange(1, count + 1) / 10.0
        record = Record(done - 0.05, done, np.zeros(count))
        steady = ({"ttft_mean_ms": 1.0, "tpot_mean_ms": 1.0, "e2e_mean_ms": 2.0}, False)
        return SimpleNamespace(
            engines=engines, traffic=range(count), run=lambda: record, steady_figures=lambda scale: steady, all_notes=[]
        )

    answer = largest_rate(cast(Any, load), limits)
    assert 0.9 * SURE * 10.0 < answer.rate_per_s <= SURE * 10.0
    assert answer.capacity_per_s == answer.rate_per_s, "a deployment does at most no less than it keeps up with"
    assert answer.bound_by == "capacity"


def test_a_file_too_short_to_tell_is_refused(tmp_path: Path) -> None:
    """Of 200 requests all seemed kept up with at rates far beyond what two hundred of them can show."""
    file = tmp_path / "few.csv"
    file.write_text("\n".join(["arrival_time,prompt_tokens,output_tokens", *(f"{i},300,40" for i in range(90))]))
    words = f"serve --model Qwen3-0.6B --gpu H100 --find-rate --trace {file}".split()
    wrong = CliRunner().invoke(build(), words).exception
    assert isinstance(wrong, BadInput) and wrong.field == "requests" and "requests = 90: must be " in str(wrong)


@pytest.mark.parametrize(
    ("more", "field"),
    [("--find-rate --price 2", "price"), ("--find-rate --told runs.json", "told"), ("--find-rate --aiperf out", "aiperf"),
     ("--find-rate --no-interval", "interval"), ("--cases -", "model"), ("--rate 2 --out answers.jsonl", "out"), ("--rate 2 --resume", "resume"), ("--cases - --rate 2", "rate"),
     ("--cases - --tp 2", "tp"), ("--cases - --ttft 500", "ttft")],
)  # fmt: skip
def test_options_without_effect_are_refused(more: str, field: str) -> None:
    words = ["serve", "--model", "Qwen3-0.6B", "--gpu", "H100", *more.split()]
    wrong = CliRunner().invoke(build(), words).exception
    assert isinstance(wrong, BadInput) and wrong.field == field

"""Plans: fleets for a demand, designs that `serve` answers alike, limits that hold, and what is refused."""

from __future__ import annotations

import json
import math
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import pipewave as pw
from pipewave.cli import build
from pipewave.errors import BadInput, MissingField, UnknownGPU
from pipewave.files import packaged
from pipewave.models import load
from pipewave.models.load import CHECKPOINTS
from pipewave.planning import Demand, Limit, Plan, Question, Space, plan, prices
from pipewave.planning.fleet import curve
from pipewave.published.stream import executor
from pipewave.simulate.traffic import synthetic
from pipewave.view import report
from tests.command_line import CliRunner

MODEL, QUESTION = load("Llama-3.1-8B"), Question(500, 40, ttft_ms=800, tpot_ms=25)
SPACE = Space(("H100", "L40S"), (1, 2), engines=("vllm",), disaggregated=False)


@pytest.fixture(scope="module")
def found() -> Plan:
    return plan(MODEL, QUESTION, SPACE, demand=Demand(rate=60.0))


def test_a_fleet_serves_its_rate_within_the_limits(found: Plan) -> None:
    assert found.winner is not None and found.winner.sure
    row, fleet = found.winner.row(QUESTION), found.fleet(found.winner)
    assert row["ttft_ms_high"] <= 800 and row["tpot_ms_high"] <= 25
    assert fleet["requests_per_s"] == 60 and fleet["replicas"] >= math.ceil(60 / fleet["requests_per_s_per_replica"])
    assert fleet["headroom"] == pytest.approx(1 / fleet["utilisation"] - 1, abs=1e-3)
    each = found.prices[row["gpu"]].usd_per_hour
    assert fleet["usd_per_hour"] == pytest.approx(fleet["gpus"] * each)
    assert fleet["usd_per_month"] == pytest.approx(730 * fleet["usd_per_hour"])
    whole = (
        60 * 3600 / 1e6 * (500 * fleet["usd_per_million_input_tokens"] + 40 * fleet["usd_per_million_output_tokens"])
    )
    assert whole == pytest.approx(fleet["usd_per_hour"], rel=2e-2), "both parts are the whole"
    assert row["usd_per_million_tokens"] == pytest.approx(fleet["usd_per_hour"] / (60 * 40 * 3600) * 1e6, rel=1e-3)


@pytest.mark.parametrize("which", [0, -1])
def test_a_design_is_answered_as_serve_answers_it(found: Plan, which: int) -> None:
    design = found.designs[which]
    words = shlex.split(found.serve_command(design))[1:]
    done = CliRunner().invoke(build(), [*words, "--json"], catch_exceptions=False)
    assert not done.exit_code, done.output
    served, row = json.loads(done.stdout), design.row(QUESTION)
    for metric in ("ttft", "tpot", "e2e"):
        for end in ("", "_low", "_high"):
            assert row[f"{metric}_ms{end}"] == pytest.approx(served[f"{metric}_mean_ms{end}"], abs=2e-4)


def test_the_winner_is_the_cheapest_sure_design(found: Plan) -> None:
    assert found.winner is not None
    assert found.winner.cost == min(design.cost for design in found.designs if design.sure)
    if found.likely is not None:
        assert found.likely.cost < found.winner.cost and not found.likely.sure
    speeds = [design.speed for design in found.front]
    assert speeds == sorted(speeds)
    assert {row["gpu"] for row in found.rows()[: len(found.best_by_gpu)]} == {"H100", "L40S"}


@pytest.mark.slow
def test_limits_on_percentiles_and_on_means() -> None:
    assert Limit.of("ttft_ms", 2000) == Limit("ttft_ms", 2000.0, "mean")
    assert Limit.of("ttft_ms", "p99=2000") == Limit("ttft_ms", 2000.0, "p99")
    for wrong in ("p42=1", "p99=", "x", 0, -1.0, True, math.inf):
        with pytest.raises(BadInput):
            Question(8, 8, ttft_ms=wrong)
    mean, tail = (plan(MODEL, Question(500, 40, ttft_ms=limit), SPACE) for limit in (200.0, "p99=200"))
    assert mean.winner is not None and tail.winner is not None
    assert tail.winner.row(tail.question)["ttft_p99_ms"] <= 200
    assert tail.winner.cost > mean.winner.cost


def test_users_tokens_and_budget() -> None:
    space = Space(("H100",), (1,), engines=("vllm",), disaggregated=False)
    users = plan(MODEL, QUESTION, space, demand=Demand(users=500, think_s=20, budget=1e6))
    assert users.winner is not None
    fleet, row = users.fleet(users.winner), users.winner.row(QUESTION)
    assert fleet["requests_per_s"] == pytest.approx(500 / (20 + row["e2e_ms"] / 1e3), rel=0.02)
    waiting = replace(QUESTION, tpot_ms=40.0)
    busy = plan(
        MODEL, waiting, space, demand=Demand(users=100)
    )  # without a pause their rate is what waits let them ask
    assert busy.winner is not None
    row = busy.winner.row(waiting)
    assert busy.fleet(busy.winner)["requests_per_s"] == pytest.approx(100 / (row["e2e_ms"] / 1e3), rel=0.06)
    assert fleet["budget"]["enough"] and fleet["budget"]["replicas"] >= fleet["replicas"]
    assert Demand(tokens_per_s=400).peak(QUESTION, 1.0) == 10
    for wrong in ({"rate": 0.0}, {"rate": 1.0, "users": 3.0}, {"think_s": -1.0}, {"budget": math.inf}):
        with pytest.raises(BadInput):
            Demand(**wrong)  # type: ignore[arg-type]


def test_an_autoscaler_follows_the_day_with_its_delay() -> None:
    quiet, busy = (
        synthetic(100, input_len=8, output_len=8, rate=1.0),
        synthetic(1000, input_len=8, output_len=8, rate=10.0),
    )
    times = [*quiet.arrival_s, *(quiet.arrival_s[-1] + busy.arrival_s), *(300 + quiet.arrival_s)]
    day = synthetic(1200, input_len=8, output_len=8)
    day = replace(day, arrival_s=np.sort(np.array(times)))
    at_once, late = (curve(Demand(arrivals=day, scale_delay_s=s), 2.0, 3.0) for s in (0.0, 60.0))
    assert max(at_once["replicas"]) == max(at_once["needed"])
    assert late["share_of_requests_while_short"] > at_once["share_of_requests_while_short"]
    assert at_once["replica_hours"] < at_once["fixed_replica_hours"]


@pytest.mark.slow
def test_the_command_sizes_a_fleet_and_writes_a_table(tmp_path: Path) -> None:
    words = [
        "plan",
        "--model",
        "Llama-3.1-8B",
        "--gpus",
        "H100",
        "--isl",
        "500",
        "--osl",
        "40",
        "--tp",
        "1",
        "--engine",
    ]
    words += ["vllm", "--rate", "30", "--ttft", "p95=900", "--no-disaggregated", "--csv", str(tmp_path / "plan.csv")]
    (tmp_path / "prices.json").write_text('{"H100": 1.25}')
    words += ["--price-file", str(tmp_path / "prices.json")]
    done = CliRunner().invoke(build(), words, catch_exceptions=False)
    assert done.exit_code == 0 and "USD a month" in done.output and "p95 TTFT" in done.output
    rows = (tmp_path / "plan.csv").read_text().splitlines()
    assert rows[0].startswith("gpu,gpus,replicas") and len(rows) > 1
    (by_python,) = {d.fleet.usd_per_hour / d.fleet.replicas for d in pw.plan(
        "Llama-3.1-8B", "H100", isl=500, osl=40, tps=(1,), engines=("vllm",), rate=30, ttft_ms="p95=900",
        disaggregated=False, prices={"H100": 1.25}).designs if d.fleet.usd_per_hour}  # fmt: skip
    assert by_python == 1.25


def test_a_file_of_arrivals_says_how_long_its_requests_are(tmp_path: Path) -> None:
    table = tmp_path / "day.csv"
    rows = [f"{at / 4},{400 + at % 200},{20 + at % 40}" for at in range(400)]
    table.write_text("\n".join(["arrival_time,prompt_tokens,output_tokens", *rows]))
    asked = "plan --model Qwen3-0.6B --gpus H100 --tp 1 --engine vllm --no-disaggregated --json"
    words = asked.split()
    done = CliRunner().invoke(build(), [*words, "--arrivals", str(table)], catch_exceptions=False)
    assert json.loads(done.output)["asked"]["input_len"] == 500
    twice = CliRunner().invoke(build(), [*words, "--arrivals", str(table), "--isl", "300"]).exception
    assert isinstance(twice, BadInput) and twice.field == "input_len" and "leave it out" in str(twice)
    assert isinstance(CliRunner().invoke(build(), words).exception, MissingField)


@pytest.mark.slow
def test_prompts_and_tokens_on_different_gpus() -> None:
    space = Space(("H100", "L40S"), (1,), engines=("vllm",), budgets=(8192,))
    found = plan(MODEL, Question(2000, 100, tpot_ms=20), space)
    mixed = [look for look in found.looked if look.split.prefill and look.split.prefill.gpu != look.split.gpu]
    assert mixed and set(mixed[0].split.by_gpu) == {"H100", "L40S"}
    case = {"tp": 1, "input_len": 500, "output_len": 20, "rate": 2.0, "requests": 20}
    same, apart = (
        pw.serve("Llama-3.1-8B", "H100", prefill={"gpu": gpu}, decode={}, **case) for gpu in ("H100", "L40S")
    )
    assert apart["ttft_ms"] > 1.5 * same["ttft_ms"]
    assert apart["tpot_ms"] == pytest.approx(same["tpot_ms"], rel=0.1)


def test_no_design_whose_prompts_are_longer_than_a_step_of_an_engine_that_does_not_cut_them() -> None:
    space = Space(("H200",), (1,), engines=("trtllm",), disaggregated=False)
    question = Question(4096, 100, ttft_ms=2000, tpot_ms=60)
    found = plan(load("Qwen3-32B"), question, space)
    assert found.winner is not None and found.winner.fleet.point.max_num_batched_tokens >= 6144
    cut = replace(space, budgets=(1024,))
    assert plan(load("Qwen3-32B"), question, cut).winner is None


@pytest.mark.slow
def test_own_prices_decide_and_unpriced_gpus_are_named() -> None:
    dear = plan(MODEL, QUESTION, SPACE, own_prices={"h100_sxm": 1000.0})
    assert dear.to_dict()["winner"]["gpu"] == "L40S"
    alone = plan(MODEL, QUESTION, Space(("GB300",), (1,), engines=("vllm",), disaggregated=False)).to_dict()
    assert alone["without_price"] == ["GB300"] and alone["winner"]["usd_per_million_tokens"] is None
    assert prices({"H100": 1.0})["H100"].provider == "yours"
    for wrong, problem in (({"H100": -1.0}, BadInput), ({"H1000": 1.0}, UnknownGPU)):
        with pytest.raises(problem):
            prices(wrong)


@pytest.mark.slow
def test_a_rate_below_one_request_at_a_time_is_found() -> None:
    """One request in flight at all times is more than a long prompt's limit allows."""
    space = Space(("L40S",), (1,), engines=("vllm",), disaggregated=False)
    found = plan(MODEL, Question(12000, 4, ttft_ms=8000, spread=0.0), space)
    assert found.winner is not None and found.winner.row(found.question)["ttft_ms"] <= 8000


@pytest.mark.slow
def test_quantised_weights_are_an_axis_and_named_where_they_were_not_tried() -> None:
    space = {"tps": (1, 2), "engines": ("vllm",), "disaggregated": False, "rate": 30.0, "ttft_ms": 2000, "tpot_ms": 60}
    plain, all_forms = (
        pw.plan("Qwen3-32B", "H100", input_len=1000, output_len=50, quantize=quantize, **space)
        for quantize in ((), ("fp8", "published"))
    )
    named = {row["option"]: row["rate_change_percent"] for row in plain.left_out()}
    assert named["--quantize Qwen/Qwen3-32B-FP8"] > 0 and "--quantize fp8" in named
    assert plain.winner is not None and all_forms.winner is not None
    assert all_forms.winner.split.weights and all_forms.winner.cost < plain.winner.cost
    lines = {d.split.weights: all_forms.launch(d) for d in all_forms.designs}
    assert all(
        name not in lines or f"vllm serve {name} " in lines[name] for name in packaged.shared(CHECKPOINTS)["Qwen3-32B"]
    )
    assert "--quantization fp8" in lines.get("fp8", "--quantization fp8")
    assert load("Qwen3-32B", online="fp8_block").layers == load("Qwen3-32B-FP8").layers
    with pytest.raises(BadInput, match="quantize"):
        pw.plan("Qwen3-32B", "H100", input_len=1000, output_len=50, quantize=("int3",))


def test_impossible_spaces_are_named() -> None:
    none = plan(MODEL, Question(1000, 100, tpot_ms=0.001), SPACE).to_dict()
    assert none["winner"] is None and none["launch"] is None and none["shortest"]["tpot_ms"] > 0.001
    with pytest.raises(UnknownGPU, match="did you mean H200"):
        plan(MODEL, QUESTION, Space(("H201",)))
    for wrong in ({"tps": ()}, {"batches": (0,)}, {"budgets": (-1,)}):
        with pytest.raises(BadInput):
            Space(("H100",), **wrong)  # type: ignore[arg-type]
    for name in ("ray://x", "processes://0", "dask://"):
        with pytest.raises(BadInput), executor(name):
            pass


def test_prefix_caching_is_asked_alike_by_command_and_by_python() -> None:
    words = [
        "plan",
        "--model",
        "Llama-3.1-8B",
        "--gpus",
        "H100",
        "--isl",
        "2000",
        "--osl",
        "20",
        "--tp",
        "1",
        "--engine",
    ]
    words += ["vllm", "--ttft", "900", "--no-disaggregated", "--prefix-share", "0.5", "--json"]
    words += ["--max-num-seqs", "64", "--max-num-batched-tokens", "8192"]
    done = CliRunner().invoke(build(), words, catch_exceptions=False)
    cached, plain = (
        pw.plan("Llama-3.1-8B", "H100", input_len=2000, output_len=20, tps=(1,), engines=("vllm",), ttft_ms=900,
                disaggregated=False, batches=(64,), budgets=(8192,), prefix_share=share) for share in (0.5, 0.0))  # fmt: skip
    assert cached.winner is not None and plain.winner is not None
    assert json.loads(done.stdout)["winner"] == cached.to_dict()["winner"]
    assert cached.winner.fleet.peak > 1.2 * plain.winner.fleet.peak


def test_the_default_search_holds_engines_ranks_drafts_and_pools() -> None:
    model, space = load("DeepSeek-V3"), Space(("H200",))
    splits = list(space.splits(model, "H200"))
    assert {split.engine.partition(":")[0] for split in splits} == {"vllm", "sglang", "trtllm"}
    assert {split.dp for split in splits} >= {1, 8} and space.disaggregated
    assert any(way and "mtp" in way for way in space.drafts(model)) and None in space.drafts(model)
    asked = {one.name: one.default for one in build().command("plan").params}
    usual = {name: getattr(space, name) for name in ("tps", "pps", "dps", "engines", "power_limits")}
    assert all(asked[name] is None for name in usual), "the command tries what Python tries by default"
    assert asked["disaggregated"] and not asked["speculative"]


def test_a_budget_alone_says_how_many() -> None:
    """Of designs at 40 ms a token, as many replicas as 20,000 USD a month pay; the most requests come first."""
    asked = {"isl": 500, "osl": 40, "tpot_ms": 40, "tp": [1, 2], "engine": ["vllm"], "disaggregated": False}
    free = pw.plan("Llama-3.1-8B", "H100", **asked)
    found = pw.plan("Llama-3.1-8B", "H100", **asked, budget=20_000)
    assert free.winner is not None and found.winner is not None
    fleet, one = found.fleet(found.winner), free.fleet(free.winner)
    assert fleet["replicas"] == int(20_000 / (one["usd_per_hour"] * 730)) == fleet["budget"]["replicas"] > 1
    assert fleet["budget"]["enough"] and fleet["usd_per_month"] <= 20_000
    assert fleet["requests_per_s"] == pytest.approx(fleet["replicas"] * one["requests_per_s"], rel=1e-3)
    sure = [design.fleet.peak for design in found.designs if design.sure and design.fleet.utilisation > 0.9]
    assert fleet["requests_per_s"] == pytest.approx(max(sure), rel=1e-3)
    poor = pw.plan("Llama-3.1-8B", "H100", **asked, budget=100)
    assert poor.winner is not None and poor.fleet(poor.winner)["budget"]["replicas"] == 0
    assert not poor.fleet(poor.winner)["budget"]["enough"] and poor.winner.fleet.replicas == 1


def test_answers_of_one_token_have_no_time_between_tokens(recwarn: pytest.WarningsRecorder) -> None:
    """A limit on it is kept by any; what shows speeds for a user leaves them out."""
    asked = {"isl": 500, "osl": 1, "ttft_ms": 500, "tpot_ms": 40, "tp": [1], "engine": ["vllm"], "disaggregated": False}
    found = pw.plan("Llama-3.1-8B", "H100", **asked, rate=20)
    assert found.winner is not None and found.winner.sure and found.winner.fleet.replicas == 1
    answer = found.to_dict()
    assert answer["winner"]["tpot_ms"] == 0.0 and answer["winner"]["tokens_per_s_per_user"] is None
    assert "Speed against cost" not in report(answer) and "cheapest design" in report(answer, "md")
    assert not [one for one in recwarn if issubclass(one.category, RuntimeWarning)]


@pytest.mark.parametrize(("name", "beside"), [("think_s", "users"), ("scale_delay_s", "arrivals")])
def test_a_part_of_a_demand_that_is_not_given_is_refused(name: str, beside: str) -> None:
    with pytest.raises(BadInput, match=f"{name}: goes with {beside}"):
        Demand(rate=3.0, **{name: 20.0})
    assert Demand(rate=3.0, scale_delay_s=300.0).given == ["rate"] and not Demand().given


def test_a_limit_on_whole_requests_by_the_command_line() -> None:
    words = (
        "plan --model Qwen3-0.6B --gpus H100 --isl 300 --osl 20 --tp 1 --engine vllm --rate 5 --request-latency p90="
    )
    found = json.loads(CliRunner().invoke(build(), [*f"{words}900 --json".split()]).output)
    assert found["asked"]["limits"] == ["p90 E2E ≤ 900 ms"] and found["winner"]["e2e_p90_ms"] < 900
    assert json.loads(CliRunner().invoke(build(), [*f"{words}1 --json".split()]).output)["winner"] is None

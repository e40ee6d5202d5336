"""One law of intervals: `estimate`, `serve` and `plan` are as sure of one deployment, and less sure of one half described."""

from __future__ import annotations

import math
from typing import Any

import pytest

from pipewave.models import load
from pipewave.planning import Question, Space, plan
from pipewave.published.answers import answer
from pipewave.published.cases import from_dict
from pipewave.published.server_command import read
from pipewave.published.unstated import fill
from pipewave.simulate import estimate
from pipewave.simulate.interval import METRICS, Uncertainty, interval_ends, server_of
from pipewave.simulate.server import Server
from pipewave.simulate.setup import Setup
from pipewave.simulate.traffic import synthetic
from pipewave.software.engine import names_known_version
from pipewave.step import find_engine
from tests.sampled import sampled
from tests.simulate.serving import serve

MODEL, GPU, ENGINES = "Llama-3.1-8B", "H200", ("vllm", "sglang", "trtllm")


def width(row: dict[str, Any], name: str) -> float:
    """Upper end over middle, after a look that the lower end is as far."""
    up, down = row[f"{name}_high"] / row[name], row[name] / row[f"{name}_low"]
    assert up == pytest.approx(down, rel=2e-3)
    return float(up)


def rows(engine: str) -> dict[str, dict[str, Any]]:
    """One deployment with sixteen requests in flight, asked for in four ways; names as `serve --cases` has them."""
    question, space = Question(1000, 100), Space((GPU,), tps=(1,), engines=(engine,), disaggregated=False)
    planned = plan(load(MODEL), question, space).to_dict()
    batch = estimate(MODEL, GPU, batch=16, input_len=1000, output_len=100, engine=engine).to_dict()
    server = Server.of(MODEL, GPU, Setup(engine=engine), 1100)
    run = serve(server, synthetic(40, input_len=1000, output_len=100, concurrency=16), interval=True).answer
    name, _, version = engine.partition(":")
    case = {"model": MODEL, "gpu": GPU, "engine": name, "isl": 1000, "osl": 100, "concurrency": 16, "mode": "offline"}
    case |= {"version": version} if version else {}
    return {
        "plan": planned["winner"] | {"notes": planned["notes"]},
        "estimate": batch,
        "serve": {key.replace("_mean_ms", "_ms"): value for key, value in run.items()},
        "cases": answer(from_dict(case)),
    }


@pytest.mark.slow
@pytest.mark.parametrize("engine", sampled(["vllm", "vllm:0.22.1", "sglang:0.5.14", "trtllm"], 2))
def test_one_deployment_is_known_as_well_whoever_is_asked(engine: str) -> None:
    found = rows(engine)
    planned = found.pop("plan")  # under arrivals of their own, queues amplify what steps leave open
    expected = width(found["estimate"], "tpot_ms")
    for end in ("tpot_ms", "ttft_ms"):
        assert planned[f"{end}_high"] / planned[end] >= math.exp(0.99 * math.log(width(found["serve"], end)))
    for name, row in found.items():
        assert width(row, "tpot_ms") == pytest.approx(expected, rel=5e-3), name
        assert any(note.startswith("90 % intervals") for note in row["notes"]), name
    first = {name: width(row, "ttft_ms") for name, row in found.items() if name != "estimate"}
    assert max(first.values()) == pytest.approx(min(first.values()), rel=5e-3)
    assert width(found["estimate"], "prefill_ms") == pytest.approx(expected, rel=5e-3)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("engine", ENGINES)
def test_intervals_widen_with_what_is_not_known(engine: str, metric: str) -> None:
    given, assumed, rough = (
        Uncertainty(k, engine, t).half(metric) for k, t in ((0.1, True), (0.1, False), (0.3, True))
    )
    assert 0.1 <= given < assumed
    assert given < rough < 0.3 + given
    other = Uncertainty(0.1, "another", version_given=True).half(metric)
    assert other >= max(Uncertainty(0.1, one, version_given=True).half(metric) for one in ENGINES)


def test_ends_are_as_far_on_either_side() -> None:
    ends = interval_ends({"ttft_ms": 100.0}, Uncertainty(0.1, "vllm", version_given=True))
    assert ends["ttft_ms_low"] * ends["ttft_ms_high"] == pytest.approx(1e4)


@pytest.mark.parametrize("metric", METRICS)
def test_ranks_that_share_requests_widen_the_interval_as_variances_add(metric: str) -> None:
    alone, shared = (Uncertainty(0.1, "vllm", version_given=True, ranks=ranks) for ranks in (False, True))
    assert alone.uneven(metric) == 0.0 < shared.uneven(metric)
    assert shared.half(metric) ** 2 == pytest.approx(alone.half(metric) ** 2 + shared.uneven(metric) ** 2)
    assert "ranks" in shared.note() and "ranks" not in alone.note()


@pytest.mark.parametrize("metric", METRICS)
def test_drafts_of_unknown_acceptance_widen_what_comes_after_the_first_token(metric: str) -> None:
    alone, drafted = (Uncertainty(0.1, "vllm", version_given=True, drafts=drafts) for drafts in (0.0, 0.3))
    first = metric == "ttft_ms"
    assert drafted.half(metric) ** 2 == pytest.approx(alone.half(metric) ** 2 + (0.0 if first else 0.3**2))
    assert "acceptance" in drafted.note() and "acceptance" not in alone.note()


def test_acceptance_that_is_given_narrows_every_answer() -> None:
    case = {"model": "DeepSeek-R1", "gpu": GPU, "version": "0.22.1", "tp": 8, "isl": 500, "osl": 20, "concurrency": 8}
    told = {"speculative": "mtp,tokens=3,acceptance=0.62"}
    open_ = {"speculative": "mtp,tokens=3"}
    wide, narrow = (answer(from_dict(case | how)) for how in (open_, told))
    assert wide["tpot_ms"] == narrow["tpot_ms"]
    assert wide["tpot_ms_high"] > narrow["tpot_ms_high"] and wide["ttft_ms_high"] == narrow["ttft_ms_high"]
    given = {"batch": 8, "input_len": 500, "output_len": 20, "tp": 8, "engine": "vllm:0.22.1"}
    one, other = (estimate("DeepSeek-R1", GPU, **given, **how) for how in (open_, told))
    assert one.tpot_ms_high > other.tpot_ms_high and one.prefill_ms_high == other.prefill_ms_high


def test_ranks_of_one_deployment_widen_every_answer() -> None:
    case = {"model": "Qwen3-30B-A3B", "gpu": GPU, "version": "0.22.1", "isl": 500, "osl": 20, "concurrency": 8}
    served = answer(from_dict(case | {"dp": 4, "ep": 4}))
    batch = estimate("Qwen3-30B-A3B", GPU, batch=8, input_len=500, output_len=20, dp=4, ep=4, engine="vllm:0.22.1")
    for notes in (served["notes"], batch.notes):
        assert any("data-parallel ranks" in note for note in notes)


def test_a_version_is_given_by_its_number() -> None:
    assert [names_known_version(name) for name in ("vllm", "vllm:0.22.1", "sglang:v0.5.8.post1", "trtllm:")] == [
        False,
        True,
        True,
        False,
    ]


def test_the_note_names_a_version_that_is_not_given() -> None:
    given, assumed = (Uncertainty(0.1, "vllm", version_given=one).note() for one in (True, False))
    assert "version" not in given
    assert "version not named" in assumed


def test_queues_widen_the_interval_of_requests_that_come_at_a_rate() -> None:
    uncertain = Uncertainty(0.1, "vllm", version_given=True)
    held = interval_ends({"ttft_ms": 1.0}, uncertain, {"ttft_ms": 0.9}, {"ttft_ms": 1e3})
    assert held == interval_ends({"ttft_ms": 1.0}, uncertain) | {"ttft_ms_high": 1e3}


def test_what_a_full_cache_holds_is_as_sure_as_the_runs_beside_it_agree() -> None:
    uncertain = Uncertainty(0.1, "vllm", version_given=True)
    share = [{"prefix_found_share": one} for one in (0.34, 0.24, 0.35)]
    assert interval_ends(share[0], uncertain) == {}
    assert interval_ends(*share[:1], uncertain, *share[1:]) == {
        "prefix_found_share_low": 0.24,
        "prefix_found_share_high": 0.35,
    }
    case = {"model": MODEL, "gpu": GPU, "version": "0.22.1", "isl": 4000, "osl": 20, "requests": 200}
    quiet, busy = (answer(from_dict(case | {"rate": rate})) for rate in (0.5, 12.0))  # 12: near what it can serve
    assert quiet["ttft_ms_high"] / quiet["ttft_ms"] < busy["ttft_ms_high"] / busy["ttft_ms"]


def test_less_is_known_of_an_engines_generation_before_todays() -> None:
    """vLLM's V0 and TensorRT-LLM 0.x: published end-to-end times scatter more than those of today's."""
    for old, new in (("vllm:0.6.0", "vllm:0.11.0"), ("trtllm:0.12.0", "trtllm:1.1.0")):
        then, now = (Uncertainty(0.1, server_of(find_engine(one)), version_given=True) for one in (old, new))
        assert then.half("e2e_ms") > now.half("e2e_ms")
        assert then.engine in then.note()
    assert server_of(find_engine("sglang:0.4.0")) == "sglang"


@pytest.mark.parametrize("named", [{}, {"engine": "vllm"}, {"engine": "vllm:0.33.0"}])
def test_a_version_that_nobody_named_widens_every_answer_alike(named: dict[str, str]) -> None:
    """The newest is assumed where no engine is named, and it is no more sure than one assumed of an engine."""
    case = {"model": MODEL, "gpu": GPU, "isl": 500, "osl": 20, "concurrency": 4, **named}
    served, static = (answer(from_dict(case | {"mode": mode})) for mode in ("serve", "estimate"))
    batch = estimate(MODEL, GPU, batch=4, input_len=500, output_len=20, **named)
    wide = [one["tpot_ms_high"] / one["tpot_ms"] for one in (served, static)] + [batch.tpot_ms_high / batch.tpot_ms]
    assert wide == pytest.approx([wide[0]] * 3, rel=1e-4)
    assert (wide[0] > 1.15) == (":" not in named.get("engine", ""))


def test_a_pasted_line_names_no_version_unless_it_does() -> None:
    few = synthetic(2, input_len=8, output_len=2)
    lines = ("vllm serve Llama-3.1-8B", "docker run vllm/vllm-openai:v0.22.1 --model Llama-3.1-8B")
    found = [fill(read(line).stated(load("Llama-3.1-8B"), GPU), few).setup for line in lines]
    assert [setup.version_assumed for setup in found] == [True, False]

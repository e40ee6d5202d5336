"""A deployment under traffic: the figures of `pipewave serve`, parts that add up to them, and the run over time."""

from __future__ import annotations

import json
import shlex
from typing import Any

import numpy as np
import pytest

from pipewave.cli import build
from pipewave.models import load
from pipewave.published.answers import deploy
from pipewave.published.answers import served as serve
from pipewave.published.unstated import Stated
from pipewave.simulate.pools import Side
from pipewave.simulate.setup import Setup
from pipewave.simulate.speculative import of
from pipewave.simulate.traffic import Traffic, synthetic
from pipewave.web import limits
from tests.command_line import CliRunner

DEPLOYED = {"model": "Llama-3.1-8B", "gpu": "H200"}
LOAD = DEPLOYED | {"input_len": 1000, "output_len": 100, "requests": 200}


def answer(client: Any, question: Any) -> Any:
    reply = client.post("/api/traffic", question)
    assert reply.status == 200, reply.body[:500]
    return reply.json()


def error(client: Any, question: Any) -> Any:
    reply = client.post("/api/traffic", question)
    assert reply.status == 422, reply.body[:300]
    return reply.json()["error"]


def _served(
    model: str, gpu: str, setup: Setup, traffic: Traffic, pools: tuple[Side, Side] | None = None
) -> dict[str, Any]:
    """What `pipewave serve` answers."""
    return serve(deploy(Stated(load(model), gpu, setup, "vllm", pools=pools), traffic)).to_dict()


def test_figures_are_those_of_serve(client: Any) -> None:
    found = answer(client, LOAD | {"rate": 8.0})
    traffic = synthetic(200, input_len=1000, output_len=100, rate=8.0)
    served = _served("Llama-3.1-8B", "H200", Setup(), traffic)
    assert found["notes"] == list(dict.fromkeys(served.pop("notes")))
    watts = {name: served.pop(name) for name in list(served) if "power" in name or "energy" in name}
    assert {name: found[name] for name in served} == pytest.approx(served)
    # Of a run whose steps are kept, watts are sampled step by step, else stretch by stretch.
    assert {name: found[name] for name in watts} == pytest.approx(watts, rel=5e-3)


def test_command_prints_the_same(client: Any) -> None:
    found = answer(client, LOAD | {"concurrency": 16})
    done = CliRunner().invoke(build(), shlex.split(found["command"])[1:])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["ttft_p99_ms"] == found["ttft_p99_ms"]


@pytest.mark.parametrize("how", [{"rate": 8.0}, {"concurrency": 64}, {}, {"concurrency": 32, "engine": "sglang"}])
@pytest.mark.parametrize("settled", [False, True])
def test_parts_add_up_to_the_figures_shown(client: Any, how: dict[str, Any], settled: bool) -> None:
    found = answer(client, LOAD | how | {"settled": settled})
    for name in ("ttft", "tpot"):
        parts = found["where"][f"{name}_ms"]
        assert sum(parts.values()) == pytest.approx(found[f"{name}_mean_ms"], rel=1e-3)
        assert min(parts.values()) >= 0
    assert found["ttft_mean_ms_low"] <= found["ttft_mean_ms"] <= found["ttft_mean_ms_high"]


BESIDE = [{"tp": 4, "dp": 2, "ep": 8}, {"tp": 8, "prefill_engines": 1, "decode_engines": 2},
          {"tp": 8, "speculative": "method=mtp,tokens=2,acceptance=0.8"}]  # fmt: skip


@pytest.mark.parametrize("more", BESIDE)
def test_wide_disaggregated_and_drafted_deployments_are_those_of_serve(client: Any, more: dict[str, Any]) -> None:
    model = {"model": "DeepSeek-V3", "concurrency": 16, "requests": 48, "input_len": 800, "output_len": 60}
    found = answer(client, DEPLOYED | model | more)
    traffic = synthetic(48, input_len=800, output_len=60, concurrency=16)
    sides = (Side(1, tp=8), Side(2, tp=8)) if "decode_engines" in more else None
    setup = {name: of(said) if name == "speculative" else said for name, said in more.items() if "engines" not in name}
    served = _served("DeepSeek-V3", "H200", Setup(**setup), traffic, sides)
    figures = [name for name in served if "_ms" in name or name in ("gpus", "output_tokens_per_s")]
    assert {name: found[name] for name in figures} == pytest.approx({name: served[name] for name in figures})
    for name in ("ttft", "tpot"):
        assert sum(found["where"][f"{name}_ms"].values()) == pytest.approx(found[f"{name}_mean_ms"], rel=1e-3)
    ttft, tpot = (found["where"][name] for name in ("ttft_ms", "tpot_ms"))
    assert ("drafting" in tpot, "cache_transfer" in ttft) == ("speculative" in more, "decode_engines" in more)


POOLS = {"prefill_engines": 2, "decode_engines": 1, "prefill_tp": 4, "decode_tp": 1, "decode_dp": 4, "decode_ep": 4}


def test_pools_with_a_split_of_their_own_are_those_of_serve(client: Any) -> None:
    """`--prefill workers=2,tp=4 --decode workers=1,tp=1,dp=4,ep=4`."""
    model = {"model": "Qwen3-235B-A22B", "concurrency": 16, "requests": 48, "input_len": 800, "output_len": 60, "tp": 8}
    found = answer(client, DEPLOYED | {"gpu": "B200"} | model | POOLS)
    traffic = synthetic(48, input_len=800, output_len=60, concurrency=16)
    sides = Side(workers=2, tp=4), Side(workers=1, tp=1, dp=4, ep=4)
    served = _served("Qwen3-235B-A22B", "B200", Setup(tp=8), traffic, sides)
    figures = {name: value for name, value in served.items() if "_ms" in name or name == "gpus"}
    assert {name: found[name] for name in figures} == pytest.approx(figures)
    assert found["gpus"] == 2 * 4 + 4
    for name in ("ttft", "tpot"):
        assert sum(found["where"][f"{name}_ms"].values()) == pytest.approx(found[f"{name}_mean_ms"], rel=1e-3)
    assert 0 < max(found["timeline"]["kv_share"]) <= 1
    assert sum(found["basis"].values()) == pytest.approx(1, abs=1e-3)
    done = CliRunner().invoke(build(), shlex.split(found["command"])[1:])
    assert json.loads(done.stdout)["ttft_p99_ms"] == found["ttft_p99_ms"], done.output


def test_a_pool_says_only_what_differs(client: Any) -> None:
    """A split that is the deployment's own changes nothing but how long a hand-over takes to set up."""
    apart = LOAD | {"tp": 2, "concurrency": 8, "requests": 40, "prefill_engines": 1, "decode_engines": 2}
    alike, said = answer(client, apart), answer(client, apart | {"decode_tp": 2})
    assert said["gpus"] == alike["gpus"] == 6
    for name in ("ttft_mean_ms", "tpot_mean_ms"):
        assert said[name] == pytest.approx(alike[name], rel=0.02)
    assert answer(client, apart | {"decode_tp": 4})["tpot_mean_ms"] < alike["tpot_mean_ms"]


def test_a_draft_model_is_a_name_and_never_a_path(client: Any) -> None:
    for path in ("/etc", "../models", "file:mine.json"):
        found = error(client, LOAD | {"speculative": f"method=draft,model={path}"})
        assert "unknown model" in found["message"] and found["code"] == "unknown_model"
    by_name = {"model": "Llama-3.1-70B", "tp": 4, "speculative": "method=draft,model=meta-llama/Llama-3.1-8B"}
    assert answer(client, LOAD | by_name | {"requests": 20})["where"]["tpot_ms"]["drafting"] > 0


def test_timeline_holds_every_token_and_never_more_than_the_cache(client: Any) -> None:
    found = answer(client, LOAD | {"rate": 50.0})
    line = found["timeline"]
    width = np.diff([0.0, *line["time_s"]])
    assert float(width @ np.array(line["output_tokens_per_s"])) == pytest.approx(200 * 100, rel=1e-2)
    assert 0 <= min(line["kv_share"]) <= max(line["kv_share"]) <= 1
    assert line["time_s"][-1] == pytest.approx(found["duration_s"], rel=1e-3)
    assert len({len(values) for values in line.values()}) == 1


def test_a_crowd_waits_in_the_queue(client: Any) -> None:
    line = answer(client, LOAD | {"max_num_seqs": 8})["timeline"]
    assert max(line["waiting"]) > 150 and max(line["running"]) <= 8
    alone = answer(client, LOAD | {"concurrency": 1, "requests": 5})["timeline"]
    assert max(alone["waiting"]) == 0 and max(alone["running"]) <= 1


def test_a_trace_is_replayed(client: Any) -> None:
    rows = "arrived_at,num_prefill_tokens,num_decode_tokens\n" + "".join(f"{i * 0.1},500,20\n" for i in range(40))
    found = answer(client, DEPLOYED | {"trace": {"file": "mine.csv", "text": rows}})
    assert found["requests"] == 40 and found["command"] is None
    lines = "\n".join(json.dumps({"timestamp": 100 * i, "input_length": 500, "output_length": 20}) for i in range(40))
    again = answer(client, DEPLOYED | {"trace": {"file": "mine.jsonl", "text": lines}})
    assert again["ttft_mean_ms"] == pytest.approx(found["ttft_mean_ms"], rel=1e-6)
    assert answer(client, DEPLOYED | {"trace": {"file": "m", "text": lines}, "requests": 7})["requests"] == 7


@pytest.mark.parametrize(
    ("more", "field", "says"),
    [
        ({"trace": {"file": "a.csv", "text": "hello,world\n1,2\n"}}, "trace", "prompt length"),
        ({"trace": {"file": "a.jsonl", "text": "{not json"}}, "trace", "a.jsonl, line 1"),
        ({"concurrency": 1, "requests": 20_000, "output_len": 1000}, "requests", "engine steps"),
        ({"concurrency": 64, "settled": True, "requests": 100}, "requests", "at least 193"),
        ({"requests": limits.TRAFFIC_REQUESTS + 1}, "requests", str(limits.TRAFFIC_REQUESTS)),
        ({"prefill_engines": 2}, "prefill", "at least one prefill and one decode"),
        ({"prefill_tp": 2}, "prefill_engines", "must be 1 or more"),
        ({"prefill_engines": 1, "decode_tp": 2}, "decode_engines", "must be 1 or more"),
        ({"prefill_engines": 1, "decode_engines": 1, "decode_tp": 3}, "tp", "3"),
        ({"prefill_engines": 1, "decode_engines": 1, "decode_dp": 0}, "decode_dp", "greater than or equal to 1"),
        ({"speculative": "method=mtp,tokens=0"}, "speculative", "from 1 to"),
        ({"ttft_ms": -1.0}, "ttft_ms", "greater than 0"),
        ({"gpu": "L4", "model": "Llama-3.1-70B"}, "gpu", "GiB"),
    ],
)
def test_what_cannot_be_simulated_is_said(client: Any, more: dict[str, Any], field: str, says: str) -> None:
    found = error(client, LOAD | more)
    assert found["field"] == field and says in found["message"], found


def test_a_trace_that_is_too_large_is_refused_before_it_is_read(client: Any) -> None:
    text = "x" * limits.TRAFFIC_BYTES
    reply = client.post("/api/traffic", DEPLOYED | {"trace": {"file": "a.csv", "text": text}})
    assert reply.status == 413 and reply.json()["error"]["code"] == "too_large"
    other = client.post("/api/serve", LOAD | {"model": "x" * limits.JSON_BYTES})
    assert other.status == 413  # a file's room is that one question's alone


@pytest.mark.parametrize("form", ["html", "md"])
def test_report_shows_percentiles_parts_and_the_run(client: Any, form: str) -> None:
    reply = client.post(f"/api/traffic?report={form}", LOAD | {"rate": 8.0})
    text = reply.body.decode()
    assert reply.status == 200 and "attachment" in reply.headers["content-disposition"]
    for said in ("Percentiles", "Where the time goes", "waiting", "of the time is measured on this GPU"):
        assert said in text

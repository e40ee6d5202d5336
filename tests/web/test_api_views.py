"""Every view of the API gives what the library gives, in the shape the page draws."""

from __future__ import annotations

import gzip
import json
import shlex
from pathlib import Path
from typing import Any

import pytest

import pipewave as pw
from pipewave.cli import build
from pipewave.simulate import estimate
from pipewave.web.forms import worded
from tests.command_line import CliRunner

TRACES = Path(__file__).parent.parent.parent / "data" / "measured" / "h200" / "traces"
SERVE = {"model": "Llama-3.1-8B", "gpu": "H200", "batch": 16, "input_len": 2048, "output_len": 128}
GEMM = {"kernel": "gemm", "case": {"n": 4096, "k": 4096}, "sweep": {"field": "m", "from": 1, "to": 4096, "points": 60}}
PLAN = {"model": "Llama-3.1-8B", "gpus": ["H100", "L40S"], "input_len": 1024, "output_len": 128, "tp": [1, 2],
        "max_num_seqs": [1, 16, 64], "max_num_batched_tokens": [2048]}  # fmt: skip


def answer(client: Any, view: str, question: Any) -> Any:
    reply = client.post(f"/api/{view}", question)
    assert reply.status == 200, reply.body[:500]
    return reply.json()


def printed(command: str) -> Any:
    """What the command of an answer prints, as JSON."""
    words = shlex.split(command)
    assert words[0] == "pipewave"
    done = CliRunner().invoke(build(), words[1:])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_lists(client: Any) -> None:
    gpus = {gpu["name"]: gpu for gpu in client.get("/api/gpus").json()}
    assert gpus["H200"]["dram_gbps"] == pw.find("H200").dram_gbps
    models = {model["name"]: model for model in client.get("/api/models").json()}
    assert models["Llama-3.1-8B"]["parameters"] == pytest.approx(8.03e9, rel=0.01)
    assert client.get("/api/health").json()["status"] == "ok"


@pytest.mark.parametrize("kernel", ["gemm", "attention", "mla", "fused_moe", "rmsnorm", "elementwise", "all_reduce"])
def test_the_example_of_each_family_can_be_asked(client: Any, kernel: str) -> None:
    offered = {one["kernel"]: one for one in client.get("/api/kernels").json()}[kernel]
    found = answer(client, "kernel", {"kernel": kernel, **offered["example"], "gpus": ["H200"]})
    assert offered["example"]["sweep"]["field"] in offered["sweeps"]
    (series,) = found["series"]
    assert len(series["latency_us"]) == len(found["x"]) > 100
    for floor, low, latency, high in zip(
        *(series[n] for n in ("floor_us", "low_us", "latency_us", "high_us")), strict=True
    ):
        assert floor <= low <= latency <= high


def test_curves_are_the_predictions_of_the_library(client: Any) -> None:
    found = answer(client, "kernel", {**GEMM, "gpus": ["H200", "L40S"], "protocol": "serving"})
    assert [series["gpu"] for series in found["series"]] == ["H200", "L40S"]
    for series in found["series"]:
        direct = pw.predict([pw.gemm(m, 4096, 4096) for m in found["x"]], series["gpu"], protocol="serving")
        assert series["latency_us"] == pytest.approx(direct.latency_us, rel=1e-4)
        assert series["bound"] == direct.to_dict()["bound"]


def test_waves_step_up_with_the_size(client: Any) -> None:
    found = answer(client, "kernel", {**GEMM, "gpus": ["H200"]})
    waves = found["series"][0]["waves"]
    assert 0 < waves[0] < 1 < waves[-1]
    norm = {
        "kernel": "rmsnorm",
        "case": {"dim": 4096},
        "sweep": {"field": "rows", "from": 1, "to": 64},
        "gpus": ["H200"],
    }
    assert answer(client, "kernel", norm)["series"][0]["waves"] is None


def test_tuner_runs_cover_the_sweep_and_are_what_the_table_chooses(client: Any) -> None:
    from pipewave.tune import load_table

    found = answer(client, "kernel", {**GEMM, "gpus": ["L40S", "H200"]})
    (tuned,) = found["tuner"]
    assert (tuned["gpu"], tuned["kernel"]) == ("H200", "gemm")
    table = load_table("gemm", gpu="H200")
    for run in tuned["runs"]:
        assert dict(table.select(m=run["from"], n=4096, k=4096)) == run["config"]
    assert [tuned["runs"][0]["from"], tuned["runs"][-1]["to"]] == [found["x"][0], found["x"][-1]]
    assert answer(client, "kernel", {**GEMM, "gpus": ["L40S"]})["tuner"] is None


def test_sweeps_over_requests(client: Any) -> None:
    case = {"q_lens": [64, 64], "kv_lens": [128, 128], "heads": 8, "kv_heads": 8, "head_dim": 128}
    for field, last in (("prompt", 512), ("batch", 32), ("kv_lens", 4096)):
        queries = {"field": field, "from": 64 if field != "batch" else 1, "to": last, "points": 5, "scale": "log"}
        found = answer(client, "kernel", {"kernel": "attention", "case": case, "sweep": queries, "gpus": ["H200"]})
        times = found["series"][0]["latency_us"]
        assert found["x"][-1] == last and times[-1] > times[0]
    direct = pw.predict(pw.attention([64] * 32, [128] * 32, 8, 8), "H200")
    queries = {"field": "batch", "from": 32, "to": 32}
    found = answer(client, "kernel", {"kernel": "attention", "case": case, "sweep": queries, "gpus": ["H200"]})
    assert found["series"][0]["latency_us"] == pytest.approx([direct.latency_us], rel=1e-4)


def test_one_gpu_that_cannot_does_not_spoil_the_others(client: Any) -> None:
    question = {**GEMM, "case": {"n": 512, "k": 512, "dtype": "fp8"}, "gpus": ["H200", "A100"]}
    series = answer(client, "kernel", question)["series"]
    assert "latency_us" in series[0]
    assert series[1]["error"]["code"] == "unsupported_dtype"
    alone = client.post("/api/kernel", question | {"gpus": ["A100"]})
    assert alone.status == 422 and alone.json()["error"]["field"] == "dtype"


def test_serve_is_the_estimate(client: Any) -> None:
    found = answer(client, "serve", SERVE)
    direct = estimate("Llama-3.1-8B", "H200", batch=16, input_len=2048, output_len=128).to_dict()
    assert {name: found[name] for name in direct} == direct
    assert found["throughput_tokens_s"] == direct["output_tokens_per_s"]


def test_timeline_adds_up_and_is_the_step_command(client: Any) -> None:
    found = answer(client, "serve", SERVE)
    for phase, step in found["timeline"].items():
        parts = step["parts"]
        assert sum(part["duration_us"] for part in parts) == pytest.approx(step["total_us"])
        assert [part["start_us"] for part in parts] == sorted(part["start_us"] for part in parts)
        assert sum(found["pipes"][phase].values()) == pytest.approx(1)
    step = printed("pipewave step --model Llama-3.1-8B --gpu H200 --q-lens 1*16 --kv-lens 2112*16 --json")
    decode = found["timeline"]["decode"]
    assert decode["total_us"] == pytest.approx(step["total_us"])
    rows = [(part["name"], part["each_us"]) for part in decode["parts"]]
    assert rows == [(part["name"], pytest.approx(part["each_us"])) for part in step["parts"]]


def test_a_what_if_moves_the_answer(client: Any) -> None:
    slow, fast = (answer(client, "serve", SERVE | {"what_if": {"dram_gbps": gbps}})["tpot_ms"] for gbps in (2400, 9600))
    assert fast < 0.7 * slow


def test_plan_has_front_cloud_and_launches(client: Any) -> None:
    found = answer(client, "plan", PLAN | {"tpot_ms": 30})
    assert found["winner"] == found["rows"][0] and found["winner"]["tpot_ms_high"] <= 30
    assert len(found["launches"]) == len(found["front"]) and found["launch"] in found["launches"]
    assert found["designs"] >= found["meet_the_limits"] > 0
    assert all(row["tpot_ms"] <= 30 for row in found["all"])


def test_own_prices_decide(client: Any) -> None:
    one = answer(client, "plan", PLAN | {"prices": {"H100": 0.01, "L40S": 50.0}})
    other = answer(client, "plan", PLAN | {"prices": {"H100": 50.0, "L40S": 0.01}})
    assert (one["winner"]["gpu"], other["winner"]["gpu"]) == ("H100", "L40S")


def test_trace_is_the_trace_command(client: Any) -> None:
    path = sorted(TRACES.glob("*.json.gz"))[0]
    query = f"?name={path.name}&gpu=H200"
    found = client.send("POST", f"/api/trace{query}", path.read_bytes())
    assert found.status == 200, found.body[:500]
    shown = found.json()
    direct = worded(printed(f"pipewave trace {path} --gpu H200 --format json"))
    assert shown["calls"] == direct["calls"] and shown["source"] == path.name
    plain = client.send("POST", f"/api/trace{query}", gzip.decompress(path.read_bytes()))
    assert plain.json()["calls"] == direct["calls"]


def test_two_traces_are_the_trace_commands_comparison(client: Any) -> None:
    one, other = (TRACES / f"trace-Llama-3.1-8B-tp1-4layers-eager-{phase}.json.gz" for phase in ("prefill", "decode"))
    data = one.read_bytes() + other.read_bytes()
    query = f"?name={one.name}&other={other.name}&first_bytes={one.stat().st_size}&gpu=H200"
    found = client.send("POST", f"/api/trace{query}", data)
    assert found.status == 200, found.body[:500]
    direct = worded(printed(f"pipewave trace {one} {other} --gpu H200 --format json"))
    assert found.json()["changes"] == direct["changes"]
    report = client.send("POST", f"/api/trace{query}&report=html", data)
    assert report.status == 200 and b"B \xe2\x88\x92 A" in report.body
    for wrong in (f"?name=a&other=b&first_bytes={len(data)}&gpu=H200", "?name=a&other=b&gpu=H200"):
        assert client.send("POST", f"/api/trace{wrong}", data).json()["error"]["field"] == "first_bytes"


def test_a_trace_of_several_ranks_says_so_in_its_address(client: Any) -> None:
    path = TRACES / "trace-Qwen3-32B-tp2-graph-decode.json.gz"
    found = client.send("POST", f"/api/trace?name={path.name}&model=Qwen3-32B&tp=2&kv_lens=1025", path.read_bytes())
    assert found.status == 200, found.body[:500]
    assert found.json()["shaped_share"] > 0.9
    assert client.send("POST", f"/api/trace?name={path.name}&tp=two", path.read_bytes()).status == 422


@pytest.mark.parametrize(
    ("view", "question"),
    [
        ("kernel", {**GEMM, "gpus": ["H200"], "what_if": {"sms": 66}}),
        ("serve", SERVE),
        ("serve", SERVE | {"what_if": {"l2_mb": 100}, "kv_cache_dtype": "fp8", "tp": 2}),
        ("plan", PLAN | {"ttft_ms": 900.5, "prices": {"L40S": 0.5}}),
    ],
)
def test_the_command_gives_the_same_numbers(client: Any, view: str, question: Any) -> None:
    found = answer(client, view, question)
    same = printed(found["command"])
    assert len(same) > 4
    assert {name: found[name] for name in same} == same


def test_a_model_as_blocks(client: Any) -> None:
    found = answer(client, "model", {"model": "gpt-oss-20b", "tp": 2})
    assert found["pattern"] == "(A B)×12"
    assert [part["name"] for part in found["blocks"][1]["parts"]] == ["attention", "experts"]
    assert printed(found["command"]) == found
    same = printed("pipewave model gpt-oss-20b --tp 2 --json")
    assert {name: same[name] for name in found if name != "command"} == {
        name: value for name, value in found.items() if name != "command"
    }
    refused = client.post("/api/model", {"model": "/etc/passwd"})
    assert (refused.status, refused.json()["error"]["field"]) == (422, "model")


def test_an_inline_model_is_read_as_its_file_would_be(client: Any) -> None:
    from pipewave.models.load import FOLDER

    config = json.loads((FOLDER / "Llama-3.1-8B.json").read_text("utf-8"))
    found, named = answer(client, "serve", SERVE | {"model": config}), answer(client, "serve", SERVE)
    assert found["tpot_ms"] == named["tpot_ms"]
    assert printed(found["command"])["tpot_ms"] == named["tpot_ms"]


@pytest.mark.parametrize(
    ("form", "kind", "begins"), [("html", "text/html", b"<!doctype html>"), ("md", "text/markdown", b"# ")]
)
def test_every_view_can_be_saved_as_a_report(client: Any, form: str, kind: str, begins: bytes) -> None:
    questions = {"kernel": {**GEMM, "gpus": ["H200"]}, "serve": SERVE, "plan": PLAN}
    replies = [client.post(f"/api/{view}?report={form}", question) for view, question in questions.items()]
    path = sorted(TRACES.glob("*.json.gz"))[0]
    replies.append(client.send("POST", f"/api/trace?gpu=H200&report={form}", path.read_bytes()))
    for reply in replies:
        assert reply.status == 200 and reply.headers["content-type"].startswith(kind)
        assert reply.body.startswith(begins) and "attachment" in reply.headers["content-disposition"]
    assert client.post("/api/serve?report=pdf", SERVE).status == 422


def test_only_operand_types_that_a_kernel_has_are_offered(client: Any) -> None:
    offered = {
        one["kernel"]: next(field["choices"] for field in one["fields"] if field["name"] == "dtype")
        for one in client.get("/api/kernels").json()
    }
    assert "int4" in offered["gemm"] and "int4" not in offered["attention"]

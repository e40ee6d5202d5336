"""Result files of benchmarks, made by hand in the form that each tool writes; what is told of them, kept and used."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from pipewave.cli import build
from pipewave.errors import BadFile, BadInput, MissingField, PipewaveError
from pipewave.published.cases import from_dict
from pipewave.told.check import check
from pipewave.told.readers import read
from pipewave.told.tell import stored, tell
from tests.command_line import CliRunner
from tests.wrong_values import replaced

DEPLOYMENT = {"model": "Qwen3-0.6B", "gpu": "H100"}
MEANS = {"ttft_ms": 120.0, "tpot_ms": 9.5, "e2e_ms": 1050.0, "output_tokens_per_s": 800.0}
LOAD = {"isl": 1000.0, "osl": 100.0, "concurrency": 8}
VLLM = {
    "backend": "openai", "model_id": "Qwen/Qwen3-0.6B", "num_prompts": 80, "request_rate": "inf", "max_concurrency": 8,
    "completed": 80, "total_input_tokens": 80_000, "total_output_tokens": 8_000, "output_throughput": 800.0,
    "mean_ttft_ms": 120.0, "mean_tpot_ms": 9.5, "mean_e2el_ms": 1050.0,
}  # fmt: skip
SGLANG = {
    "backend": "sglang", "request_rate": float("inf"), "max_concurrency": 8, "random_range_ratio": 0.0,
    "server_info": {"version": "0.5.9", "tp_size": 2}, "completed": 80, "total_input_tokens": 80_000,
    "total_output_tokens": 8_000, "output_throughput": 800.0, "mean_ttft_ms": 120.0, "mean_tpot_ms": 9.5,
    "mean_e2e_latency_ms": 1050.0,
}  # fmt: skip
TRTLLM = {
    "engine": {"version": "1.3.0"}, "world_info": {"tp_size": 1, "pp_size": 1, "ep_size": None, "max_batch_size": 64},
    "request_info": {"num_requests": 80, "avg_num_concurrent_requests": 7.9, "avg_input_length": 1000.0,
                     "avg_output_length": 100.0},
    "performance": {"avg_request_latency_ms": 1050.0, "system_output_throughput_tok_s": 800.0},
    "streaming_metrics": {"avg_ttft_ms": 120.0, "avg_tpot_ms": 9.5},
}  # fmt: skip
AIPERF: dict[str, Any] = {
    name: {"unit": unit, "avg": value}
    for name, unit, value in (
        ("request_latency", "ms", 1050.0), ("time_to_first_token", "ms", 120.0), ("inter_token_latency", "ms", 9.5),
        ("output_token_throughput", "tokens/sec", 800.0), ("input_sequence_length", "tokens", 1000.0),
        ("output_sequence_length", "tokens", 100.0), ("request_count", "requests", 80.0),
    )
}  # fmt: skip
CSV = """Metric,avg,min,max
Time to First Token (ms),120.00,1.0,2.0
Inter Token Latency (ms),9.50,1.0,2.0
Request Latency (ms),"1,050.00",1.0,2.0
Input Sequence Length (tokens),"1,000.00",1.0,2.0
Output Sequence Length (tokens),100.00,1.0,2.0

Metric,Value
Request Count,80.00
Output Token Throughput (tokens/sec),800.00
"""
GUIDELLM = {
    "metadata": {"version": 2},
    "benchmarks": [{
        "config": {"strategy": {"type_": "concurrent", "streams": 8}}, "scheduler_metrics": {},
        "metrics": {
            "request_totals": {"successful": 80, "errored": 0},
            **{name: {"successful": {"mean": value}} for name, value in (
                ("prompt_token_count", 1000.0), ("output_token_count", 100.0), ("time_to_first_token_ms", 120.0),
                ("inter_token_latency_ms", 9.5), ("request_latency", 1.05), ("output_tokens_per_second", 800.0))},
        },
    }],
}  # fmt: skip
INFERENCEX = {
    "hw": "h100", "tp": 2, "ep": 1, "conc": 8, "model": "m", "framework": "vllm", "tput_per_gpu": 4400.0,
    "output_tput_per_gpu": 400.0, "mean_ttft": 0.12, "mean_tpot": 0.0095, "mean_e2el": 1.05,
}  # fmt: skip
PROMETHEUS = """# HELP vllm:num_requests_running Number of requests in model execution batches.
vllm:num_requests_running{model_name="m"} 8.0
vllm:time_to_first_token_seconds_bucket{le="0.1",model_name="m"} 3.0
vllm:time_to_first_token_seconds_count{model_name="m"} 80.0
vllm:time_to_first_token_seconds_sum{model_name="m"} 9.6
vllm:request_time_per_output_token_seconds_count{model_name="m"} 80.0
vllm:request_time_per_output_token_seconds_sum{model_name="m"} 0.76
vllm:e2e_request_latency_seconds_sum{model_name="m"} 84.0
vllm:e2e_request_latency_seconds_count{model_name="m"} 80.0
vllm:request_prompt_tokens_sum{model_name="m"} 80000.0
vllm:request_prompt_tokens_count{model_name="m"} 80.0
vllm:request_generation_tokens_sum{model_name="m"} 8000.0
vllm:request_generation_tokens_count{model_name="m"} 80.0
"""
SGLANG_METRICS = """sglang:num_running_reqs{tp_rank="0"} 8
sglang:time_to_first_token_seconds_sum{a="b"} 9.6
sglang:time_to_first_token_seconds_count{a="b"} 80
sglang:inter_token_latency_seconds_sum{a="b"} 76.0
sglang:inter_token_latency_seconds_count{a="b"} 8000
sglang:e2e_request_latency_seconds_sum{a="b"} 84.0
sglang:e2e_request_latency_seconds_count{a="b"} 80
sglang:prompt_tokens_total{a="b"} 80000
sglang:generation_tokens_total{a="b"} 8000
"""
CLIENT = {"input_config": {"loadgen": {"concurrency": 8}}}
FILES = {
    "vllm bench serve": (json.dumps(VLLM), {}, {}),
    "sglang.bench_serving": (json.dumps(SGLANG) + "\n", {}, {"engine": "sglang", "version": "0.5.9", "tp": 2}),
    "trtllm-bench": (json.dumps(TRTLLM), {}, {"engine": "trtllm", "version": "1.3.0", "max_num_seqs": 64}),
    "aiperf or genai-perf": (json.dumps(AIPERF | CLIENT), {}, {}),
    "aiperf or genai-perf, csv": (CSV, {"concurrency": 8}, {}),
    "guidellm": (json.dumps(GUIDELLM, indent=1), {}, {}),
    "InferenceX": (json.dumps(INFERENCEX), {"isl": 1000.0, "osl": 100.0}, {"tp": 2, "engine": "vllm"}),
    "metrics of vLLM": (PROMETHEUS, {}, {"engine": "vllm"}),
    "metrics of SGLang": (SGLANG_METRICS, {}, {"engine": "sglang"}),
    "told runs": (json.dumps([LOAD | MEANS]), {}, {}),
}


def written(folder: Path, text: str) -> Path:
    path = folder / "result"
    path.write_text(text)
    return path


@pytest.mark.parametrize("tool", FILES)
def test_every_tool_is_read(tool: str, tmp_path: Path) -> None:
    text, also, more = FILES[tool]
    found = read(written(tmp_path, text), also)
    assert found.tool == tool.partition(",")[0]
    (run,) = found.runs
    assert {name: run[name] for name in LOAD} == LOAD
    told = {name: run[name] for name in MEANS if name in run}
    assert told == pytest.approx({name: MEANS[name] for name in told})
    assert {"ttft_ms", "tpot_ms"} <= set(told)
    assert {name: run.get(name) for name in more} == more
    assert from_dict({**DEPLOYMENT, "isl": 1, "osl": 1, "concurrency": 1, "told": [run]}).told[0].case.concurrency == 8


def test_a_queue_of_all_requests_is_offline(tmp_path: Path) -> None:
    info = TRTLLM["request_info"] | {"avg_num_concurrent_requests": 500.0}
    (run,) = read(written(tmp_path, json.dumps(TRTLLM | {"request_info": info}))).runs
    assert (run["mode"], run["concurrency"]) == ("offline", None)
    again = tmp_path / "kept"
    again.write_text(json.dumps([run]))
    assert read(again).runs == (run,)


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        (json.dumps({"latency": 3}), BadFile, "no result of a known tool"),
        ("", BadFile, "no result of a known tool"),
        (json.dumps(VLLM | {"max_concurrency": None, "request_rate": None}), MissingField, "concurrency or rate"),
        (json.dumps({**VLLM, "completed": 0}), MissingField, r"isl \(mean prompt tokens\), osl"),
        (json.dumps([LOAD]), MissingField, "no measured mean"),
        ("5", BadFile, "no result of a known tool"),
        (json.dumps({"benchmarks": 3}), BadFile, "no result of a known tool"),
        ("[" * 100_000, BadFile, "no result of a known tool"),
        ('{"a":' * 100_000, BadFile, "no result of a known tool"),
        ("Metric,Value\nTime," + "1" * 200_000, BadFile, "no result of a known tool"),
    ],
)
def test_what_is_missing_is_named(text: str, error: type[BadInput], says: str, tmp_path: Path) -> None:
    with pytest.raises(error, match=says):
        read(written(tmp_path, text))


def test_what_is_kept_corrects_serve_and_estimate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    words = [word for name, value in DEPLOYMENT.items() for word in (f"--{name}", value)]
    result = written(tmp_path, json.dumps(VLLM))
    told = CliRunner().invoke(build(), ["tell", str(result), *words, "--name", "mine"])
    assert told.exit_code == 0
    assert "corrected by what is told (1)" in told.stdout
    assert stored("mine") == tmp_path / "pipewave" / "told" / "mine.json"
    load = ["--input-len", "800", "--output-len", "50", "--json"]
    for command in (["serve", "--concurrency", "4", "--requests", "12"], ["estimate", "--batch", "4"]):
        answers = [
            json.loads(CliRunner().invoke(build(), [*command, *words, *load, *more]).stdout)
            for more in ([], ["--told", "mine"], ["--told", str(result)])
        ]
        name = "tpot_mean_ms" if command[0] == "serve" else "tpot_ms"
        assert answers[1][name] > 1.1 * answers[0][name]
        assert answers[1][f"{name}_low"] < answers[1][name] < answers[1][f"{name}_high"]
        assert answers[2][name] == answers[1][name]
        assert answers[1]["output_tokens_per_s"] < answers[0]["output_tokens_per_s"]


def test_python_tells_the_same(tmp_path: Path) -> None:
    found = tell([written(tmp_path, json.dumps(VLLM))], **DEPLOYMENT)
    assert found.rows()[0]["ttft_ms"] == 120.0
    assert found.to_dict()["tools"] == ["vllm bench serve"]
    with pytest.raises(BadFile):
        tell([tmp_path / "none.json"], **DEPLOYMENT)


def test_files_of_several_tools_stand_in_one_table(tmp_path: Path) -> None:
    """What one of them leaves out is left empty."""
    paths = [tmp_path / "vllm.json", tmp_path / "sglang.jsonl", tmp_path / "paced.json"]
    without = {name: value for name, value in VLLM.items() if name != "mean_e2el_ms"}
    paced = VLLM | {"request_rate": 4.0, "max_concurrency": None}
    for path, held in zip(paths, (without, SGLANG, paced), strict=True):
        path.write_text(json.dumps(held))
    words = ["tell", *map(str, paths), "--model", "Qwen3-0.6B", "--gpu", "H100", "--tp", "1"]
    found = CliRunner().invoke(build(), words)
    assert found.exit_code == 0 and "e2e_ms" in found.output and "rate" in found.output
    rows = json.loads(CliRunner().invoke(build(), [*words, "--json"]).output)["rows"]
    assert [row.get("concurrency") for row in rows] == [8, 8, None] and rows[2]["rate"] == 4.0


@pytest.mark.parametrize("endless", ["inf", float("inf")])
def test_requests_without_a_rate_are_in_flight_or_all_queued(endless: Any, tmp_path: Path) -> None:
    """`vllm bench serve` and `bench_serving` send all at once unless told otherwise."""
    (held,) = read(written(tmp_path, json.dumps(SGLANG | {"request_rate": endless}))).runs
    assert "rate" not in held and "mode" not in held
    path = written(tmp_path, json.dumps(VLLM | {"request_rate": endless, "max_concurrency": None}))
    (queued,) = read(path).runs
    assert queued["mode"] == "offline" and queued["requests"] == 80 and "rate" not in queued
    told = tell([path], **DEPLOYMENT)
    assert told.rows()[0]["requests"] == 80 and "concurrency" not in told.rows()[0]
    json.dumps(told.to_dict(), allow_nan=False)


@pytest.mark.parametrize(
    ("load", "said"), [("--concurrency 4", {"concurrency": 4}), ("--rate 8", {}), ("--rate inf", {"mode": "offline"})]
)
def test_a_run_of_ours_is_told_by_the_files_that_it_writes(load: str, said: dict[str, Any], tmp_path: Path) -> None:
    words = f"serve --model Qwen3-0.6B --gpu H100 --requests 40 --isl 200 --osl 20 --json {load} --aiperf {tmp_path}"
    assert CliRunner().invoke(build(), words.split()).exit_code == 0
    (run,) = read(tmp_path / "profile_export_aiperf.json").runs
    assert said.items() <= run.items() and bool(run.get("rate")) == (load == "--rate 8")


@pytest.mark.parametrize("word", ["concurrency=eight", "max_num_seqs=few"])
def test_what_is_no_number_is_refused_by_name(word: str, tmp_path: Path) -> None:
    path = written(tmp_path, json.dumps(VLLM))
    found = CliRunner().invoke(build(), ["tell", str(path), "--model", "Qwen3-0.6B", "--gpu", "H100", "--also", word])
    assert isinstance(found.exception, BadInput) and word.partition("=")[0] in str(found.exception)


@pytest.mark.parametrize(
    "result", [VLLM, SGLANG, TRTLLM, AIPERF, GUIDELLM, INFERENCEX], ids=lambda one: next(iter(one))
)
def test_a_value_of_any_type_is_told_or_refused(result: dict[str, Any], tmp_path: Path) -> None:
    file, before = tmp_path / "result.json", tmp_path / "before.json"
    before.write_text(json.dumps(result))
    for changed in replaced(result):
        file.write_text(json.dumps(changed))
        for told in (lambda: tell([file], **DEPLOYMENT), lambda: check([str(file)], [str(before)])):
            with suppress(PipewaveError):
                told()

"""The commands of the serving room: JSON as the contract says, and bad input as one line and exit status 2."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pipewave.cli import build
from pipewave.errors import PipewaveError
from tests.command_line import CliRunner

app = build()

STATIC = ["--batch", "8", "--input-len", "512", "--output-len", "32"]


def run(*words: str) -> str:
    result = CliRunner().invoke(app, list(words), catch_exceptions=False, env={"COLUMNS": "160"})
    assert result.exit_code == 0, result.output
    return result.output


def test_estimate_answers_the_contract() -> None:
    answer = json.loads(run("estimate", "--model", "Llama-3.1-8B", "--gpu", "H200", *STATIC, "--json"))
    for name in ("prefill_ms", "tpot_ms", "e2e_ms"):
        assert answer[f"{name}_low"] <= answer[name] <= answer[f"{name}_high"]
    assert {"weights", "kv", "activations", "free"} <= answer["memory_gib"].keys()
    assert answer["breakdown"]
    assert sum(answer["basis"].values()) == pytest.approx(1, abs=1e-3)


def test_model_step_and_tables_for_people() -> None:
    assert "8,030,261,248" in run("model", "Llama-3.1-8B")
    assert json.loads(run("model", "--json")) == sorted(json.loads(run("model", "--json")))
    parts = json.loads(run("model", "gpt-oss-20b", "--tp", "2", "--json"))
    assert sum(part["parameters"] for part in parts["parts"]) == parts["parameters"]
    assert parts["pattern"] == "(A B)×12"
    assert [part["name"] for part in parts["blocks"][0]["parts"]] == ["attention", "experts"]
    assert "experts" in run("model", "gpt-oss-20b")
    assert "qkv_proj" in run("model", "gpt-oss-20b", "--matrices")
    step = ["step", "--model", "Llama-3.1-8B", "--gpu", "H200", "--q-lens", "1*8", "--kv-lens", "500*8"]
    answer = json.loads(run(*step, "--json"))
    assert sum(part["total_us"] for part in answer["parts"]) == pytest.approx(answer["total_us"])
    assert "qkv_proj" in run(*step)
    assert "a later token" in run("estimate", "--model", "Llama-3.1-8B", "--gpu", "H200", *STATIC)


def test_workload_replay_and_serve(tmp_path: Path) -> None:
    table, work = tmp_path / "requests.csv", tmp_path / "work.json"
    table.write_text("input_len,output_len\n100,5\n200,3\n")
    run("workload", "--model", "Qwen3-8B", "--requests", str(table), "--out", str(work))
    answer = json.loads(run("replay", str(work), "--gpu", "H100", "--json"))
    assert answer["iterations"] == 5
    assert answer["total_ms"] > answer["prefill_ms"] > 0
    served = ["serve", "--model", "Qwen3-8B", "--gpu", "H100", "--arrivals", str(table), "--rate", "inf", "--json"]
    assert json.loads(run(*served, "--trace-out", str(tmp_path / "t.json")))["requests"] == 2
    assert json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert "mean time to first token" in run(
        "serve", "--model", "Qwen3-8B", "--gpu", "H100", "--requests", "20", "--no-interval"
    )


def test_ranks_that_draft_draw_power_while_they_read_prompts() -> None:
    words = [
        "serve",
        "--model",
        "GLM-4.5-Air",
        "--gpu",
        "H200",
        "--dp",
        "4",
        "--ep",
        "4",
        "--isl",
        "3000",
        "--osl",
        "20",
    ]
    words += [
        "--speculative",
        "method=mtp,tokens=1",
        "--concurrency",
        "16",
        "--requests",
        "24",
        "--no-interval",
        "--json",
    ]
    done = CliRunner().invoke(build(), words, catch_exceptions=False)
    assert 200 < json.loads(done.stdout)["power_w"] < 700


def test_limits_that_nothing_meets_are_answered_with_what_is_possible() -> None:
    shape = ["--isl", "512", "--osl", "64", "--tpot", "0.001", "--tp", "1"]
    shown = run("plan", "--model", "Llama-3.1-8B", "--gpus", "H100", *shape)
    assert "0 meet the limits" in shown
    assert "The shortest first token takes" in shown and "launch" not in shown


@pytest.mark.slow
def test_plan_prints_its_winner() -> None:
    small = ["--tp", "1,2", "--max-num-seqs", "8,64", "--max-num-batched-tokens", "8192", "--isl", "500", "--osl", "50"]
    words = ["plan", "--model", "Llama-3.1-8B", "--gpus", "H100,T4", *small]
    answer = json.loads(run(*words, "--price", "H100=2", "--json"))
    assert answer["launch"].startswith("vllm serve meta-llama/Llama-3.1-8B")
    assert answer["does_not_fit"]
    assert "Designs: the best of each GPU first" in run(*words)


@pytest.mark.parametrize(
    "words",
    [
        ["estimate", "--model", "Llama-3.1-8B", "--gpu", "H200", *STATIC, "--tp", "3"],
        [
            "estimate",
            "--model",
            "Llama-3.1-8B",
            "--gpu",
            "H200",
            "--batch",
            "-5",
            "--input-len",
            "8",
            "--output-len",
            "8",
        ],
        [
            "estimate",
            "--model",
            "Llama-3.1-8B",
            "--gpu",
            "H200",
            "--batch",
            "5",
            "--input-len",
            "0",
            "--output-len",
            "8",
        ],
        ["estimate", "--model", "Llama-3.1-70B", "--gpu", "H100", *STATIC],
        ["estimate", "--model", "no-such-model", "--gpu", "H200", *STATIC],
        ["replay", "no-such-file.json", "--gpu", "H200"],
        ["plan", "--model", "Llama-3.1-8B", "--gpus", "H201", "--isl", "8", "--osl", "8"],
        ["plan", "--model", "Llama-3.1-8B", "--gpus", "H200", "--isl", "8", "--osl", "8", "--price", "H200=x"],
        ["serve", "--model", "Llama-3.1-8B", "--gpu", "H200", "--request-rate", "-1"],
        ["serve", "--model", "Llama-3.1-8B", "--gpu", "H200", "--seed", "-1"],
        ["serve", "--model", "Llama-3.1-8B", "--gpu", "H200", "--ttft", "-3"],
        ["serve", "--model", "Llama-3.1-8B", "--gpu", "H200", "--lora", ""],
    ],
)
def test_bad_input_is_a_typed_error(words: list[str]) -> None:
    with pytest.raises(PipewaveError) as caught:
        CliRunner().invoke(app, words, catch_exceptions=False)
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("word", ["fp8_e4m3", "fp8_e5m2"])
def test_engines_words_for_cache_types_are_understood(word: str) -> None:
    asked = ["estimate", "--model", "Llama-3.1-8B", "--gpu", "H200", *STATIC, "--json", "--kv-cache-dtype"]
    assert json.loads(run(*asked, word)) == json.loads(run(*asked, "fp8"))
    assert json.loads(run(*asked, "auto")) == json.loads(run(*asked, "bf16")) != json.loads(run(*asked, "fp8"))


def test_importing_the_commands_loads_no_numbers() -> None:
    code = "import sys, pipewave.cli.estimate, pipewave.cli.serve, pipewave.cli.planning; print('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"

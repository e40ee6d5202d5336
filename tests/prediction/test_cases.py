"""The batch contract: order, errors in place, identical answers however the lines are mixed."""

from __future__ import annotations

import gzip
import io
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pipewave as pw
from pipewave.prediction import jsonl as cases
from pipewave.prediction.answers import Prediction
from tests.command_line import as_a_process
from tests.sampled import examples

GOOD: list[dict[str, Any]] = [
    {"id": "a", "kernel": "gemm", "m": 16, "n": 4096, "k": 4096, "gpu": "H200"},
    {"id": 2, "kernel": "gemm", "m": 4096, "n": 4096, "k": 4096, "gpu": "NVIDIA L40S", "dtype": "fp8", "quantize": True},
    {"id": 3, "kernel": "attention", "q_lens": [1, 1], "kv_lens": [900, 20], "heads": 32, "kv_heads": 8, "head_dim": 128},
    {"id": 4, "kernel": "attention", "q_lens": [512, 1], "kv_lens": [900, 20], "heads": 32, "kv_heads": 8, "head_dim": 64, "page_size": 16},
    {"id": 5, "kernel": "mla", "q_lens": [64], "kv_lens": [64], "heads": 16, "phase": "context"},
    {"id": 6, "kernel": "fused_moe", "tokens": 64, "experts": 8, "topk": 2, "hidden": 4096, "inter": 14336, "tp": 2},
    {"id": 7, "kernel": "fused_moe", "tokens": 4, "experts": 4, "topk": 2, "hidden": 64, "inter": 64, "routing": [2, 2, 2, 2]},
    {"id": 8, "kernel": "rmsnorm", "rows": 7, "dim": 4096, "fused_add": True},
    {"id": 9, "kernel": "silu_and_mul", "rows": 7, "dim": 14336},
    {"id": 10, "kernel": "all_reduce", "bytes": 1 << 20, "world": 4, "protocol": "graph"},
]  # fmt: skip
BAD: list[tuple[str, str | None]] = [
    ("{", None),
    ("[1]", None),
    ('{"id": 1}', "kernel"),
    ('{"id": 1, "kernel": "gemm", "m": 1, "n": 1}', "k"),
    ('{"id": 1, "kernel": "gemm", "m": 1, "n": 1, "k": 1, "gpu": "H201"}', "gpu"),
    ('{"id": 1, "kernel": "gemm", "m": 1, "n": 1, "k": 1, "dtype": ["bf16"]}', "dtype"),
    ('{"id": 1, "kernel": "gemm", "m": 1, "n": 1, "k": 1, "dtype": "nvfp4"}', "dtype"),
    ('{"id": 1, "kernel": "gemm", "m": 1, "n": 1, "k": 1, "protocol": "warm"}', "protocol"),
    ('{"id": 1, "kernel": "gemm", "m": [1], "n": 1, "k": 1}', "m"),
    ('{"id": 1, "kernel": "gemm", "m": NaN, "n": 1, "k": 1}', "m"),
    ('{"id": NaN, "kernel": "gemm", "m": 1, "n": 1, "k": 1}', "id"),
    ('{"id": [1], "kernel": "gemm", "m": 1, "n": 1, "k": 1}', "id"),
    ('{"id": 1e999, "kernel": "gemm", "m": 1, "n": 1, "k": 1}', "id"),
    ('{"id": 1, "kernel": "gemm", "m": 1, "n": 1, "k": 1, "colour": 1}', "colour"),
    ('{"id": 1, "kernel": "attention", "q_lens": 4, "kv_lens": [1], "heads": 1, "kv_heads": 1, "head_dim": 64}', "q_lens"),
    ('{"id": 1, "kernel": "attention", "q_lens": [], "kv_lens": [], "heads": 1, "kv_heads": 1, "head_dim": 64}', "q_lens"),
]  # fmt: skip


def test_chunks_are_bounded_in_characters_and_lose_no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cases, "CHUNK_CHARACTERS", 100)
    lines = [str(i) * 30 for i in range(50)]
    found = list(cases.chunks(iter(lines)))
    assert [line for chunk in found for line in chunk] == lines
    assert all(sum(map(len, chunk[:-1])) < 100 for chunk in found)


def run(lines: list[str]) -> tuple[list[dict[str, Any]], cases.Counts]:
    """Answers to `lines` and their counts."""
    out = io.StringIO()
    counts = cases.answer_stream(lines, out, gpu="H200")
    return [json.loads(text) for text in out.getvalue().splitlines()], counts


def test_every_family_answers_with_the_fields_of_the_contract() -> None:
    answers, counts = run([json.dumps(case) for case in GOOD])
    assert (counts.answered, counts.failed) == (len(GOOD), 0)
    for case, answer in zip(GOOD, answers, strict=True):
        assert answer["id"] == case["id"]
        assert 0 < answer["floor_us"] <= answer["low_us"] <= answer["latency_us"] <= answer["high_us"]
        assert answer["floor_us"] <= answer["ceiling_us"]
        assert answer["bound"] in ("tensor", "dram", "l2", "smem", "fma", "xu", "link", "launch")
        assert answer["basis"] in ("measured_gpu", "same_architecture", "new_architecture")
        assert answer["stack"]


@pytest.mark.parametrize(("line", "field"), BAD)
def test_a_bad_line_is_an_error_in_its_place(line: str, field: str | None) -> None:
    answers, counts = run([json.dumps(GOOD[0]), line, json.dumps(GOOD[2])])
    assert (counts.answered, counts.failed) == (2, 1)
    assert [a["id"] for a in answers] == ["a", None if field in (None, "id") else 1, 3]
    assert answers[1]["error"]["field"] == field
    assert answers[1]["error"]["code"]


@examples(10)
@given(st.randoms(use_true_random=False))
def test_an_answer_does_not_depend_on_its_neighbours(rng: random.Random) -> None:
    lines = [json.dumps(case) for case in GOOD] + [line for line, _ in BAD]
    alone = [run([line])[0][0] for line in lines]
    order = rng.sample(range(len(lines)), len(lines))
    mixed, _ = run([lines[i] for i in order])
    assert mixed == [alone[i] for i in order]


def test_the_file_and_the_api_agree() -> None:
    answer = run([json.dumps(GOOD[0])])[0][0]
    prediction = pw.predict(pw.gemm(16, 4096, 4096), "H200")
    assert isinstance(prediction, Prediction)
    assert answer["latency_us"] == pytest.approx(prediction.latency_us, rel=1e-6)
    assert answer["bound"] == prediction.bound


@given(st.text(max_size=60))
def test_no_text_breaks_the_stream(text: str) -> None:
    answers, counts = run([text.replace("\n", " "), json.dumps(GOOD[0])])
    assert answers[-1]["id"] == "a"
    assert counts.answered == 1


def test_a_line_beyond_all_measure_says_so() -> None:
    answers, counts = run(['{"id": 1, "pad": "' + "x" * cases.LONGEST_LINE + '"}', json.dumps(GOOD[0])])
    assert "characters" in answers[0]["error"]["message"] and "latency_us" in answers[1]
    assert (counts.answered, counts.failed) == (1, 1)


def test_a_file_may_begin_with_a_mark_of_byte_order(tmp_path: Path) -> None:
    file = tmp_path / "cases.jsonl"
    file.write_text(json.dumps(GOOD[0]) + "\n", encoding="utf-8-sig")
    done = as_a_process("predict", "--cases", str(file))
    assert done.exit_code == 0 and json.loads(done.stdout)["id"] == "a"


def test_refused_cases_are_counted_where_a_person_reads(tmp_path: Path) -> None:
    cases, out = tmp_path / "cases.jsonl", tmp_path / "out.jsonl"
    lines = [{"kernel": "gemm", "m": 4, "n": 64, "k": 64, "gpu": gpu} for gpu in ("H200", "x" * 400, "nope")]
    cases.write_text("\n".join(map(json.dumps, lines)))
    done = as_a_process("predict", "--cases", str(cases), "--out", str(out))
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr == "refused cases: 2; each says why in `error` of its answer\n"
    assert sum("error" in json.loads(line) for line in out.read_text().splitlines()) == 2


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_disk_is_an_error_of_the_command(tmp_path: Path) -> None:
    file = tmp_path / "cases.jsonl"
    file.write_text(json.dumps(GOOD[0]) + "\n")
    words = [sys.executable, "-m", "pipewave", "predict", "--cases", str(file), "--out", "/dev/full"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 2 and "Traceback" not in done.stderr


def test_a_compressed_file_is_refused_once_and_not_line_by_line(tmp_path: Path) -> None:
    file = tmp_path / "cases.jsonl.gz"
    file.write_bytes(gzip.compress(json.dumps(GOOD[0]).encode()))
    found = as_a_process("predict", "--cases", str(file), "--gpu", "H200")
    assert found.exit_code == 2 and found.stdout == "" and "gunzip" in found.stderr


@pytest.mark.parametrize("m", ["nan", "1e12", "4.5", "0", "-1", str(2**31)])
def test_a_size_that_is_none_is_named_with_its_value(m: str) -> None:
    found = as_a_process("predict", "gemm", m, "64", "64")
    assert found.exit_code == 2 and "m = " in found.stderr and m in found.stderr


@pytest.mark.parametrize("lens", ["1*99999999", "1*-2", "a", ""])
def test_no_list_of_lengths_is_made_that_no_call_takes(lens: str) -> None:
    found = as_a_process("predict", "attention", lens, lens, "8", "8", "128")
    assert found.exit_code == 2 and found.stderr.startswith("error")


def test_without_a_standard_output_the_command_says_so() -> None:
    arguments = [sys.executable, "-m", "pipewave", "predict", "gemm", "8", "8", "8"]
    found = subprocess.run(["sh", "-c", '"$@" >&-', "sh", *arguments], capture_output=True, text=True)
    assert found.returncode != 0 and found.stderr == "error: standard output is closed\n"


def test_a_narrow_terminal_keeps_the_figures_whole() -> None:
    shown = as_a_process("predict", "gemm", "4096", "4096", "4096", env={"COLUMNS": "60"}).stdout
    head = next(line for line in shown.splitlines() if "latency" in line)
    assert "90 % interval" in head and "stack" not in head

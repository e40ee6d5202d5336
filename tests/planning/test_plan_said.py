"""What a plan over many GPUs says: once for all GPUs of which it holds, and of each GPU that cannot serve the model why."""

from __future__ import annotations

import json

import pytest

from pipewave.cli import build
from pipewave.models import load
from pipewave.planning import Question, Space, plan
from pipewave.prediction.notes import by_gpu
from tests.command_line import CliRunner

COMMAND = ["plan", "--model", "Qwen3-30B-A3B-FP8", "--isl", "512", "--osl", "64", "--tp", "1,2", "--max-num-seqs", "8"]
GPUS = "T4,A10,A30,A100,RTX A6000,V100,H100,H200,B200"


def test_notes_that_differ_in_the_gpu_alone_are_one() -> None:
    found = by_gpu(
        ["gemm: no rows on A100 were used; answered from its rows on H200", "other", "gemm: no rows on A100 PCIe were used; answered from its rows on H200", "other"],
        ["A100", "A100 PCIe"],
    )  # fmt: skip
    assert found == ["gemm: no rows on A100, A100 PCIe were used; answered from its rows on H200", "other"]


def test_a_plan_says_of_which_gpus_there_are_no_cold_rows() -> None:
    found = by_gpu([f"gemm: no cold rows of {gpu}: answered as replays" for gpu in ("L40S", "A100")], ["A100", "L40S"])
    assert found == ["gemm: no cold rows of L40S, A100: answered as replays"]
    notes = plan(load("Llama-3.1-8B"), Question(256, 16), Space(("L40S", "A100"), tps=(1,), batches=(1,))).notes()
    assert [note for note in notes if "this GPU" in note] == []
    assert any("no cold rows of L40S, A100: " in note or "no cold rows of A100, L40S: " in note for note in notes)


@pytest.mark.parametrize("notes", [["on H200 were: {gpu}"], ["a {brace} {gpu}"], [""]])
def test_notes_are_kept_as_they_are_where_nothing_is_joined(notes: list[str]) -> None:
    assert by_gpu(notes, ["H200"]) == notes
    assert by_gpu(notes, []) == notes


@pytest.mark.slow
def test_many_refusals_are_told_by_gpu_and_all_of_them_in_json() -> None:
    answer = json.loads(CliRunner().invoke(build(), [*COMMAND, "--gpus", GPUS, "--json"]).output)
    shown = CliRunner().invoke(build(), [*COMMAND, "--gpus", GPUS]).output
    refused = {split.rsplit(" tp", 1)[0] for refusal in answer["does_not_fit"] for split in refusal["splits"]}
    assert set(answer["impossible"]) <= refused
    assert set(answer["impossible"]).isdisjoint(row["gpu"] for row in answer["best_by_gpu"])
    assert "A100" in answer["impossible"]  # has no FP8
    for gpu, why in answer["impossible"].items():
        assert f"not possible on {gpu}: {why}" in shown
    assert shown.count("not possible") == len(answer["impossible"]) + 1

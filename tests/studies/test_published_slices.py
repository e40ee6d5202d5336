"""Scores in slices: nothing is answered twice, nothing is lost, answers of other code are refused."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path

import pytest

from pipewave.errors import BadInput
from studies import published_slices
from studies.published_slices import resumed


def test_a_second_command_goes_on_where_the_first_stopped(tmp_path: Path) -> None:
    file, asked = tmp_path / "answers.jsonl", []

    def ask(name: str) -> dict[str, object]:
        asked.append(name)
        return {"id": name, "ttft_ms": float(len(asked))}

    first = resumed(file, ["a", "b"], ask, math.inf)
    assert resumed(file, ["b", "c", "a"], ask, math.inf) == {**first, "c": {"id": "c", "ttft_ms": 3.0}}
    assert asked == ["a", "b", "c"]


def test_no_time_leaves_the_rest(tmp_path: Path) -> None:
    assert not resumed(tmp_path / "answers.jsonl", ["a"], lambda name: {"id": name}, time.monotonic() - 1.0)


def test_a_line_that_was_cut_is_asked_again(tmp_path: Path) -> None:
    file = tmp_path / "answers.jsonl"
    resumed(file, ["a", "b"], lambda name: {"id": name, "tpot_ms": 1.0}, math.inf)
    file.write_bytes(file.read_bytes()[:-4])
    found = resumed(file, ["a", "b"], lambda name: {"id": name, "tpot_ms": 2.0}, math.inf)
    assert [found[name]["tpot_ms"] for name in "ab"] == [1.0, 2.0]
    assert [json.loads(line)["id"] for line in file.read_text("utf-8").splitlines()[1:]] == ["a", "b"]


def test_answers_of_other_code_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "answers.jsonl"
    resumed(file, ["a"], lambda name: {"id": name}, math.inf)
    monkeypatch.setattr(published_slices, "code", lambda: "another")
    with pytest.raises(BadInput, match="other code"):
        resumed(file, ["a"], lambda name: {"id": name}, math.inf)

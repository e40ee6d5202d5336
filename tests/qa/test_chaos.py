"""Small runs of what `make chaos` does at length: wrong inputs, kills, and users of the page."""

import random

import pytest

from qa.chaos import inputs, kills
from qa.chaos.__main__ import HOLDS
from qa.chaos.nasty import changed, damaged


@pytest.mark.parametrize("area", sorted(inputs.AREAS))
def test_wrong_inputs_are_answered_or_refused(area: str) -> None:
    found = inputs.ask(area, 12, seed=2, longest_s=60.0)  # what a busy machine takes is no matter here
    assert found["answered"] + found["refused"] == found["inputs"], found["examples"]
    assert found["refused"] > 0


def test_a_question_that_fails_is_counted() -> None:
    def wrong() -> object:
        raise KeyError("x")

    assert inputs.verdict(wrong).startswith("traceback KeyError")
    assert inputs.verdict(lambda: {"a": [float("nan")]}) == "nan"
    assert inputs.verdict(lambda: [{"error": {"code": "internal"}}]).startswith("traceback")
    assert inputs.verdict(lambda: {"a": 1.0}) == "answered"


def test_changes_come_from_their_seed_and_leave_the_original() -> None:
    document = {"a": [1, {"b": 2}], "c": "d"}
    one, other = ([changed(document, random.Random(s)) for _ in range(20)] for s in (4, 4))
    assert str(one) == str(other)
    assert document == {"a": [1, {"b": 2}], "c": "d"}
    assert damaged(b"x" * 50, random.Random(1)) != b"x" * 50


def test_a_killed_writer_loses_nothing_that_was_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kills, "EARLY", 0.0)  # each kill waits until something is written
    monkeypatch.setattr(kills, "CASES", {"predict": 4000, "serve": 2000})
    monkeypatch.setattr("pipewave.prediction.jsonl.CHUNK_LINES", 500)  # as `predict` writes longer files
    found = kills.run(5, seed=1)
    assert {one["lost"] for one in found.values()} == {0}
    assert min(one["records_seen"] for one in found.values()) > 0, "kills before a record tell nothing"
    assert sum(one["while_running"] for one in found.values()) >= 3
    assert HOLDS["kills"](found) and not HOLDS["kills"](found | {"predict --out": {"records_seen": 0, "lost": 0}})

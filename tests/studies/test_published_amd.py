"""Public runs on AMD's GPUs: read whole, scored with a ratio that other groups chose, and shipped as written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipewave.software import engine_rules
from pipewave.software.engine_parts import DeploymentFacts
from studies import published_amd


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[published_amd.Run]:
    return published_amd.read(tmp_path_factory.mktemp("models"))


def test_every_source_and_row_is_read(runs: list[published_amd.Run]) -> None:
    assert len(runs) == sum(group["rows"] for group in json.loads(published_amd.RESULTS.read_text())["groups"])
    assert {run.figure for run in runs} == {"e2e_ms", "tpot_ms", "output_tokens_per_s"}


def test_the_shipped_ratio_is_the_fitted_one() -> None:
    fitted = json.loads(published_amd.RESULTS.read_text())["ratio"]
    for engine in ("vllm", "sglang"):
        assert (
            engine_rules.fields(engine, "0.11.0", DeploymentFacts(vendor="amd")).get("best_kernel_ratio", 1.0) == fitted
        )
        assert "best_kernel_ratio" not in engine_rules.fields(engine, "0.11.0", DeploymentFacts())


def test_a_group_does_not_choose_its_own_ratio() -> None:
    tables = {
        1.0: {"a": {"apart": "", "error": 0.0}, "b": {"apart": "", "error": 9.0}, "c": {"apart": "x", "error": 0.0}},
        2.0: {"a": {"apart": "", "error": 5.0}, "b": {"apart": "", "error": 1.0}, "c": {"apart": "x", "error": 99.0}},
    }
    assert published_amd.fitted(tables) == (2.0, {"a": 2.0, "b": 1.0, "c": 2.0})


def test_a_ratio_slows_steps_and_is_taken_back(runs: list[published_amd.Run]) -> None:
    run = next(run for run in runs if run.figure == "e2e_ms")
    before = run.predicted()["e2e_ms"]
    with published_amd.ruled(best_kernel_ratio=3.0):
        assert run.predicted()["e2e_ms"] > 1.2 * before
    assert run.predicted()["e2e_ms"] == before


def test_the_table_is_what_was_scored() -> None:
    page = published_amd.PAGE.read_text(encoding="utf-8")
    assert page == published_amd._page(json.loads(published_amd.RESULTS.read_text())["groups"])


def test_predictions_are_within_a_third_of_counted_runs() -> None:
    for group in json.loads(Path(published_amd.RESULTS).read_text())["groups"]:
        assert group["apart"] or group["error"] < 33.0

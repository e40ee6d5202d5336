"""Calls answered before they were measured: shapes that no row has, and figures that follow from the rows."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from lab import another_day_cases, collectives
from pipewave.errors import BadInput
from pipewave.gpus import find
from pipewave.kernels.attention.software import Case, kernel
from pipewave.kernels.base import Context
from pipewave.measure import plan
from pipewave.measure.row_files import rows
from studies import another_day
from studies.card_blind import DATA

pytestmark = pytest.mark.slow  # whole data sets

FOLDERS = [("H100", ""), ("H200", ""), ("H200", "second")]


@pytest.mark.parametrize("card", another_day_cases.CARDS)
def test_new_calls_have_shapes_without_rows(card: str) -> None:
    rng, known = np.random.default_rng(0), another_day_cases.seen(card)
    for part in (another_day_cases.products, another_day_cases.layers, another_day_cases.streams):
        assert not {another_day_cases._shape(job.case) for job in part(rng, known)} & known
    layouts = {job.case["heads"] for job in another_day_cases.batches(rng, known)}
    assert max(layouts) > 64


def test_a_cases_file_says_where_pages_lie_and_holds_collectives(tmp_path: Path) -> None:
    path = tmp_path / "cases.jsonl"
    drawn = another_day_cases.messages("H200")
    another_day_cases.write(path, drawn)
    assert collectives.jobs_of(str(path), 2) == drawn
    assert collectives.jobs_of(str(path), 4) == []
    case = {"kernel": "attention", "q_lens": [1], "kv_lens": [9], "heads": 8, "kv_heads": 8, "head_dim": 64}
    path.write_text(json.dumps({**case, "impl": "fa3", "pages": "scattered"}))
    (job,) = plan.from_file(path)
    assert job.pages == "scattered"
    path.write_text(json.dumps({**case, "impl": "fa3", "pages": "heaped"}))
    with pytest.raises(BadInput, match="heaped"):
        plan.from_file(path)


@pytest.mark.parametrize(("card", "second"), FOLDERS)
def test_every_row_was_answered_before_and_the_shown_errors_follow_from_both(card: str, second: str) -> None:
    folder = DATA / card.lower() / another_day.PLACE
    told = json.loads((folder / "answers.json").read_text(encoding="utf-8"))
    answers = dict(zip(told["key"], told["latency_us"], strict=True))
    found = [row for row in rows(folder / second) if another_day.family(row["case"]) == "silu_and_mul"]
    old = another_day.known(card)
    fresh = [row for row in found if row["key"] not in old and row["protocol"] == "cold"]
    error = np.mean([abs(answers[row["key"]] / row["latency_us"] - 1) for row in fresh])
    shown = json.loads(another_day.OUT.read_text(encoding="utf-8"))
    (line,) = [
        line
        for line in shown
        if line["card"] == f"{card} {second}".strip()
        and (line["family"], line["protocol"], line["calls"]) == ("silu_and_mul", "cold", "new")
    ]
    assert line["before"]["rows"] == len(fresh)
    assert line["before"]["mape"] == pytest.approx(100 * error, abs=0.006)
    assert {row["key"] for row in rows(folder / second)} <= answers.keys()


def test_both_h200s_are_different_cards() -> None:
    folder = DATA / "h200" / another_day.PLACE
    first, other = (another_day.environments(place) for place in (folder, folder / "second"))
    assert not {e["card"] for e in first.values() if "gpus" not in e} & {
        e["card"] for e in other.values() if "gpus" not in e
    }


def test_heads_of_96_are_decoded_by_the_tiles_that_their_kernels_name() -> None:
    found = rows(DATA / "h100" / another_day.PLACE / "attention.json.gz")
    names = {
        kernel["name"]
        for row in found
        if row["case"]["head_dim"] == 96 and max(row["case"]["q_lens"]) == 1
        for kernel in row.get("kernels", ())
    }
    case = Case(Context(find("H100"), stack="vllm-0.22.1"), 96, causal=True, fp8=False, paged=True, latent=False)
    tile = kernel(case, "fa3").decode
    assert any(f"cute::C<{tile.rows}>, cute::C<{tile.keys}>, cute::C<96>" in name for name in names)

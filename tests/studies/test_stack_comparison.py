"""The comparison of stacks: standings of frameworks and shapes from rows with known ratios to the ceiling."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

import pipewave as pw
from docs.tools.stack_comparison_page import NAMES, draw, fill
from studies import rounded
from studies.stack_comparison import Row, above, stacks, worst_served
from studies.stack_gaps import compare_stacks

GOOD, POOR = 1.0, 2.0
CALLS = [
    pw.gemm(m, n, 4096, stack=stack, impl=stack)
    for stack in ("vllm-0.22.1", "sglang-0.5.14")
    for n in (1024, 4096)
    for m in range(8, 88, 8)
]
ROWS = [Row(call, "H200", "graph", 10.0) for call in CALLS]
RATIOS = np.array([POOR if row.call.to_dict()["stack"] == "sglang-0.5.14" else GOOD for row in ROWS])
RESULTS = {
    "rows": len(ROWS),
    "stacks": [asdict(one) for one in stacks(ROWS, RATIOS)],
    "implementations": [asdict(one) for one in compare_stacks(ROWS, RATIOS)],
    "worst_served": [asdict(one) for one in worst_served(ROWS, RATIOS)],
}


def test_time_above_the_ceiling_is_what_a_kernel_at_it_would_win_back() -> None:
    assert above(np.array([2.0, 1.0, 0.5])) == pytest.approx(0.5 / 3)


def test_frameworks_stand_apart() -> None:
    found = {one.framework: one for one in stacks(ROWS, RATIOS)}
    assert found["sglang"].median_ratio == POOR
    assert found["sglang"].above == pytest.approx(0.5)
    assert found["vllm"].above == 0.0
    assert sum(one.rows for one in found.values()) == len(ROWS)


def test_the_worst_served_shape_comes_first_and_few_rows_name_none() -> None:
    first = worst_served(ROWS, RATIOS)[0]
    assert (first.stack, first.ratio, first.rows) == ("sglang-0.5.14", POOR, 10)
    assert first.shape["k"] == 4096
    assert first.example["ceiling_us"] == pytest.approx(10.0 / POOR)
    assert worst_served(ROWS[:7], RATIOS[:7]) == []


def test_the_page_holds_every_table() -> None:
    page = fill(RESULTS)
    assert "| H200 | 0.0 % | 50.0 % |" in page
    assert "{" not in page
    assert page.count("# ") >= 1 + len(NAMES)
    assert json.loads(json.dumps(rounded(RESULTS)))["rows"] == len(ROWS)


def test_figures_are_small(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    draw(RESULTS, tmp_path)
    assert {path.stem for path in tmp_path.glob("*.svg")} == set(NAMES)
    assert all(path.stat().st_size < 60_000 for path in tmp_path.glob("*.svg"))

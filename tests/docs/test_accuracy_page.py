"""The accuracy page: figures are pooled by rows, bars stand beside what was measured, left-out tables are found."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from docs.tools import accuracy_tables as tables
from qa.accuracy import Figures, Key, left_out, left_out_rows, nets

ROOT = Path(__file__).resolve().parents[2]


def key(gpu: str = "H200", impl: str = "cublas", protocol: str = "cold") -> Key:
    return Key("gemm", gpu, "bf16", "torch-2.11", impl, protocol)


def figures(rows: int, mape: float) -> Figures:
    return Figures(rows, mape, mape, -1.0, 90.0, 80.0, 0, 1.7, 0.3)


def test_cells_pool_by_their_rows_and_told_runs_stay_apart() -> None:
    cells = {
        key(): figures(10, 4.0),
        key(impl="cutlass"): figures(30, 8.0),
        key(impl="cublas, clock known"): figures(10, 1.0),
    }
    found = tables.pooled(cells, lambda _: True)
    assert found is not None
    assert (found["rows"], found["mape"]) == (40, pytest.approx(7.0))
    told = tables.pooled(cells, lambda _: True, known=True)
    assert told is not None
    assert told["mape"] == 1.0
    assert tables.pooled(cells, lambda k: k.gpu == "A100") is None


def test_a_gpu_s_types_weigh_by_their_rows() -> None:
    cells = {
        "H200 · bf16": {"rows": 100.0, "mape": 4.0}, "H200 · fp8": {"rows": 300.0, "mape": 8.0},
        "A100 · bf16": {"rows": 10.0, "mape": 5.0}, "macro mean": {"rows": 410.0, "mape": 6.0},
    }  # fmt: skip
    assert tables.by_gpu(cells, ["H200", "A100"], []) == {"H200": pytest.approx(7.0), "A100": 5.0}
    assert tables.by_gpu(cells, ["H200"], ["bf16"]) == {"H200": 4.0}


def test_missed_bars_are_bold_and_unmeasured_ones_say_so() -> None:
    given = json.loads((ROOT / "docs" / "tools" / "pages" / "accuracy.json").read_text(encoding="utf-8"))
    rows = tables.bars(given)
    assert [row["evaluation"] for row in rows] == [asked["name"] for asked in given["evaluations"]]
    for row, asked in zip(rows, given["evaluations"], strict=True):
        for family, bar in zip(given["families"], asked["bars"], strict=True):
            value = row[family].partition(" / ")[0]
            assert value == "–" or value.startswith("**") == (float(value.strip("*")) > bar)


def test_a_smaller_run_fills_only_what_the_full_one_lacks(tmp_path: Path) -> None:
    (tmp_path / "toy.graph.json").write_text('{"fold": {"H200 · bf16": {"rows": 1, "mape": 5}}}')
    (tmp_path / "toy.graph.reduced.json").write_text(
        '{"fold": {"H200 · bf16": {"rows": 1, "mape": 9}}, "lofo": {"H200 · bf16": {"rows": 1, "mape": 15}}}'
    )
    found = left_out("toy", "graph", tmp_path)
    assert found["fold"]["H200 · bf16"]["mape"] == 5
    assert found["lofo"]["H200 · bf16"]["mape"] == 15
    assert [(row["split"], row["mape"]) for row in left_out_rows(tmp_path)] == [
        ("unseen family", 15),
        ("unseen shapes", 5),
    ]
    assert nets(tmp_path) == ["toy"]


def test_the_page_is_filled_and_its_figures_exist() -> None:
    page = (ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8")
    assert not re.findall(r"\{[a-z_]+\}", page)
    for image in re.findall(r"\]\((img/[^)]+)\)", page):
        assert (ROOT / "docs" / image).exists(), image


def test_a_table_shows_what_only_a_later_row_has() -> None:
    shown = tables.markdown([{"net": "gemm", "0 rows": 9.0}, {"net": "mla", "0 rows": 8.0, "1000 rows": 3.0}])
    assert shown.splitlines()[0] == "| net | 0 rows | 1000 rows |"
    assert shown.splitlines()[2:] == ["| gemm | 9.00 | – |", "| mla | 8.00 | 3.00 |"]

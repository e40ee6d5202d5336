"""Standings of implementations against the ceiling."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pipewave.calls.families import gemm
from pipewave.measure.row_files import rows as packed
from pipewave.prediction.api import predict
from studies.stack_gaps import Row, compare_stacks, main, measured_rows, ratios, worst

NORMS = Path(__file__).parents[2] / "data" / "measured" / "h200" / "rmsnorm.json.gz"
ROWS = [
    Row(gemm(m, 4096, 4096, impl=impl), "H200", "cold", 10.0 + m) for m in (16, 256, 2048) for impl in ("cublas", "own")
]


def test_ratios_are_measured_over_ceiling_whatever_else_is_asked_with_them() -> None:
    mixed = [*ROWS, Row(gemm(64, 64, 64), "A100", "graph", 5.0)]
    alone = [row.latency_us / predict(row.call, row.gpu, protocol=row.protocol).ceiling_us for row in mixed]
    np.testing.assert_allclose(ratios(mixed), alone, rtol=1e-5)


def test_slower_rows_stand_worse_in_proportion() -> None:
    slower = [replace(row, latency_us=3 * row.latency_us) for row in ROWS]
    np.testing.assert_allclose(ratios(slower), 3 * ratios(ROWS))
    one, other = compare_stacks(ROWS)[0], compare_stacks(slower)[0]
    assert other.median_ratio == pytest.approx(3 * one.median_ratio)


def test_every_row_stands_in_one_place_and_the_worst_come_first() -> None:
    standings = compare_stacks(ROWS)
    assert sum(one.rows for one in standings) == len(ROWS)
    assert {one.impl for one in standings} == {"cublas", "own"}
    medians = [one.median_ratio for one in standings]
    assert medians == sorted(medians, reverse=True)
    lost = [row.latency_us * (1 - 1 / ratio) for row, ratio in worst(ROWS, 4)]
    assert lost == sorted(lost, reverse=True)
    assert len(lost) == 4


def test_measured_rows_become_calls_of_the_software_that_ran() -> None:
    rows = measured_rows(packed(NORMS), "H200")
    assert len(rows) > 500
    assert {(row.call.kernel, row.call.to_dict()["stack"]) for row in rows} == {("rmsnorm", "vllm-0.22.1")}


def test_the_command_prints_the_comparison(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(NORMS), "--gpu", "H200", "--worst", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split()[:4] == ["rmsnorm", "cold", "vllm-0.22.1", "vllm"] or lines[2].split()[1] == "cold"
    assert sum("µs" in line for line in lines) == 3

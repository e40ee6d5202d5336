"""The SM clock's effect on a GEMM."""

from __future__ import annotations

import pytest

import pipewave as pw
from bench.gemm_clock import cold, report

LARGE, TALL = (8192, 8192, 8192), (1, 16384, 16384)


def latency(shape: tuple[int, int, int], clock: float | None, protocol: str = "cold") -> float:
    call = pw.gemm(*shape, sm_clock_mhz=clock)
    return pw.predict(call, "H200", protocol=protocol).latency_us


def test_a_product_bound_on_the_chip_follows_the_clock_and_one_bound_by_dram_hardly() -> None:
    slowed = {shape: latency(shape, 1200.0) / latency(shape, 1900.0) for shape in (LARGE, TALL)}
    assert 1.2 < slowed[LARGE] < 1900 / 1200
    assert 1.0 <= slowed[TALL] < 1.12


def test_one_call_and_many_agree() -> None:
    calls = [pw.gemm(*LARGE, sm_clock_mhz=clock) for clock in (1300.0, 1700.0, None)]
    each = [pw.predict(call, "H200").latency_us for call in calls]
    assert pw.predict(calls, "H200").latency_us == pytest.approx(each, rel=1e-5)


def test_a_card_serving_runs_slower_than_one_called_once() -> None:
    assert latency(LARGE, None, "serving") > latency(LARGE, None)


def test_other_protocols_take_no_notice() -> None:
    assert latency(LARGE, 1200.0, "graph") == latency(LARGE, None, "graph")


def test_with_its_clock_known_a_row_is_predicted_better() -> None:
    """Rows of fold 0, which neither the net nor the exponents were fitted on."""
    found = report("bf16", [row for row in cold() if row["case"]["dtype"] == "bf16"])
    known, unknown = found["clock known: MAPE %, bias %"], found["clock unknown: MAPE %, bias %"]
    assert known[0] < 3.6 < unknown[0]

"""The SM clock's effect on a GEMM."""

from __future__ import annotations

import pytest

import pipewave as pw
from studies.gemm_clock import LOADED, cold, errors, pairs

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


def test_busy_products_of_tens_of_microseconds_run_below_the_clock_of_a_rested_card() -> None:
    told = 0.992 * pw.find("H200").boost_clock_mhz
    over = {m: latency((m, 4096, 4096), None) / latency((m, 4096, 4096), told) for m in (1, 1024, 16384)}
    assert over[1] == pytest.approx(1.0, abs=1e-3)
    assert over[1024] > 1.05
    assert 1.0 < over[16384] < over[1024]
    times = [latency((m, 4096, 4096), None) for m in range(256, 4097, 256)]
    assert times == sorted(times)


def test_other_architectures_keep_their_clock() -> None:
    for gpu in ("A100", "B200"):
        told = 0.992 * pw.find(gpu).boost_clock_mhz
        calls = [pw.gemm(1024, 4096, 4096, sm_clock_mhz=clock) for clock in (None, told)]
        unknown, known = pw.predict(calls, gpu).latency_us
        assert unknown == pytest.approx(known, rel=1e-3)


def test_with_its_clock_known_a_row_is_predicted_better() -> None:
    """Rows of fold 0, which neither the net nor the exponents were fitted on."""
    found = errors([row for row in cold(LOADED) if row["case"]["dtype"] == "bf16"])
    known, unknown = found["clock known: MAPE %, bias %"], found["clock unknown: MAPE %, bias %"]
    assert known[0] < 4.0 < unknown[0] - 1.0


@pytest.mark.slow
def test_two_runs_of_a_product_differ_by_its_clock() -> None:
    """Rested and loaded rows of the same products: no model stands between."""
    rested, loaded = ([r for r in found if r["case"]["dtype"] == "fp8_block"] for found in (cold(), cold(LOADED)))
    found = pairs(rested, loaded)
    assert found["at one clock, %"] < 2.0 < found["apart, %"]
    offset, on_chip, lost = found["offset, on_chip, lost"]
    assert abs(offset) < 0.01
    assert 0.5 < on_chip < 1.0
    assert 0.0 < lost < 1.1

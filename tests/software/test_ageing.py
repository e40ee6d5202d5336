"""What time adds to the interval of an answer from an older version's rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import pipewave as pw
from pipewave.nets.weights_metadata import Interval, half_width, intervals_of
from pipewave.software.ageing import age, other_kernels

ASKED = ("vllm-0.26.0", "vllm-0.28.0", "vllm-0.30.0", "vllm-0.33.0")
CALLS = (pw.gemm(512, 4096, 4096, dtype="fp8_block"), pw.fused_moe(64, 128, 8, 2048, 768, dtype="fp8_block"))


def test_the_age_is_counted_in_releases_and_months() -> None:
    found = age("vllm-0.25.0", "vllm-0.33.0")
    assert found is not None
    assert found.releases == 10
    assert found.months == pytest.approx(114 / 30.44)  # 11 July to 2 November 2026
    assert str(found) == "10 releases and 3.7 months older"


def test_versions_are_at_least_as_old_as_the_last_release_known() -> None:
    assert age("vllm-0.25.0", "vllm-99.0") == age("vllm-0.25.0", "vllm-0.33.0")


@pytest.mark.parametrize(
    ("answered", "asked"),
    [("vllm-0.25.0", "vllm-0.24.0"), ("vllm-0.25.0", "vllm-0.25.0"), ("sglang-0.5.14", "vllm-0.33.0"),
     ("trtllm-1.0.0", "trtllm-1.3.0rc20")],
)  # fmt: skip
def test_newer_rows_and_releases_without_days_have_no_age(answered: str, asked: str) -> None:
    assert age(answered, asked) is None


@pytest.mark.parametrize("call", CALLS, ids=lambda call: f"{call.kernel} {call.dtype}")
def test_the_longer_ago_the_wider(call: Any) -> None:
    answers = [pw.predict(call, "H200", stack=stack, protocol="graph") for stack in ASKED]
    known = pw.predict(call, "H200", stack="vllm-0.25.0", protocol="graph")
    assert {one.software for one in answers} == {"nearest_version"}
    assert {one.latency_us for one in answers} == {known.latency_us}
    ratio = [one.high_us / one.latency_us for one in (known, *answers)]
    assert ratio == sorted(ratio) and len(set(ratio)) == len(ratio)


def test_one_call_and_a_table_are_as_wide_and_say_how_old_the_rows_are() -> None:
    table = pw.predict([CALLS[0]] * 40, "H200", stack=ASKED[-1], protocol="graph")
    alone = pw.predict(CALLS[0], "H200", stack=ASKED[-1], protocol="graph")
    assert np.allclose(table.high_us, alone.high_us, rtol=1e-5)
    assert any("answered from vllm-0.25.0, 10 releases and 3.7 months older" in note for note in alone.notes)


def test_a_version_of_other_kernels_has_their_half_width_at_least(monkeypatch: pytest.MonkeyPatch) -> None:
    call = pw.fused_moe(64, 128, 8, 2048, 768, dtype="fp8_block")
    same = pw.predict(call, "H200", stack="vllm-0.32.1", protocol="graph")
    monkeypatch.setattr("pipewave.prediction.fallback.changes", lambda *_: ((0, 32),))
    other, table = (pw.predict(each, "H200", stack="vllm-0.32.2", protocol="graph") for each in (call, [call] * 40))
    assert np.log(same.high_us / same.latency_us) < other_kernels("fused_moe")
    assert np.log(other.high_us / other.latency_us) == pytest.approx(other_kernels("fused_moe"))
    assert np.allclose(table.high_us, other.high_us, rtol=1e-5)
    assert any("which ran other kernels of this type" in note for note in other.notes)
    named = pw.predict(replace(call, impl=other.impl), "H200", stack="vllm-0.32.3", protocol="graph")
    assert named.high_us < other.high_us  # whoever names the kernel knows that it is the same


def test_what_is_known_of_the_gpu_is_not_widened() -> None:
    known = {"measured_gpu": Interval(1.0), "nearest_version": Interval(2.0, 0.5, 0.4)}
    scale = np.array([0.01, 0.1])
    now, later = (
        half_width(intervals_of(known, "measured_gpu", "", "nearest_version", aged=by), scale) for by in (1.0, 3.0)
    )
    assert later == pytest.approx(3.0 * now)
    alone = [half_width(intervals_of(known, "measured_gpu", aged=by), scale) for by in (1.0, 3.0)]
    assert np.array_equal(*alone)

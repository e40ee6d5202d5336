"""The sweep finds an answer that differs from its neighbours, and lets pass what rows or rates explain."""

from __future__ import annotations

from dataclasses import replace

from qa.sweep import asked
from qa.sweep.__main__ import answers
from qa.sweep.asked import Asked
from qa.sweep.held import outliers, pairs

MEASURED = Asked("rmsnorm", 0, "B200", "bf16", "vllm-0.24.0", "graph")
UNSEEN = replace(MEASURED, gpu="B300")


def test_a_gpu_slower_than_its_rates_allow_is_found() -> None:
    given = answers(["B200", "B300"], ["rmsnorm"])
    assert {asked.Asked(kernel="rmsnorm", shape=0, gpu="B300", dtype="fp16", stack=None, protocol="cold")} <= given.keys()  # fmt: skip
    assert not [one for one in outliers(given) if one.relation == "gpu"]
    slow = given[UNSEEN]
    odd = replace(slow, **{name: 3 * getattr(slow, name) for name in ("latency_us", "low_us", "high_us")})
    found = [one for one in outliers(given | {UNSEEN: odd}) if one.relation == "gpu"]
    assert [one.asked for one in found] == [UNSEEN] and found[0].ratio > 2
    assert "B300" in found[0].text and "B200" in found[0].text


def test_where_rows_decide_both_nothing_is_found() -> None:
    given = answers(["H100", "H200"], ["rmsnorm"])
    key = Asked("rmsnorm", 0, "H100", "bf16", "vllm-0.22.1", "graph")
    sure = replace(given[key], basis="measured_gpu", software="measured", latency_us=1e4, high_us=1e5)
    twin = replace(key, gpu="H200")
    both = {key: sure, twin: replace(given[twin], basis="measured_gpu", software="measured")}
    assert list(pairs(both)) and not list(outliers(both))

"""Published kernels on the MI300X beside answers: every row is asked, the page is what the bench prints."""

from __future__ import annotations

import yaml

from studies import published_amd_kernels as kernels


def test_the_page_is_what_is_answered_today() -> None:
    assert kernels.PAGE.read_text(encoding="utf-8") == kernels.page()


def test_answers_are_within_a_factor_of_two_of_what_frameworks_run() -> None:
    groups = yaml.safe_load(kernels.ROWS.read_text("utf-8"))
    assert {group["kind"] for group in groups} == set(kernels.CALLS)
    for group in groups:
        assert all(row["best"] < 1.05 * row["us"] for row in group["rows"])
        assert 0.5 < float(kernels.compared(group)[2]) < 2.0

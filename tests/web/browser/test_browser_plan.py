"""The plan view: limits in, Pareto front, cost and launch command out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Until = Callable[..., None]

QUERY = "?model=Llama-3.1-8B&gpus=H100,L40S&input_len=1024&output_len=128&ttft_ms=500&tpot_ms=40&max_gpus=4&tp=1,2"
ASKED = {"model": "Llama-3.1-8B", "gpus": ["H100", "L40S"], "input_len": 1024, "output_len": 128, "ttft_ms": 500,
         "tpot_ms": 40, "max_gpus": 4, "tp": [1, 2], "engines": ["vllm"], "rows": 60}  # fmt: skip


def rows(page: Any) -> list[str]:
    return page.locator("section[aria-label='Pareto front'] tbody tr td:first-child").all_inner_texts()


def test_front_winner_and_launch_command_are_the_librarys(page: Any, api: Callable[..., Any]) -> None:
    answer = api("/api/plan", ASKED)
    page.goto("/plan" + QUERY)
    page.wait_for_selector(".front-point")
    assert page.locator(".front-point").count() == len(answer["front"])
    assert page.locator(".launch code").inner_text() == answer["launch"]
    style = "getComputedStyle(document.querySelector('.launch code')).whiteSpace"
    assert page.evaluate(style) == "pre-wrap", "a pool has a line of its own"
    winner = answer["winner"]
    assert f"{winner['gpus']} × {winner['gpu']}" in page.locator(".chosen .facts").inner_text()
    assert len(rows(page)) == min(len(answer["front"]), 12)


def test_a_search_that_takes_long_says_for_how_long(page: Any, until: Until) -> None:
    page.route("**/api/plan", lambda route: None)  # no answer comes
    page.goto("/plan" + QUERY)
    counted = "Number((document.querySelector('.empty .seconds') || {innerText: ''}).innerText.replace(' s', ''))"
    until(f"{counted} >= 2")
    until(f"{counted} >= 3")


def test_designs_that_may_miss_a_limit_are_marked(page: Any, api: Callable[..., Any]) -> None:
    winner = api("/api/plan", ASKED)["winner"]
    tight = {"tpot_ms": round((winner["tpot_ms"] + winner["tpot_ms_high"]) / 2, 2)}  # inside the winner's interval
    front = api("/api/plan", ASKED | tight)["front"]
    assert {one["sure"] for one in front} == {"yes", "perhaps"}
    page.goto("/plan" + QUERY.replace("tpot_ms=40", f"tpot_ms={tight['tpot_ms']}"))
    table = page.locator("section[aria-label='Pareto front']")
    table.get_by_role("button", name="Within limits").wait_for()
    shown = table.locator("tbody tr td:last-child").all_inner_texts()
    assert shown == [one["sure"] for one in front][: len(shown)]
    page.goto("/plan" + QUERY.replace("ttft_ms=500&tpot_ms=40", "ttft_ms=1000000&tpot_ms=1000000"))
    page.wait_for_selector(".front-point")
    loose = api("/api/plan", ASKED | {"ttft_ms": 1e6, "tpot_ms": 1e6})["front"]
    doubtful = any(one["sure"] == "perhaps" for one in loose)
    assert table.get_by_role("button", name="Within limits").count() == doubtful


def test_table_sorts_both_ways(page: Any) -> None:
    page.goto("/plan" + QUERY)
    table = page.locator("section[aria-label='Pareto front']")
    head = table.locator("th button").filter(has_text="TPOT")
    head.click()
    table.locator("th[aria-sort='ascending']").get_by_text("TPOT").wait_for()
    fastest = table.locator("tbody tr").first.inner_text()
    head.click()
    table.locator("th[aria-sort='descending']").get_by_text("TPOT").wait_for()
    assert table.locator("tbody tr").first.inner_text() != fastest


def test_arrow_keys_walk_the_front_and_the_choice_is_in_the_url(page: Any, until: Until) -> None:
    page.goto("/plan" + QUERY)
    page.locator(".front-point[tabindex='0']").focus()
    before = page.locator(".launch code").inner_text()
    page.keyboard.press("ArrowLeft")
    until("location.search.includes('pick=') && !location.search.endsWith('pick=')")
    until("before => document.querySelector('.launch code').innerText !== before", before)
    assert page.evaluate("document.activeElement.getAttribute('aria-pressed')") == "true"


def test_axes_change(page: Any, until: Until) -> None:
    page.goto("/plan" + QUERY)
    page.get_by_label("$/Mtok").check(force=True)
    page.get_by_label("TTFT", exact=True).and_(page.locator("[type=radio]")).check(force=True)
    until("location.search.includes('y=usd_per_million_tokens') && location.search.includes('x=ttft_ms')")
    assert "USD per million tokens against TTFT" in page.locator(".chart").first.get_attribute("aria-label")


def test_what_does_not_fit_is_said(page: Any, api: Callable[..., Any]) -> None:
    answer = api("/api/plan", {**ASKED, "model": "Llama-3.1-70B", "tp": [1]})
    page.goto("/plan" + QUERY.replace("3.1-8B", "3.1-70B").replace("tp=1,2", "tp=1"))
    reasons = page.locator("section[aria-label='What does not fit, and why']")
    assert answer["does_not_fit"][0]["why"] in reasons.inner_text()


@pytest.mark.refused
def test_unknown_model_is_said_under_its_field(page: Any) -> None:
    page.goto("/plan" + QUERY.replace("Llama-3.1-8B", "Lama-3.1-8B"))
    message = page.locator("[data-field=model] .field-error")
    message.wait_for()
    assert "Llama-3.1-8B" in message.inner_text()  # the library's own suggestion
    assert page.get_by_label("Model").get_attribute("aria-invalid") == "true"


@pytest.mark.refused
def test_no_gpu_is_said_under_its_field(page: Any) -> None:
    page.goto("/plan" + QUERY.replace("H100,L40S", ""))
    page.locator("[data-field=gpus] .field-error").wait_for()


def test_notes_of_the_plan_are_shown(page: Any, api: Callable[..., Any]) -> None:
    notes = api("/api/plan", ASKED | {"engines": ["sglang"]})["notes"]
    page.goto("/plan" + QUERY + "&engines=sglang")
    page.locator("section[aria-label='Notes'] summary").click()
    assert page.locator("section[aria-label='Notes'] li").all_inner_texts() == notes and len(notes) > 1


def test_a_rate_is_answered_by_a_fleet_and_its_cost(page: Any, api: Callable[..., Any]) -> None:
    fleet = api("/api/plan", ASKED | {"rate": 40})["fleet"]
    page.goto("/plan" + QUERY + "&rate=40")
    card = page.locator("section[aria-label='Fleet']")
    card.wait_for()
    facts = dict(zip(card.locator("dt").all_inner_texts(), card.locator("dd").all_inner_texts(), strict=True))
    assert facts["Replicas"].startswith(str(fleet["replicas"])) and f"{fleet['gpus']} GPUs" in facts["Replicas"]
    assert facts["An hour"].startswith("$") and facts["A month of 730 hours"].startswith("$")

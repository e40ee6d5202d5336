"""Serve under traffic: percentiles, the run over time, a trace of requests, and figures that add up after a plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.web.browser.views import shown_ms, tile

Until = Callable[..., None]
ASKED = {"model": "Llama-3.1-8B", "gpu": "H200", "input_len": 1000, "output_len": 100, "requests": 200, "rate": 8.0,
         "max_num_batched_tokens": 8192}  # fmt: skip
QUERY = "?load=traffic&model=Llama-3.1-8B&gpu=H200&input_len=1000&output_len=100&requests=200&rate=8"
TPOT_IS = "Math.abs(parseFloat(document.querySelector(\"section[aria-label='TPOT'] .big\")?.innerText) / ms - 1) < 6e-3"


def test_percentiles_are_the_simulators(page: Any, api: Callable[..., Any]) -> None:
    answer = api("/api/traffic", ASKED)
    page.goto("/serve" + QUERY)
    page.wait_for_selector("section[aria-label='Percentiles'] tbody")
    for row, name in enumerate(("ttft", "tpot", "itl", "e2e")):
        cells = page.locator("section[aria-label='Percentiles'] tbody tr").nth(row).locator("td").all_inner_texts()
        for cell, point in zip(cells[1:], ("mean", "p50", "p90", "p95", "p99"), strict=True):
            assert shown_ms(cell) == pytest.approx(answer[f"{name}_{point}_ms"], rel=6e-3)
            assert "–" in cell  # with its interval


def test_the_run_is_drawn_over_time_and_read_by_keyboard(page: Any, until: Until, api: Callable[..., Any]) -> None:
    answer = api("/api/traffic", ASKED)
    page.goto("/serve" + QUERY)
    page.wait_for_selector("section[aria-label='Over time'] .wave-line[d]")
    assert page.locator("section[aria-label='Over time'] svg.chart").count() == 4
    page.get_by_role("slider", name="Read: requests over time").focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    key = "document.querySelector(\"section[aria-label='Over time'] .key\").innerText"
    batch = answer["timeline"]["running"][1]
    until(f"batch => {key}.includes(batch)", f"{batch:.3g}")


@pytest.mark.parametrize("name", ["TTFT", "TPOT"])
def test_parts_add_up_to_the_figure_shown(page: Any, name: str) -> None:
    page.goto("/serve" + QUERY)
    card = page.locator(f"section[aria-label='Where {name} goes']")
    card.wait_for()
    parts = [shown_ms(text) for text in card.locator(".legend-value").all_inner_texts()]
    assert sum(parts) == pytest.approx(shown_ms(tile(page, name)), rel=0.01)
    assert f"adds up to {tile(page, name)}" in card.inner_text()


def test_parts_of_a_static_batch_add_up_too(page: Any) -> None:
    page.goto("/serve?model=Llama-3.1-8B&gpu=H200&batch=32&input_len=2048&output_len=256")
    card = page.locator("section[aria-label='Prefill by kernel family']")
    card.wait_for()
    parts = [shown_ms(text) for text in card.locator(".legend-value").all_inner_texts()]
    assert sum(parts) == pytest.approx(shown_ms(tile(page, "TTFT")), rel=0.01)


def test_where_the_time_of_a_plans_design_goes_is_about_its_figures(page: Any, until: Until) -> None:
    """A plan says 147 ms and Serve shows 5.7 s: that was a batch of all prompts at once, not the plan's steady load."""
    page.goto(
        "/plan?model=Llama-3.1-8B&gpus=H200&input_len=2048&output_len=256&ttft_ms=2000&tpot_ms=40&tp=1&max_gpus=1"
    )
    page.wait_for_selector(".chosen")
    facts = dict(
        zip(page.locator(".chosen dt").all_inner_texts(), page.locator(".chosen dd").all_inner_texts(), strict=True)
    )
    page.get_by_role("link", name="See where its time goes").click()
    page.wait_for_selector("section[aria-label='Where TTFT goes']")
    asked = parse_qs(urlsplit(page.url).query)
    assert (asked["load"], asked["arrivals"], asked["settled"]) == (["traffic"], ["rate"], ["yes"])
    assert shown_ms(tile(page, "TTFT")) == pytest.approx(shown_ms(facts["TTFT (90 %)"]), rel=0.2)
    assert shown_ms(tile(page, "TPOT")) == pytest.approx(shown_ms(facts["TPOT (90 %)"]), rel=0.15)
    assert "as Plan means them" in page.locator(".summary").inner_text()


def test_a_trace_of_requests_is_opened(page: Any, until: Until) -> None:
    page.goto("/serve?load=traffic&arrivals=trace")
    page.get_by_text("Open a trace of requests:").wait_for()
    rows = "arrived_at,num_prefill_tokens,num_decode_tokens\n" + "".join(f"{i * 0.1},500,20\n" for i in range(40))
    page.set_input_files(
        "[data-opener='pasted.csv'] input", {"name": "mine.csv", "mimeType": "text/csv", "buffer": rows.encode()}
    )
    page.wait_for_selector("section[aria-label='Percentiles']")
    assert page.locator(".summary b").inner_text() == "40"
    assert "trace=file:mine.csv" in page.url


@pytest.mark.refused
def test_what_cannot_be_simulated_is_said_under_its_field(page: Any, until: Until) -> None:
    page.goto("/serve?load=traffic&arrivals=concurrency&concurrency=64&requests=100&settled=yes")
    message = page.locator("[data-field=requests] .field-error")
    message.wait_for()
    assert "at least 193" in message.inner_text()


def test_the_load_is_chosen_and_stays_in_the_address(page: Any, until: Until) -> None:
    page.goto("/serve")
    page.wait_for_selector(".tiles")
    page.get_by_label("Traffic").check(force=True)
    page.wait_for_selector("section[aria-label='Percentiles']")
    assert "load=traffic" in page.url
    page.get_by_label("Static").check(force=True)
    page.wait_for_selector("section[aria-label='One engine step']")


def test_engines_apart_and_drafts_are_asked_and_shown(page: Any, until: Until, api: Callable[..., Any]) -> None:
    beside = {"dp": 2, "prefill_engines": 1, "decode_engines": 2}
    page.goto("/serve" + QUERY + "&dp=2&prefill_engines=1&decode_engines=2")
    page.get_by_label("Drafting").select_option("ngram")
    page.get_by_label("Drafts a step").fill("4")
    page.get_by_label("Accepted share").fill("0.6")
    answer = api("/api/traffic", ASKED | beside | {"speculative": "method=ngram,tokens=4,acceptance=0.6"})
    page.locator("section[aria-label='Where TPOT goes']").wait_for()
    until(f"ms => {TPOT_IS}", answer["tpot_mean_ms"])
    assert f"adds up to {tile(page, 'TPOT')}" in page.locator("section[aria-label='Where TPOT goes']").inner_text()
    assert "cache transfer" in page.locator("section[aria-label='Where TTFT goes']").inner_text()


def test_each_pool_of_engines_may_be_split_in_its_own_way(page: Any, until: Until, api: Callable[..., Any]) -> None:
    pools = {"prefill_engines": 2, "decode_engines": 1, "prefill_tp": 1, "decode_tp": 4}
    page.goto("/serve" + QUERY + "&prefill_engines=2&decode_engines=1")
    page.get_by_label("Prefill TP").fill("1")
    page.get_by_label("Decode TP").fill("4")
    answer = api("/api/traffic", ASKED | pools)
    assert answer["gpus"] == 6
    until(f"ms => {TPOT_IS}", answer["tpot_mean_ms"])
    assert "prefill_tp=1" in page.url and "decode_tp=4" in page.url
    page.get_by_label("Decode engines").fill("0")
    page.get_by_label("Prefill engines").fill("0")
    page.get_by_label("Decode TP").wait_for(state="detached")


@pytest.mark.refused
def test_one_side_of_engines_alone_is_said_at_its_field(page: Any, until: Until) -> None:
    page.goto("/serve" + QUERY + "&prefill_engines=2")
    field = page.locator(".field.wrong[data-field=prefill_engines]")
    field.wait_for()
    assert "at least one prefill and one decode engine" in field.inner_text()

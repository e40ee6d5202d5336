"""The page on a phone, and what helps a first visit: lists to browse, an example, folded reasons, code in notes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.web.browser.views import SETTLED, show

PHONE = {"width": 390, "height": 844}


@pytest.mark.parametrize(("view", "card"), [("serve", ".tiles, .card"), ("plan", ".card"), ("compare", ".card")])
def test_results_start_on_the_first_screen(page: Any, view: str, card: str) -> None:
    page.set_viewport_size(PHONE)
    show(page, view)
    assert page.locator("#results").bounding_box()["y"] < PHONE["height"]
    assert page.locator("details.group[open]").count() == 0


def test_both_deployments_stand_side_by_side(page: Any) -> None:
    page.set_viewport_size(PHONE)
    show(page, "compare")
    table = page.locator("section[aria-label='Side by side'] .table-box")
    frame = table.bounding_box()
    for column in ("A", "B"):
        box = table.locator("th").filter(has_text=column).nth(0 if column == "A" else -1).bounding_box()
        assert box["x"] < frame["x"] + frame["width"]


@pytest.mark.refused
def test_a_complaint_opens_its_group(page: Any) -> None:
    page.set_viewport_size(PHONE)
    page.goto("/serve?tp=3")
    page.locator(".field-error").first.wait_for(state="visible")


def test_models_can_be_browsed(page: Any, api: Callable[..., Any]) -> None:
    show(page, "serve")
    browse = page.locator("[data-field=model] select")
    assert browse.locator("option").count() == len(api("/api/models")) + 1
    browse.select_option("Qwen3-8B")
    page.wait_for_selector(SETTLED)
    assert page.locator("[data-field=model] input").input_value() == "Qwen3-8B"


def test_the_best_of_each_gpu_has_a_table_and_many_reasons_are_folded(page: Any, api: Callable[..., Any]) -> None:
    gpus = ["T4", "A10", "A30", "V100", "A100", "H100", "L40S"]
    asked = {
        "model": "Qwen3-30B-A3B-FP8",
        "gpus": gpus,
        "input_len": 512,
        "output_len": 64,
        "tp": [1, 2],
        "engines": ["vllm"],
    }
    answer = api("/api/plan", asked)
    assert len(answer["does_not_fit"]) > 4
    page.goto(
        f"/plan?model=Qwen3-30B-A3B-FP8&gpus={','.join(gpus)}&input_len=512&output_len=64&tp=1,2&ttft_ms=&tpot_ms="
    )
    best = page.locator("section[aria-label='Best of each GPU'] tbody tr")
    best.first.wait_for()
    assert best.count() == len(answer["best_by_gpu"])
    folded = page.locator("section[aria-label='What does not fit, and why'] details")
    assert folded.get_attribute("open") is None
    folded.locator("summary").click()
    assert folded.locator("li").count() == len(answer["does_not_fit"])


def test_an_example_trace_is_one_click_away(page: Any) -> None:
    page.goto("/trace")
    page.get_by_role("button", name="Open an example").click()
    page.wait_for_selector(".card[aria-label='Totals']")
    assert "model=Llama-3.1-8B" in page.url


def test_code_in_notes_is_shown_as_code(page: Any) -> None:
    show(page, "compare")
    notes = page.locator(".notes")
    page.locator("details:has(> .notes) > summary").first.click()
    assert "`" not in notes.first.inner_text()
    assert notes.locator("code").first.inner_text() == "serve"


def test_a_heat_map_needs_no_size_of_the_field_that_it_goes_over(page: Any) -> None:
    page.goto("/kernel?kernel=gemm&case=k:4096&field=m&y=n")
    page.wait_for_selector(".card[aria-label^='Heat map']")
    page.wait_for_selector(SETTLED)
    assert page.locator(".field-error").count() == 0

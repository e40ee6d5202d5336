"""Two deployments side by side: figures, intervals and differences are those of Serve."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.web.browser.views import shown_ms

Until = Callable[..., None]
BATCH = {"model": "Llama-3.1-8B", "batch": 8, "input_len": 512, "output_len": 64}
SIDES = "?a_gpu=H200&b_gpu=L40S&batch=8&input_len=512&output_len=64"
ROWS = "section[aria-label='Side by side'] tbody tr"


def cells(page: Any, row: int) -> list[str]:
    found: list[str] = page.locator(ROWS).nth(row).locator("td").all_inner_texts()
    return found


def test_figures_and_differences_are_those_of_both(page: Any, api: Callable[..., Any]) -> None:
    a, b = (api("/api/serve", BATCH | {"gpu": gpu}) for gpu in ("H200", "L40S"))
    page.goto("/compare" + SIDES)
    page.wait_for_selector(ROWS)
    for row, name in enumerate(("prefill_ms", "tpot_ms", "e2e_ms")):
        _, left, right, change, apart = cells(page, row)
        assert shown_ms(left) == pytest.approx(a[name], rel=6e-3)
        assert shown_ms(right) == pytest.approx(b[name], rel=6e-3)
        assert f"{100 * (b[name] / a[name] - 1):+.1f}".replace("-", "−") in change
        settled = a[f"{name}_high"] < b[f"{name}_low"] or b[f"{name}_high"] < a[f"{name}_low"]
        assert apart == ("apart" if settled else "overlap")
        assert left.count("–") == right.count("–") == 1  # intervals
    shown = {row[0]: row[1:3] for row in (cells(page, at) for at in range(page.locator(ROWS).count()))}
    for name, field in (("W of a GPU", "power_w"), ("J an output token", "energy_j_per_output_token")):
        for text, answer in zip(shown[name], (a, b), strict=True):
            assert float(text.split()[0]) == pytest.approx(answer[field], rel=6e-3) and "–" in text


def test_the_same_deployment_differs_in_nothing(page: Any) -> None:
    page.goto("/compare?a_gpu=H200&b_gpu=H200&batch=8&input_len=512&output_len=64")
    page.wait_for_selector(ROWS)
    rows = [cells(page, row) for row in range(page.locator(ROWS).count())]
    assert {row[3] for row in rows} == {"same"}
    assert {row[4] for row in rows} <= {"overlap", ""}


def test_under_traffic(page: Any, until: Until) -> None:
    page.goto("/compare" + SIDES + "&load=traffic&requests=100&rate=2")
    page.wait_for_selector(ROWS)
    names = [cells(page, row)[0] for row in range(page.locator(ROWS).count())]
    assert {"TTFT, mean", "TTFT, p99", "TPOT, p99", "End to end, p99"} <= set(names)
    assert page.locator("section[aria-label='Where TTFT goes'] h3").count() == 2


@pytest.mark.refused
def test_an_error_of_one_side_stands_in_its_form_alone(page: Any) -> None:
    page.goto("/compare" + SIDES + "&b_tp=3")
    form = page.get_by_role("form", name="Deployment B")
    form.locator("[data-field=tp] .field-error").wait_for()
    assert page.get_by_role("form", name="Deployment A").locator(".field-error").count() == 0


def test_serve_leads_here_and_back(page: Any, until: Until) -> None:
    page.goto("/serve?model=Qwen3-8B&gpu=L40S&batch=4")
    page.wait_for_selector(".tiles")
    page.get_by_role("link", name="Compare with another deployment").click()
    page.wait_for_selector(ROWS)
    asked = parse_qs(urlsplit(page.url).query)
    assert [asked[name] for name in ("a_gpu", "b_gpu", "a_model", "batch")] == [["L40S"], ["L40S"], ["Qwen3-8B"], ["4"]]
    page.get_by_role("combobox", name="GPU").nth(1).select_option("H200")
    until("location.search.includes('b_gpu=H200')")
    page.get_by_role("link", name="B in Serve").click()
    until("location.pathname === '/serve' && location.search.includes('gpu=H200&')")

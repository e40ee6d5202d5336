"""A kernel over two fields: the heat map, its cells as a table and as CSV."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.web.browser.views import shown_ms

Until = Callable[..., None]
QUERY = (
    "?kernel=gemm&case=n:4096;k:4096&field=m&from=1&to=4096&points=8&y=n&y_from=128&y_to=8192&y_points=5&gpus=H200,L40S"
)
ASKED = {"kernel": "gemm", "case": {"k": 4096}, "gpu": "H200",
         "x": {"field": "m", "from": 1, "to": 4096, "points": 8, "scale": "log"},
         "y": {"field": "n", "from": 128, "to": 8192, "points": 5, "scale": "log"}}  # fmt: skip
HEAT = "section[aria-label^='Heat map']"


def test_every_cell_is_in_map_table_and_csv(page: Any, api: Callable[..., Any]) -> None:
    answer = api("/api/grid", ASKED)
    page.goto("/kernel" + QUERY)
    page.wait_for_selector(HEAT)
    assert page.locator(f"{HEAT} svg.chart > rect:not(.surface):not(.heat-cell)").count() == 8 * 5
    with page.expect_download() as saved:
        page.get_by_role("button", name="CSV").click()
    with Path(saved.value.path()).open(newline="") as file:
        rows = list(csv.DictReader(file))
    cells = [(x, y, us) for y, row in zip(answer["y"], answer["latency_us"], strict=True)
             for x, us in zip(answer["x"], row, strict=True)]  # fmt: skip
    assert [(int(row["m"]), int(row["n"]), float(row["latency_us"])) for row in rows] == cells
    assert {row["gpu"] for row in rows} == {"H200"}
    first = page.locator("section[aria-label='Cells'] tbody tr").first.locator("td").all_inner_texts()
    assert shown_ms(first[2]) * 1e3 == pytest.approx(cells[0][2], rel=6e-3)


def test_the_map_is_read_by_keyboard(page: Any, until: Until, api: Callable[..., Any]) -> None:
    answer = api("/api/grid", ASKED)
    page.goto("/kernel" + QUERY)
    page.wait_for_selector(HEAT)
    page.get_by_role("slider", name="Read the heat map").focus()
    for key in ("ArrowUp", "ArrowRight", "ArrowRight"):
        page.keyboard.press(key)
    until("place => document.querySelector('.heat-value').innerText.startsWith(place)",
          f"m {answer['x'][2]}, n {answer['y'][1]}:")  # fmt: skip
    shown = page.locator(".heat-value").inner_text()
    assert shown_ms(shown) * 1e3 == pytest.approx(answer["latency_us"][1][2], rel=6e-3)


def test_the_second_field_is_chosen_in_the_form(page: Any, until: Until) -> None:
    page.goto("/kernel?gpus=H200")
    page.wait_for_selector(".latency-line[d]")
    page.locator("summary:text-is('Second field: heat map')").click()
    page.get_by_label("Vary also").select_option("k")
    page.wait_for_selector(HEAT)
    assert "y=k" in page.url
    page.get_by_label("Share of floor speed").check(force=True)
    until("document.querySelector('.heat-value').innerText.includes('%')")
    page.get_by_label("Vary also").select_option("")
    until("!document.querySelector(\"section[aria-label^='Heat map']\")")


@pytest.mark.refused
def test_what_cannot_be_swept_is_said(page: Any) -> None:
    page.goto("/kernel" + QUERY.replace("y_points=5", "y_points=1999"))
    page.get_by_text("is more than the").first.wait_for()

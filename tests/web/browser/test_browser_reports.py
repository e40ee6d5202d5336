"""Reports on a screen, a phone and paper: no column is cut off."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.web.browser.views import TRACE, show

CLIPPED = """() => [...document.querySelectorAll('table')].filter(one => one.scrollWidth > one.parentElement.clientWidth + 1)
  .map(one => `${one.closest('section').innerText.slice(0, 40)}: ${one.scrollWidth} of ${one.parentElement.clientWidth}`)"""
PAPER = 718  # pixels of an A4 sheet between its margins


@pytest.mark.parametrize("view", ["plan", "serve", "traffic", "kernel", "trace"])
def test_no_column_is_cut_off(page: Any, view: str, tmp_path: Path) -> None:
    if view == "trace" and not TRACE.exists():
        pytest.skip("recorded traces are not in this checkout")
    show(page, view)
    with page.expect_download() as saved:
        page.get_by_role("button", name="Save as a report").click()
    file = tmp_path / "report.html"
    saved.value.save_as(file)
    page.goto(file.as_uri())
    assert page.evaluate(CLIPPED) == []
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    boxes = page.evaluate("[...document.querySelectorAll('.wide')].map(one => getComputedStyle(one).overflowX)")
    assert set(boxes) == {"auto"}  # what is wider scrolls
    page.set_viewport_size({"width": PAPER, "height": 1000})
    page.emulate_media(media="print")
    assert page.evaluate(CLIPPED) == []

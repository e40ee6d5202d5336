"""WCAG 2.2 A and AA by axe-core: every view, in both themes, on a desktop and on a phone; and every report."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from tests.web.browser.views import SETTLED, TRACE, VIEWS, show

LEVELS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
RUN = """levels => axe.run(document, {runOnly: levels, resultTypes: ['violations']}).then(found =>
  found.violations.flatMap(one => one.nodes.map(node => `${one.id}: ${node.target} ${node.failureSummary}`)))"""


@pytest.fixture
def axe(page: Any) -> Any:
    """The page with axe-core in it: put there by the browser, so that the page's policy need not allow it."""
    package = pytest.importorskip("axe_playwright_python")
    page.context.add_init_script(resources.files(package).joinpath("axe.min.js").read_text("utf-8"))
    return page


def violations(page: Any) -> list[str]:
    found: list[str] = page.evaluate(RUN, LEVELS)
    return found


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("view", VIEWS)
def test_views(axe: Any, view: str, scheme: str, width: int) -> None:
    axe.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    axe.set_viewport_size({"width": width, "height": 900})
    show(axe, view)
    axe.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    assert violations(axe) == []


@pytest.mark.refused
def test_errors(axe: Any) -> None:
    axe.goto("/serve?model=Lama-3.1-8B&tp=3")
    axe.locator(".field-error").first.wait_for()
    assert violations(axe) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("view", ["plan", "serve", "traffic", "kernel", "trace"])
def test_reports(axe: Any, view: str, scheme: str, tmp_path: Path) -> None:
    if view == "trace" and not TRACE.exists():
        pytest.skip("recorded traces are not in this checkout")
    show(axe, view)
    with axe.expect_download() as saved:
        axe.get_by_role("button", name="Save as a report").click()
    file = tmp_path / "report.html"
    saved.value.save_as(file)
    axe.emulate_media(color_scheme=scheme)
    axe.goto(file.as_uri())
    assert violations(axe) == []


def test_axe_finds_what_is_wrong(axe: Any) -> None:
    """The check itself: a label taken away is found."""
    axe.goto("/kernel")
    axe.wait_for_selector(SETTLED)
    axe.evaluate("document.querySelector('.field label').remove()")
    assert any(one.startswith("select-name") for one in violations(axe))

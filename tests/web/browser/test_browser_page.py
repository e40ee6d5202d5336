"""What all views share: URLs, history, keyboard, themes, narrow screens, and who gets requests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.web.browser.views import VIEWS as SHOWN_VIEWS
from tests.web.browser.views import show

Until = Callable[..., None]

VIEWS = ("plan", "serve", "kernel", "trace", "compare", "model")
REPORTED = VIEWS[:3]
ANSWERED = ("plan", "serve", "kernel", "compare", "model")
FORM = "[...document.querySelectorAll('.inputs input:not([type=file]), .inputs select')].map(one => one.value)"
SHOWN = "document.querySelector('.results').innerText"
READY = ".results:not(.stale)[aria-busy=false] :is(.card, .empty)"


def settle(page: Any, view: str) -> None:
    page.goto(f"/{view}")
    page.wait_for_selector(READY)


def test_root_is_the_plan(page: Any, until: Until) -> None:
    page.goto("/")
    until("location.pathname === '/plan'")
    assert page.title() == "Plan · pipewave"


CHANGED = {"plan": ("Output tokens", "64"), "serve": ("Tokens a step", "4096"), "kernel": ("To", "3000"),
           "compare": ("Output tokens", "64"), "model": ("TP", "2")}  # fmt: skip


@pytest.mark.parametrize("view", ANSWERED)
def test_a_url_is_a_result(page: Any, until: Until, view: str) -> None:
    """Change an input, open the new URL elsewhere: same inputs, same numbers."""
    settle(page, view)
    name, value = CHANGED[view]
    page.get_by_label(name, exact=True).fill(value)
    until("value => location.search.includes(`=${value}`)", value)
    page.wait_for_timeout(600)  # longer than the plan waits for more typing
    page.wait_for_selector(READY)
    other = page.context.new_page()
    other.goto(page.url)
    other.wait_for_selector(READY)
    other.wait_for_timeout(200)  # lists of GPUs and models
    assert other.evaluate(FORM) == page.evaluate(FORM)
    assert other.evaluate(SHOWN) == page.evaluate(SHOWN)


def test_back_and_forward(page: Any, until: Until) -> None:
    settle(page, "serve")
    page.get_by_label("Tokens a step").fill("2048")
    until("location.search.includes('max_num_batched_tokens=2048')")
    page.get_by_role("link", name="Kernel").click()
    until("location.pathname === '/kernel'")
    page.wait_for_selector(READY)
    page.go_back()
    until("location.pathname === '/serve' && location.search.includes('max_num_batched_tokens=2048')")
    page.go_back()
    until("location.search.includes('max_num_batched_tokens=8192')")
    until("document.querySelector('[data-field=max_num_batched_tokens] input').value === '8192'")
    page.go_forward()
    until("location.search.includes('max_num_batched_tokens=2048')")
    # Twice back at once: the second step comes before the view of the first is painted.
    page.get_by_role("link", name="Kernel").click()
    page.wait_for_selector(READY)
    page.evaluate("addEventListener('popstate', () => history.back(), {once: true}); history.back()")
    until("location.search.includes('max_num_batched_tokens=8192')")
    until("document.querySelector('[data-field=max_num_batched_tokens] input').value === '8192'")


@pytest.mark.parametrize("view", VIEWS)
def test_keyboard_alone_reaches_everything_and_shows_where_it_is(page: Any, view: str) -> None:
    settle(page, view)
    reached = []
    for _ in range(200):
        page.keyboard.press("Tab")
        seen = page.evaluate(
            """() => { const one = document.activeElement, ring = document.querySelector(':focus-visible');
            if (!one || one === document.body) return null;
            const near = one.matches('input[type=radio], input[type=file]') ? one.nextElementSibling : one;
            const style = getComputedStyle(near);
            one.dataset.reached = 'yes';
            return {tag: one.tagName, what: one.getAttribute('aria-label') || one.innerText || one.id,
                    ring: ring !== null && (style.outlineStyle !== 'none' || style.strokeWidth === '4px')}; }"""
        )
        if seen is None:
            break
        reached.append(seen)
    assert [one for one in reached if not one["ring"]] == []
    missed = page.evaluate(
        """() => [...document.querySelectorAll('a[href], button:not(:disabled), select:not(:disabled), input, [tabindex="0"], summary')]
        .filter(one => one.checkVisibility() && !one.dataset.reached)
        .filter(one => !(one.type === 'radio' && !one.checked)).map(one => one.outerHTML.slice(0, 120))"""
    )
    assert missed == []


def test_skip_link_and_tabs_work_by_keyboard(page: Any, until: Until) -> None:
    settle(page, "serve")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "results"
    page.get_by_role("link", name="Trace").focus()
    page.keyboard.press("Enter")
    until("location.pathname === '/trace'")


@pytest.mark.parametrize("view", list(SHOWN_VIEWS))
def test_fits_a_phone_and_its_tables_scroll(page: Any, view: str) -> None:
    """Nothing is wider than the screen; a table that needs more room scrolls in its own box, to its last column."""
    page.set_viewport_size({"width": 390, "height": 844})
    show(page, view)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    beyond = page.evaluate(
        """() => [...document.querySelectorAll('.table-box')].map(box => { box.scrollLeft = 1e6;
        const last = box.querySelector('th:last-child').getBoundingClientRect(), frame = box.getBoundingClientRect();
        return {name: box.ariaLabel, over: last.right - frame.right, inside: frame.right - innerWidth,
                scrolls: getComputedStyle(box).overflowX}; })"""
    )
    assert [one for one in beyond if one["over"] > 1 or one["inside"] > 0 or one["scrolls"] != "auto"] == []


def test_theme_follows_the_system_or_the_choice(page: Any) -> None:
    back = "getComputedStyle(document.body).backgroundColor"
    page.emulate_media(color_scheme="light")
    settle(page, "trace")
    light = page.evaluate(back)
    page.emulate_media(color_scheme="dark")
    dark = page.evaluate(back)
    assert dark != light
    page.get_by_label("Colours").select_option("light")
    assert page.evaluate(back) == light
    page.reload()
    page.wait_for_selector(".empty")
    assert page.evaluate(back) == light


def test_every_request_stays_on_this_machine(page: Any, site: str) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    for view in VIEWS:
        settle(page, view)
    assert [url for url in asked if not url.startswith(site)] == []


def test_every_block_of_numbers_can_be_taken_away(page: Any) -> None:
    for view in ANSWERED:
        settle(page, view)
        for card in page.locator("section.card").all():
            assert card.get_by_role("button", name="as JSON").count() == 1


def test_every_chart_and_input_has_a_name(page: Any) -> None:
    for view in VIEWS:
        settle(page, view)
        assert page.locator("svg.chart:not([aria-label])").count() == 0
        nameless = page.evaluate(
            """() => [...document.querySelectorAll('input, select')].filter(one => !one.labels?.length && !one.ariaLabel).length"""
        )
        assert nameless == 0


@pytest.mark.parametrize("view", REPORTED)
def test_results_can_be_saved_as_one_file(page: Any, view: str) -> None:
    settle(page, view)
    with page.expect_download() as saved:
        page.get_by_role("button", name="Save as a report").click()
    document = Path(saved.value.path()).read_text(encoding="utf-8")
    assert document.lstrip().lower().startswith("<!doctype html>")
    assert "http://" not in document.replace("http://www.w3.org", "")

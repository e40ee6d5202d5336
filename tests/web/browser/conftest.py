"""A real server and a real browser. A test fails on any console error, page error or Content-Security-Policy violation."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.request import Request, urlopen

import pytest

from docs.tools.browser import BROWSERS, browser_path, flags, served

WATCH_CSP = (
    "addEventListener('securitypolicyviolation', e => console.error(`CSP: ${e.violatedDirective} ${e.blockedURI}`))"
)
PATIENCE_S = 60  # for what a slow machine takes long over, such as a plan
REPORT = pytest.StashKey[list[str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[REPORT] = []


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Measured, not asserted: how fast the page redraws here. And in capitals what was not tested."""
    for line in config.stash[REPORT]:
        terminalreporter.write_line(line)
    if browser_path() is None:
        terminalreporter.write_line(
            f"THE PAGE WAS NOT TESTED IN A BROWSER: none of {', '.join(BROWSERS)} is on PATH "
            "(apt-get install chromium, or set PIPEWAVE_BROWSER)",
            red=True,
            bold=True,
        )


@pytest.fixture
def report(request: pytest.FixtureRequest) -> Callable[[str], None]:
    return request.config.stash[REPORT].append


@pytest.fixture(scope="session")
def site() -> Iterator[str]:
    """Address of `pipewave web` in a process of its own."""
    with served() as address:
        yield address


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api")
    path = browser_path()
    if path is None:
        pytest.skip("no Chromium: the page is NOT tested in a browser")
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=flags())
        yield chromium
        chromium.close()


@pytest.fixture
def page(browser: Any, site: str, request: pytest.FixtureRequest) -> Iterator[Any]:
    """A fresh page with the clipboard allowed. `@pytest.mark.refused` tests expect the server's 4xx in the console."""
    context = browser.new_context(base_url=site, viewport={"width": 1280, "height": 900})
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    context.add_init_script(WATCH_CSP)
    troubles: list[str] = []
    context.on("console", lambda message: troubles.append(message.text) if message.type == "error" else None)
    context.on("weberror", lambda error: troubles.append(str(error.error)))
    page = context.new_page()
    page.set_default_timeout(1e3 * PATIENCE_S)
    yield page
    context.close()
    expected = r"status of 4\d\d" if request.node.get_closest_marker("refused") else r"(?!)"
    assert [one for one in troubles if not re.search(expected, one)] == []


@pytest.fixture
def until(page: Any) -> Callable[..., None]:
    """Wait until an expression is true. (The browser's own waiting needs eval, which the page's policy forbids.)"""

    def wait(expression: str, arg: Any = None) -> None:
        ends = time.monotonic() + PATIENCE_S
        while not page.evaluate(expression, arg):
            assert time.monotonic() < ends, f"never true: {expression}"
            page.wait_for_timeout(30)

    return wait


@pytest.fixture
def api(site: str) -> Callable[..., Any]:
    """The server's own answer, to compare what the page shows with."""

    def ask(path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        with urlopen(
            Request(site + path, data, {"Content-Type": "application/json"}), timeout=2 * PATIENCE_S
        ) as answer:
            return json.load(answer)

    return ask

"""Files of one's own in the page: a config.json, a GPU's spec file, prices; opened or pasted, and said when wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pipewave

Until = Callable[..., None]
CONFIG = Path(pipewave.__file__).parent / "data" / "models" / "Qwen3-8B.json"
CARD = "name: Twice\nbase: H200\ndram_gbps: 9600\n"
OWN = "details.group:has(> summary:text-is('Own files')) > summary"


def opened(page: Any, until: Until, which: str, content: str, name: str) -> None:
    page.set_input_files(
        f"[data-opener='{which}'] input", {"name": name, "mimeType": "text/plain", "buffer": content.encode()}
    )
    until("which => document.querySelector(`[data-opener='${which}'] :is(.hint, .field-error)`)", which)


def tpot(page: Any) -> str:
    text: str = page.locator("section[aria-label='TPOT'] .big").inner_text()
    return text


def test_an_opened_config_is_served(page: Any, until: Until) -> None:
    page.goto("/serve?model=Qwen3-8B&gpu=H200")
    page.wait_for_selector(".tiles")
    named = tpot(page)
    page.goto("/serve?model=Llama-3.1-8B&gpu=H200")
    page.wait_for_selector(".tiles")
    page.locator(OWN).click()
    opened(page, until, "pasted.json", CONFIG.read_text("utf-8"), "mine.json")
    assert "8.19 B parameters" in page.locator("[data-opener='pasted.json'] .hint").inner_text()
    until("location.search.includes('model=file:mine.json')")
    until("shown => document.querySelector(\"section[aria-label='TPOT'] .big\").innerText === shown", named)


def test_a_pasted_gpu_is_served_and_its_sliders_start_from_it(page: Any, until: Until) -> None:
    page.goto("/serve?model=Llama-3.1-8B&gpu=H200")
    page.wait_for_selector(".tiles")
    before = tpot(page)
    page.locator(OWN).click()
    page.locator("[data-opener='pasted.yaml'] summary").click()
    page.get_by_label("Text: Open a GPU's spec file").fill(CARD)
    page.locator("[data-opener='pasted.yaml'] button").click()
    until("location.search.includes('gpu=file:pasted.yaml')")
    until("old => document.querySelector(\"section[aria-label='TPOT'] .big\").innerText !== old", before)
    page.get_by_text("What if the Twice had").wait_for()
    assert page.get_by_label("DRAM bandwidth, exact").input_value() == "9600"


@pytest.mark.refused
@pytest.mark.parametrize(
    ("which", "content", "says"),
    [
        ("pasted.json", '{"model_type": "llama"}', "num_hidden_layers"),
        ("pasted.json", "not json", "not valid JSON"),
        ("pasted.yaml", "name: X\nbase: H200\nsms: -1\n", "sms"),
        ("pasted.yaml", "name: H200\nbase: H100\n", "taken"),
        ("pasted.yaml", "x" * 100_001, "larger than"),
    ],
)
def test_a_wrong_file_is_said_where_it_was_opened(page: Any, until: Until, which: str, content: str, says: str) -> None:
    page.goto("/serve")
    page.wait_for_selector(".tiles")
    page.locator(OWN).click()
    opened(page, until, which, content, "wrong" + which[-5:])
    message = page.locator(f"[data-opener='{which}'] .field-error").inner_text()
    assert says in message and "--" not in message
    assert "file:" not in page.url  # the inputs stay as they were


def test_a_link_holds_own_files(page: Any, until: Until) -> None:
    page.goto("/serve?model=Llama-3.1-8B&gpu=H200")
    page.wait_for_selector(".tiles")
    page.locator(OWN).click()
    opened(page, until, "pasted.json", CONFIG.read_text("utf-8"), "mine.json")
    opened(page, until, "pasted.yaml", CARD, "twice.yaml")
    until("location.search.includes('model=file:mine.json') && location.search.includes('gpu=file:twice.yaml')")
    page.get_by_text("What if the Twice had").wait_for()
    address = page.url
    page.goto("about:blank")
    page.goto(address)
    page.get_by_text("What if the Twice had").wait_for()
    page.wait_for_selector(".tiles")
    assert page.locator(".field-error").count() == 0
    page.get_by_role("link", name="Model").first.click()
    page.wait_for_selector(".card")
    assert page.url.partition("#")[2] == address.partition("#")[2]


def test_a_damaged_link_is_a_page_without_own_files(page: Any) -> None:
    page.goto("/serve?model=Llama-3.1-8B&gpu=H200#own=bm9uc2Vuc2U!")
    page.wait_for_selector(".tiles")


@pytest.mark.refused
def test_a_shared_address_asks_for_the_file_again(page: Any) -> None:
    page.goto("/serve?model=file:mine.json")
    message = page.locator("[data-field=model] .field-error")
    message.wait_for()
    assert "choose the file again" in message.inner_text()


def test_plan_and_kernel_take_an_own_gpu_beside_others(page: Any, until: Until) -> None:
    for view in ("/plan?model=Llama-3.1-8B&gpus=H200&tp=1", "/kernel?gpus=H200"):
        page.goto(view)
        page.wait_for_selector(".card")
        page.locator(OWN).click()
        opened(page, until, "pasted.yaml", CARD, "twice.yaml")
        until("location.search.includes('gpus=H200,file:twice.yaml')")
        until("document.querySelector('.results').innerText.includes('Twice')")


def test_own_prices_decide_the_plan(page: Any, until: Until, api: Callable[..., Any]) -> None:
    page.goto("/plan?model=Llama-3.1-8B&gpus=H100,L40S&tp=1&ttft_ms=&tpot_ms=")
    page.wait_for_selector(".chosen")
    page.locator("summary:text-is('Own prices')").click()
    box = page.get_by_label("USD an hour and GPU")
    for prices, wins in (("H100 = 0.01\nL40S = 50", "H100"), ("H100: 50\nL40S, 0.01", "L40S")):
        box.fill(prices)
        box.blur()
        until("name => document.querySelector('.chosen .facts dd').innerText.endsWith(name)", wins)
    assert "prices=H100:50;L40S:0.01" in page.url
    page.set_input_files(
        "[data-opener='prices'] input",
        {"name": "p.json", "mimeType": "text/plain", "buffer": json.dumps({"H100": 0.02, "L40S": 9}).encode()},
    )
    until("document.querySelector('.chosen .facts dd').innerText.endsWith('H100')")


@pytest.mark.refused
def test_a_wrong_price_is_said_under_its_box(page: Any) -> None:
    page.goto("/plan?model=Llama-3.1-8B&gpus=H100&tp=1&prices=H10000:2")
    message = page.locator("[data-field=prices] .field-error")
    message.wait_for()
    assert "H10000" in message.inner_text()
    page.goto("/plan?model=Llama-3.1-8B&gpus=H100&tp=1")
    page.wait_for_selector(".chosen")
    page.locator("summary:text-is('Own prices')").click()
    page.get_by_label("USD an hour and GPU").fill("two dollars")
    page.get_by_label("USD an hour and GPU").blur()
    page.get_by_text("is no price: write such as").wait_for()

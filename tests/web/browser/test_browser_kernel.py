"""The kernel view: curves, bands, waves, bounds and the tuner's choices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Until = Callable[..., None]
DRAWN = ".results:not(.stale)[aria-busy=false] .latency-line[d]"

QUERY = "?kernel=gemm&case=n:4096;k:4096&field=m&from=16&to=4096&points=60&gpus=H200,L40S"
ASKED = {"kernel": "gemm", "case": {"n": 4096, "k": 4096},
         "sweep": {"field": "m", "from": 16, "to": 4096, "points": 60, "scale": "log"}, "gpus": ["H200", "L40S"]}  # fmt: skip


def test_a_line_with_band_floor_and_ceiling_a_gpu(page: Any, until: Until) -> None:
    page.goto("/kernel" + QUERY)
    page.wait_for_selector(DRAWN)
    for mark in ("g .latency-line", ".band", "g .floor-line", "g .ceiling-line", ".wave-line"):
        assert page.locator(f".chart {mark}").count() == 2, mark
    page.get_by_label("90 % band").uncheck()
    until("!document.querySelector('.chart .band')")
    assert "layers=floor,ceiling" in page.url


def test_cursor_reads_the_librarys_numbers(page: Any, api: Callable[..., Any]) -> None:
    answer = api("/api/kernel", ASKED)
    page.goto("/kernel" + QUERY)
    cursor = page.get_by_role("slider", name="Read the latency chart")
    cursor.focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    page.get_by_role("heading", name=f"At m = {answer['x'][1]}", exact=True).wait_for()
    page.get_by_role("button", name=f"Copy At m = {answer['x'][1]} as JSON").click()
    page.get_by_role("status").get_by_text("Copied").wait_for()
    read = page.evaluate("navigator.clipboard.readText().then(JSON.parse)")
    wanted = {one["gpu"]: one["latency_us"][1] for one in answer["series"]}
    assert {one["gpu"]: one["latency_us"] for one in read} == wanted


def test_the_pointer_reads_too(page: Any) -> None:
    page.goto("/kernel" + QUERY)
    page.wait_for_selector(DRAWN)
    surface = page.locator(".surface").first
    box = surface.bounding_box()
    page.mouse.move(box["x"] + box["width"] - 1, box["y"] + 40)
    page.get_by_role("heading", name="At m = 4\u202f096").wait_for()


def test_tuner_choices_are_shown_where_there_is_a_table(page: Any, api: Callable[..., Any]) -> None:
    answer = api("/api/kernel", ASKED)
    page.goto("/kernel" + QUERY)
    page.wait_for_selector(DRAWN)
    assert page.locator("section[aria-label='What the tuner would choose'] h3").count() == len(answer["tuner"] or [])


@pytest.mark.parametrize("kernel", ["attention", "mla", "fused_moe", "rmsnorm", "silu_and_mul", "all_reduce"])
def test_every_family_has_a_working_example(page: Any, until: Until, kernel: str) -> None:
    page.goto("/kernel")
    page.get_by_label("Family").select_option(kernel)
    page.get_by_role("heading", name="Latency of").wait_for()
    until("kernel => location.search.includes(`kernel=${kernel}&`)", kernel)
    page.wait_for_selector(DRAWN)


@pytest.mark.refused
def test_size_out_of_range_is_said_under_its_field(page: Any) -> None:
    page.goto("/kernel" + QUERY.replace("n:4096", "n:-3"))
    message = page.locator("[data-field=n] .field-error")
    message.wait_for()
    assert "-3" in message.inner_text()


def test_a_gpu_that_cannot_says_why_and_the_others_are_drawn(page: Any) -> None:
    page.goto("/kernel" + QUERY.replace("k:4096", "k:4096;dtype:fp8").replace("L40S", "A100"))
    page.get_by_role("status").filter(has_text="A100:").wait_for()
    page.wait_for_selector(DRAWN)
    assert page.locator(".chart g .latency-line").count() == 1


def test_notes_of_every_gpu_are_shown(page: Any, api: Callable[..., Any]) -> None:
    """A stack that was not measured on a GPU is answered from another: its note is on the page."""
    case = {"n": 4096, "k": 4096, "stack": "sglang-0.5.14"}
    sweep = {"field": "m", "from": 1, "to": 4096, "points": 20, "scale": "log"}
    (series,) = api("/api/kernel", {"kernel": "gemm", "case": case, "sweep": sweep, "gpus": ["L40S"]})["series"]
    page.goto("/kernel?kernel=gemm&case=n:4096;k:4096;stack:sglang-0.5.14&field=m&from=1&to=4096&points=20&gpus=L40S")
    page.locator("section[aria-label='Notes on L40S'] summary").click()
    assert page.locator("section[aria-label='Notes on L40S'] li").all_inner_texts() == series["notes"]
    assert series["notes"]

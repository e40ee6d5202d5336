"""The trace view: a file in, recoverable time out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
TRACES = ROOT / "data" / "measured" / "h200" / "traces"
TRACE = TRACES / "trace-Llama-3.1-8B-tp1-4layers-eager-prefill.json.gz"
NCU = ROOT / "tests" / "data" / "traces" / "ncu-h200.csv"
needs_traces = pytest.mark.skipif(not TRACE.exists(), reason="recorded traces are not in this checkout")


@needs_traces
def test_chosen_file_is_ranked_by_recoverable_time(page: Any) -> None:
    page.goto("/trace")
    page.set_input_files("#trace-file", TRACE)
    page.get_by_role("button", name="Copy Recoverable time, call by call as JSON").click()
    page.get_by_role("status").get_by_text("Copied").wait_for()
    calls = page.evaluate("navigator.clipboard.readText().then(JSON.parse)")
    names = page.locator("section[aria-label='Recoverable time, call by call'] tbody .call b").all_inner_texts()
    ranked = sorted(calls, key=lambda one: -one["total_recoverable_us"])
    assert names == [one["name"] for one in ranked][:25]
    assert "recognised" in page.locator(".shares").inner_text()


@needs_traces
def test_dropped_file_is_read(page: Any) -> None:
    page.goto("/trace")
    content = page.evaluate_handle(
        """([bytes, name]) => { const d = new DataTransfer(); d.items.add(new File([new Uint8Array(bytes)], name)); return d; }""",
        [list(NCU.read_bytes()), "ncu.csv"],
    )
    page.locator(".drop").dispatch_event("drop", {"dataTransfer": content})
    page.get_by_role("heading", name="Totals").wait_for()
    assert "ncu.csv" in page.locator(".drop").inner_text()


@pytest.mark.refused
def test_a_file_that_is_no_trace_is_said_with_the_librarys_message(page: Any, tmp_path: Path) -> None:
    bad = tmp_path / "notes.json"
    bad.write_text(json.dumps({"hello": "world"}))
    page.goto("/trace")
    page.set_input_files("#trace-file", bad)
    message = page.locator(".alert, .field-error").first
    message.wait_for()
    assert "notes.json" in message.inner_text()


def test_before_a_file_it_says_what_to_do(page: Any) -> None:
    page.goto("/trace")
    assert "torch.profiler" in page.locator(".empty").inner_text()


def test_a_trace_with_nothing_to_rank_says_why(page: Any, tmp_path: Path) -> None:
    event = {"ph": "X", "cat": "kernel", "name": "my_kernel", "ts": 1, "dur": 2, "args": {"device": 0, "stream": 7}}
    file = tmp_path / "one.json"
    file.write_text(json.dumps({"traceEvents": [event]}))
    page.goto("/trace?gpu=H200")
    page.set_input_files("#trace-file", file)
    page.get_by_text("No kernel of this trace").wait_for()
    assert "my_kernel" in page.locator("section[aria-label='Not recognised']").inner_text()


MODELLED = TRACES / "trace-Qwen3-30B-A3B-tp1-4layers-eager-prefill.json.gz"


@needs_traces
def test_flame_view_is_the_time_of_the_trace_and_opens_parts(page: Any, api: Any) -> None:
    page.goto("/trace?gpu=H200&model=Qwen3-30B-A3B")
    page.set_input_files("#trace-file", MODELLED)
    flame = page.locator("section[aria-label='Flame view']")
    flame.wait_for()
    page.get_by_role("button", name="Copy Flame view as JSON").click()
    page.get_by_role("status").get_by_text("Copied").wait_for()
    rows = page.evaluate("navigator.clipboard.readText().then(JSON.parse)")
    whole = sum(row["measured_us"] for row in rows)
    layers: dict[str, float] = {}
    for row in rows:
        layers[row["path"][1]] = layers.get(row["path"][1], 0.0) + row["measured_us"]
    for name, us in layers.items():
        part = flame.get_by_role("button", name=f"{name}:").first
        box = part.locator("rect").bounding_box()
        width = flame.locator("svg.chart").bounding_box()["width"]
        assert box["width"] == pytest.approx(width * us / whole, abs=2.0)
    first = max(layers, key=lambda name: layers[name])
    flame.get_by_role("button", name=f"{first}:").first.focus()
    page.keyboard.press("Enter")
    assert flame.locator("nav button").all_inner_texts()[-1] == first
    assert flame.locator(".flame-part rect").first.bounding_box()["width"] == pytest.approx(width, abs=5.0)  # its ring
    flame.locator("nav button").first.click()
    assert flame.locator("nav button").count() == 1


@needs_traces
def test_the_wall_clock_and_its_remedy_come_first(page: Any) -> None:
    page.goto("/trace")
    page.set_input_files("#trace-file", TRACES / "trace-Qwen3-30B-A3B-tp1-4layers-eager-decode.json.gz")
    first = page.locator(".results section.card").first
    first.get_by_role("heading", name="Wall clock").wait_for()
    told = first.inner_text()
    assert "GPU idle 89.5%: host-bound launches" in told and "Capture CUDA graphs" in told


@needs_traces
def test_headline_counts_only_what_rests_on_no_assumption(page: Any) -> None:
    """What is assumed or stands in for another kernel is shown apart, and its notes are on the page."""
    page.goto("/trace?gpu=H200&model=Llama-3.1-8B")
    page.set_input_files("#trace-file", TRACES / "trace-Llama-3.1-8B-tp1-graph-decode.json.gz")
    page.get_by_role("heading", name="Totals").wait_for()
    page.get_by_role("button", name="Copy Totals as JSON").click()
    page.get_by_role("status").get_by_text("Copied").wait_for()
    totals = page.evaluate("navigator.clipboard.readText().then(JSON.parse)")
    cards = page.locator("section[aria-label='Recoverable time, call by call'] tbody tr").count()
    assert cards > 0 and totals["recoverable_us"] > 0
    shown = page.locator(".totals .big").inner_text()
    assert f"({100 * totals['recoverable_us'] / totals['gpu_us']:.1f}" in shown
    if totals["assumed_recoverable_us"]:
        assert page.locator("section[aria-label='Resting on an assumption or a stand-in, not counted']").count() == 1
        assert page.locator("section[aria-label='Notes'] li").count() > 0


@pytest.mark.refused
def test_an_error_names_the_pages_own_inputs(page: Any, tmp_path: Path) -> None:
    event = {"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 2, "args": {"device": 0, "stream": 7}}
    file = tmp_path / "one.json"
    file.write_text(json.dumps({"traceEvents": [event]}))
    page.goto("/trace")
    page.set_input_files("#trace-file", file)
    message = page.locator("[data-field=gpu] .field-error")
    message.wait_for()
    assert "“GPU”" in message.inner_text() and "--" not in message.inner_text()


@needs_traces
def test_a_second_trace_is_compared_and_left_out_again(page: Any) -> None:
    page.goto("/trace?gpu=H200")
    page.set_input_files("#trace-file", TRACE)
    page.get_by_role("heading", name="Totals").wait_for()
    page.set_input_files("#trace-second", TRACES / "trace-Llama-3.1-8B-tp1-4layers-eager-decode.json.gz")
    card = page.locator("section[aria-label='B against A']")
    card.wait_for()
    assert "A: trace-Llama-3.1-8B-tp1-4layers-eager-prefill" in card.locator(".note").inner_text()
    assert card.locator("tbody tr").count() == 20
    page.get_by_role("button", name="Without trace-Llama-3.1-8B-tp1-4layers-eager-decode").click()
    card.wait_for(state="detached")

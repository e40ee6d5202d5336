"""The views as a user comes to see them: an address each, and what is on the page once they are drawn."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
TRACE = ROOT / "data" / "measured" / "h200" / "traces" / "trace-Qwen3-30B-A3B-tp1-4layers-eager-prefill.json.gz"
SETTLED = ".results:not(.stale)[aria-busy=false] :is(.card, .empty)"
VIEWS = {
    "plan": "/plan?model=Llama-3.1-8B&gpus=H100,L40S&tp=1,2",
    "serve": "/serve",
    "traffic": "/serve?load=traffic&requests=200",
    "compare": "/compare",
    "kernel": "/kernel",
    "heat": "/kernel?kernel=gemm&case=n:4096;k:4096&field=m&y=n",
    "trace": "/trace?gpu=H200",
    "model": "/model",
}
DRAWN = {"traffic": "[aria-label='Over time']", "heat": "[aria-label^='Heat map']", "trace": "[aria-label='Totals']"}


def show(page: Any, view: str) -> None:
    """Open a view and wait until its answer is drawn; without recorded traces, the trace view before a file."""
    page.goto(VIEWS[view])
    if view == "trace" and TRACE.exists():
        page.set_input_files("#trace-file", TRACE)
    elif view == "trace":
        page.wait_for_selector(".empty")
        return
    page.wait_for_selector(f".card{DRAWN.get(view, '')}")
    page.wait_for_selector(SETTLED)
    page.wait_for_timeout(250)  # lists of GPUs and models, and cards with questions of their own


TIME = re.compile(r"([\d.]+)\u202f(s|ms|µs)")


def shown_ms(text: str) -> float:
    """The first time in a text of the page, in milliseconds."""
    found = TIME.search(text)
    assert found, text
    return float(found[1]) * {"s": 1e3, "ms": 1.0, "µs": 1e-3}[found[2]]


def tile(page: Any, name: str) -> str:
    """The large figure of a card."""
    text: str = page.locator(f"section[aria-label='{name}'] .big").inner_text()
    return text

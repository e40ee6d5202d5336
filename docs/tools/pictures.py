"""Pictures of the page: `python -m docs.tools.pictures` opens each view in headless Chromium, saves what it shows."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from docs.tools.browser import BROWSERS, browser_path, flags, served
from docs.tools.session import ROOT

OUT = ROOT / "docs" / "img"
TRACE = ROOT / "data" / "measured" / "h200" / "traces" / "trace-Qwen3-30B-A3B-tp1-4layers-eager-prefill.json.gz"


@dataclass(frozen=True, slots=True)
class Picture:
    """A view as asked by its URL; the picture is taken once `drawn` is on the page."""

    view: str
    query: str
    drawn: str
    height: int
    scheme: Literal["light", "dark"] = "light"
    file: Path | None = None
    name: str = ""  # of the picture, where it is not the view's


PICTURES = (
    Picture("kernel", "kernel=gemm&case=n:4096;k:4096&field=m&from=16&to=4096&points=300&gpus=H200,L40S,B200",
            ".results:not(.stale)[aria-busy=false] .latency-line[d]", 930),
    Picture("plan", "model=Llama-3.1-70B&gpus=H100,H200,B200,L40S&input_len=2048&output_len=256"
            "&ttft_ms=2000&tpot_ms=40&max_gpus=8", ".front-point", 1000),
    Picture("serve", "model=Llama-3.1-8B&gpu=H200&batch=64&input_len=2048&output_len=256&dram_gbps=6000",
            "section[aria-label='TPOT'] .big", 1010, "dark"),
    Picture("serve", "load=traffic&model=Llama-3.1-8B&gpu=H200&input_len=2048&output_len=256&rate=8&requests=600"
            "&max_num_seqs=24", "section[aria-label='Over time'] .wave-line[d]", 1500, name="traffic"),
    Picture("compare", "a_gpu=H200&b_gpu=H100&batch=32", "section[aria-label='Side by side'] tbody", 1000),
    Picture("kernel", "kernel=gemm&case=n:4096;k:4096&field=m&from=1&to=4096&points=32&gpus=H200,B200&y=n&y_points=32",
            "section[aria-label^='Heat map'] .heat-cell", 640, name="heat"),
    Picture("trace", "gpu=H200", "section[aria-label='Recoverable time, call by call'] tbody", 930, file=TRACE),
)  # fmt: skip


def main() -> int:
    """Take all pictures; 1 where no browser is."""
    path = browser_path()
    if path is None:
        print(f"none of {', '.join(BROWSERS)} is on PATH", file=sys.stderr)
        return 1
    playwright = import_module("playwright.sync_api")  # of the extra `web-test`
    with served() as site, playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=flags())
        for picture in PICTURES:
            context = browser.new_context(
                base_url=site, color_scheme=picture.scheme, viewport={"width": 1400, "height": picture.height}
            )
            _take(context.new_page(), picture)
            context.close()
        browser.close()
    return 0


def _take(page: Any, picture: Picture) -> None:
    page.goto(f"/{picture.view}?{picture.query}")
    if picture.file:
        page.set_input_files("#trace-file", picture.file)
    page.wait_for_selector(picture.drawn)
    page.wait_for_timeout(500)  # transitions
    file = OUT / f"web-{picture.name or picture.view}.png"
    page.screenshot(path=file)
    print(f"wrote {file.relative_to(ROOT)}")


if __name__ == "__main__":
    sys.exit(main())

"""`python -m lab.copy_pages` on a GPU: PyTorch's copy of one buffer out of pages that hold several, ns a page.

A page is 128 keys of 128 16-bit values; the pool holds `BUFFERS` of them side by side, as TensorRT-LLM's cache manager
lays out buffers of one size. Beside it the copy of a view that is in one piece.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

PAGES = (6, 64, 512, 4096, 16384, 65536)
BUFFERS, KEYS, WIDTH = 3, 128, 128
CALLS, REPEATS = 4, 20


def main() -> int:
    """Run the command; the exit status."""
    import torch

    print(torch.__version__, torch.cuda.get_device_name(0))
    print("| pages | out of several, ns a page | in one piece |\n| --- | --- | --- |")
    for pages in PAGES:
        pool = torch.empty(pages, BUFFERS, KEYS, 1, WIDTH, dtype=torch.bfloat16, device="cuda")
        view, whole = pool[:, -1].permute(0, 2, 1, 3), pool[:, -1].contiguous()
        took = [_seconds(torch, copy) * 1e9 / pages for copy in (view.contiguous, whole.clone)]
        print(f"| {pages} | {took[0]:.1f} | {took[1]:.1f} |", flush=True)
    return 0


def _seconds(torch: Any, copy: Callable[[], object]) -> float:
    """The quickest of some replays of a graph that holds a few copies, s a copy."""
    copy()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            copy()
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    took: list[float] = []
    for _ in range(REPEATS):
        before.record()
        graph.replay()
        after.record()
        torch.cuda.synchronize()
        took.append(before.elapsed_time(after) * 1e-3 / CALLS)
    return min(took)


if __name__ == "__main__":
    sys.exit(main())

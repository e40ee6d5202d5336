"""Products in 32-bit floats as routers of experts make them: `python -m lab.float_products --write` on a card.

Kernel times by CUPTI, the L2 flushed before each call, with the products in 16 bits beside them. Without `--write` the
law of `kernels/streaming/elementwise.py` is held against what was measured, and its constants are fitted anew, each
matrix scored by those fitted on the others.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

RESULTS = Path(__file__).parents[1] / "studies" / "results" / "float_products.json"
ROWS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048, 4096, 8192, 16384)
# Experts × hidden of MiniMax-M2.5, GLM-4.5-Air, DeepSeek-V3, GLM-4.5, and others between and beyond them.
MATRICES = ((256, 3072), (128, 4096), (256, 7168), (160, 5120), (128, 2048), (64, 4096), (512, 6144))
CALLS, FLUSHED = 7, 256 << 20


def kernel_us(torch: Any, call: Callable[[], Any]) -> float:
    """Median µs of the kernels of a call."""
    buffer = torch.empty(FLUSHED, dtype=torch.int8, device="cuda")
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(CALLS):
            buffer.zero_()
            call()
        torch.cuda.synchronize()
    events = [event for event in profile.events() if event.device_type.name == "CUDA"]
    calls: list[float] = []
    for event in sorted(events, key=lambda one: one.time_range.start):
        if "fill" in event.name.lower() or "memset" in event.name.lower():
            calls.append(0.0)
        else:
            calls[-1] += event.time_range.elapsed_us()
    return float(np.median(calls))


def measured() -> dict[str, Any]:
    """Every product on this card."""
    import torch

    torch.manual_seed(0)
    rows = []
    for n, k in MATRICES:
        for m in ROWS:
            x, w = (torch.randn(size, k, device="cuda") for size in (m, n))
            pairs = ((x, w), (x.bfloat16(), w.bfloat16()))
            us = [kernel_us(torch, partial(torch.nn.functional.linear, *pair)) for pair in pairs]
            rows.append([m, n, k, *(round(one, 2) for one in us)])
            print(*rows[-1], flush=True)
    return {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "columns": "m n k fp32_us bf16_us",
            "rows": rows}  # fmt: skip


def score(found: dict[str, Any]) -> None:
    """Print how far the law is off, and its constants fitted anew."""
    from scipy.optimize import minimize

    from pipewave.gpus import find
    from pipewave.kernels.streaming.elementwise import FMA_SHARE, MORE_ROWS, TWO_KERNELS_S

    gpu = find(found["gpu"])
    peak = 2.0 * gpu.fma_per_clk_per_sm * gpu.sms * gpu.sustained_clock_mhz  # FLOP a us
    m, n, k, us, _ = np.array([row for row in found["rows"] if row[0] > 1], float).T

    def off(constants: Any, kept: Any) -> Any:
        start_us, more, share = constants
        return np.abs((start_us + 2.0 * (m + more) * n * k / (share * peak))[kept] / us[kept] - 1.0)

    now = (1e6 * TWO_KERNELS_S, MORE_ROWS, FMA_SHARE)
    every = np.ones(len(m), bool)
    errors = []
    for matrix in MATRICES:
        one = (n == matrix[0]) & (k == matrix[1])
        fitted = minimize(lambda x, kept=~one: off(x, kept).mean(), now, method="Nelder-Mead").x
        errors.append(off(fitted, one).mean())
    print(f"off by {100 * off(now, every).mean():.1f} %; {100 * np.mean(errors):.1f} where each matrix is left out")
    fitted = minimize(lambda x: off(x, every).mean(), now, method="Nelder-Mead").x
    print("us of two kernels, rows more and share of the peak, fitted to all:", *np.round(fitted, 3))


def main() -> None:
    """Measure, or score what was measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="measure on this card first")
    if parser.parse_args().write:
        RESULTS.write_text(json.dumps(measured()) + "\n", "utf-8")
    score(json.loads(RESULTS.read_text("utf-8")))


if __name__ == "__main__":
    main()

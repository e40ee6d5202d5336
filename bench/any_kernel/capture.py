"""CUDA graphs on a card: `python -m bench.any_kernel.capture`. Nothing is measured while one is captured.

A matrix product tuned at first use is captured at a size that was launched but not measured, and at one never launched;
both graphs are replayed on new values and compared with torch.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from bench.any_kernel.baselines import configs_of, keys_of
from bench.any_kernel.listed import subjects
from bench.any_kernel.subjects import Shape, Subject
from pipewave.tune import autotune

MEASURED = ({"m": 512, "n": 4096, "k": 4096}, {"m": 64, "n": 4096, "k": 4096})
LAUNCHED, NEW = {"m": 384, "n": 4096, "k": 2048}, {"m": 192, "n": 2048, "k": 4096}


def captured(subject: Subject, torch: Any) -> dict[str, Any]:
    """What happened; raises if a result is wrong or something was measured under capture."""
    kernel = autotune(configs_of(subject), keys_of(subject), cache=False)(subject.kernel())
    for shape in MEASURED:
        grid, args, kwargs = subject.launch(torch, dict(shape))
        kernel[grid](*args, **kwargs)
    before = kernel.provenance["measured"]
    found = {"new": _replayed(kernel, subject, NEW, torch), "measured_before": before}
    kernel.options = replace(kernel.options, budget_s=0.0)
    grid, args, kwargs = subject.launch(torch, dict(LAUNCHED))
    kernel[grid](*args, **kwargs)
    found |= {"launched": _replayed(kernel, subject, LAUNCHED, torch), "provenance": dict(kernel.provenance)}
    if kernel.provenance["measured"] != before:
        raise RuntimeError(f"measured under capture: {found}")
    return found


def _replayed(kernel: Any, subject: Subject, shape: Shape, torch: Any) -> float:
    """Largest relative error of a replay on new values."""
    grid, args, kwargs = subject.launch(torch, dict(shape))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernel[grid](*args, **kwargs)
    a, b, c = args[:3]
    a.normal_(0, 0.5)
    c.fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()
    wanted = a.float() @ b.float()
    error = float((c.float() - wanted).norm() / wanted.norm())
    if not error < 0.01:
        raise RuntimeError(f"a replay is off by {error} at {shape}")
    return error


def main() -> None:
    """Entry point; see the module's description."""
    import torch

    print(json.dumps(captured(next(one for one in subjects() if one.name == "matmul"), torch)))


if __name__ == "__main__":
    main()

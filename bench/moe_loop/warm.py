"""Compile ahead, in other processes, what a run will launch through Triton's own launcher; its disk cache is shared.

vLLM's kernel compiles anew for each configuration, number of chosen experts and divisibility of its sizes; each is
launched once at the smallest layer of the list that needs it, with one expert's weights standing for all.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.moe_loop import choices
from pipewave.triton_kernels import moe_experts, moe_few, moe_sort
from pipewave.tune import moe
from pipewave.tune.vllm_kernel import binary


def call_vllm(x: Any, w13: Any, w2: Any, weights: Any, chosen: Any, config: dict[str, int]) -> Callable[[], Any]:
    """Return vLLM's fused layer with a configuration."""
    from vllm.model_executor.layers.fused_moe import override_config
    from vllm.model_executor.layers.fused_moe.fused_moe import fused_experts

    def call() -> Any:
        with override_config(config):
            return fused_experts(x, w13, w2, weights, chosen)

    return call


def needed(shapes: Sequence[dict[str, Any]]) -> list[tuple[dict[str, Any], dict[str, int]]]:
    """Return the smallest (shape, configuration) for each binary of vLLM's kernel."""
    least: dict[str, tuple[int, dict[str, Any], dict[str, int]]] = {}
    for shape, ways in zip(shapes, choices.for_vllm(shapes), strict=True):
        for config in ways.values():
            kind = binary(shape["e"], shape["top_k"], shape["m"], config["BLOCK_SIZE_M"])
            key = repr((sorted(config.items()), kind))
            if key not in least or shape["m"] * shape["hidden"] < least[key][0]:
                least[key] = (shape["m"] * shape["hidden"], shape, config)
    return [least[key][1:] for key in sorted(least)]


def operands(shape: dict[str, Any]) -> tuple[Any, ...]:
    """x, w13, w2, weights, chosen of zeros and any routing; little memory."""
    import torch

    m, e, top_k, hidden, inter = (shape[name] for name in choices.SIZES)
    half = {"dtype": torch.bfloat16, "device": "cuda"}
    w13 = torch.zeros(1, 2 * inter, hidden, **half).expand(e, -1, -1)
    w2 = torch.zeros(1, hidden, inter, **half).expand(e, -1, -1)
    chosen = torch.rand(m, e, device="cuda").topk(top_k, 1).indices.int()
    return torch.zeros(m, hidden, **half), w13, w2, torch.ones(m, top_k, device="cuda"), chosen


def own(shapes: Sequence[dict[str, Any]], index: int, count: int) -> None:
    """Launch a share of the layer's kernels that have no configuration space: sort, sum, and the few-token path."""
    import torch

    kinds: dict[object, dict[str, Any]] = {}
    for shape in sorted(shapes, key=lambda shape: shape["m"]):
        pairs = shape["m"] * shape["top_k"]
        kinds.setdefault(("sort", shape["e"].bit_length(), pairs > moe_sort.ALONE), shape)
        kinds.setdefault(("few", shape["top_k"], shape["inter"] >= moe.LONG), shape)
    for what, shape in list(kinds.items())[index::count]:
        x, _, _, weights, chosen = operands(shape)
        (top_k, hidden, inter), half = (shape[name] for name in ("top_k", "hidden", "inter")), x.dtype
        if what[0] == "sort":  # type: ignore[index]  # a tuple
            moe_sort.sort(chosen, shape["e"], 16, 16)
            continue
        part = torch.zeros(shape["m"] * top_k, hidden, dtype=half, device="cuda")
        moe_experts.launch_total(part, x, top_k)
        # Weights of two experts are enough: nothing reads the numbers.
        chosen = chosen % 2
        w13, w2 = (torch.zeros(2, *size, dtype=half, device="cuda") for size in ((2 * inter, hidden), (hidden, inter)))
        first, second = moe.few_configs(inter)
        y = moe_few.launch_few_up(x, w13, part.new_empty(len(part), inter), chosen, first)
        moe_few.launch_few_down(y, w2, torch.empty_like(x), weights, chosen, second)
    torch.cuda.synchronize()


def share(shapes: Sequence[dict[str, Any]], index: int, count: int) -> None:
    """Compile one process's share."""
    import torch

    own(shapes, index, count)
    for shape, config in needed(shapes)[index::count]:
        x, w13, w2, weights, chosen = operands(shape)
        call_vllm(x, w13, w2, weights, chosen, config)()
        del x, w13, w2
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


def start(count: int, log: Path) -> list[subprocess.Popen[bytes]]:
    """Start `count` processes."""
    command = [sys.executable, "-m", "bench.moe_loop.device", "--warm"]
    with log.open("ab") as errors:
        return [subprocess.Popen([*command, f"{i}/{count}"], stdout=subprocess.DEVNULL, stderr=errors)
                for i in range(count)]  # fmt: skip


def wait(started: Sequence[subprocess.Popen[bytes]], seconds: float) -> None:
    """Wait for all; what is not done by then is compiled when it is first launched."""
    end = time.monotonic() + seconds
    for process in started:
        try:
            process.wait(max(0.1, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.terminate()

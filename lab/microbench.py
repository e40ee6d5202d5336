"""Two minutes that fill the measured fields of a GPU's spec: `python -m lab.microbench --out FILE`.

DRAM and L2 bandwidth, sustained tensor rate a dtype, launch floor, and the SM clock that the GPU holds under load.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pipewave.measure.device import CudaDevice, Nvml, reason_of
from pipewave.measure.protocol import brackets, exported_trace, parse_trace, recoverable

GIB = 1 << 30
SIDE = 8192


def gpus() -> int:
    """CUDA GPUs that torch sees; 0 without torch."""
    try:
        import torch
    except ImportError:
        return 0
    return int(torch.cuda.device_count()) if torch.cuda.is_available() else 0


def seconds_each(call: Callable[[], object], inner: int, samples: int = 7) -> float:
    """Median time of one call, from events around `inner` of them; two such rounds are thrown away first."""
    import torch

    times: list[float] = []
    for _ in range(samples + 2):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(inner):
            call()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e-3 / inner)
    return statistics.median(times[2:])


def dram() -> dict[str, float]:
    """GB/s of a 4 GiB copy (read + written), of writing and of reading."""
    import torch

    source = torch.empty(GIB, dtype=torch.float32, device="cuda").normal_()
    target, total = torch.empty_like(source), torch.empty((), device="cuda")
    size = source.numel() * 4
    return {
        "dram_copy_gbps": 2 * size / seconds_each(lambda: target.copy_(source), 5) / 1e9,
        "dram_write_gbps": size / seconds_each(target.zero_, 5) / 1e9,
        "dram_read_gbps": size / seconds_each(lambda: torch.sum(source, dim=0, out=total), 5) / 1e9,
    }


def l2() -> dict[str, float]:
    """GB/s of copies (read + written) whose source and target stay in L2, replayed from a graph to hide launches."""
    import torch

    best = 0.0
    for mebibytes in (4, 8, 12, 16):
        source = torch.empty(mebibytes << 18, dtype=torch.float32, device="cuda").normal_()
        target = torch.empty_like(source)
        target.copy_(source)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(200):
                target.copy_(source)
        best = max(best, 200 * 2 * source.numel() * 4 / seconds_each(graph.replay, 1) / 1e9)
    return {"l2_copy_gbps": best}


def tensor(dtype: str, seconds: float) -> dict[str, float | None]:
    """TFLOP/s of an 8192-cubed product, in a short burst and over `seconds` of load; and clock and power under it."""
    import torch

    call = product(dtype)
    call()
    torch.cuda.synchronize()
    time.sleep(1.0)
    flops = 2.0 * SIDE**3
    burst = flops / seconds_each(call, 3, 3) / 1e12
    rates, clocks, powers, nvml, deadline = [], [], [], Nvml(), time.monotonic() + seconds
    while time.monotonic() < deadline:
        rates.append(flops / seconds_each(call, 20, 1) / 1e12)
        for _ in range(40):
            call()
        health = nvml.health()
        torch.cuda.synchronize()
        clocks.append(health.sm_clock_mhz or 0)
        powers.append(health.power_w or 0.0)
    steady = slice(len(rates) // 2, None)
    return {
        f"{dtype}_burst_tflops": burst,
        f"{dtype}_sustained_tflops": statistics.median(rates[steady]),
        f"{dtype}_sustained_clock_mhz": statistics.median(clocks[steady]),
        f"{dtype}_power_w": statistics.median(powers[steady]),
    }


def product(dtype: str) -> Callable[[], object]:
    """A square matrix product on random data in `bf16`, `fp16`, `tf32` or `fp8`."""
    import torch

    a, b = (torch.randn(SIDE, SIDE, device="cuda") for _ in range(2))
    if dtype == "fp8":
        x, w = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn).t()
        one = torch.ones((), device="cuda")
        return lambda: torch._scaled_mm(x, w, one, one, out_dtype=torch.bfloat16, use_fast_accum=True)
    if dtype == "tf32":
        torch.backends.cuda.matmul.allow_tf32 = True
        return lambda: a @ b
    narrow = {"bf16": torch.bfloat16, "fp16": torch.float16}[dtype]
    left, right = a.to(narrow), b.to(narrow)
    return lambda: left @ right


def launch() -> dict[str, float]:
    """Microseconds: a kernel that does nothing, by CUPTI; the same a node in a graph; and a spin, for the SM clock."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    short, long = 10_000, 400_000
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(500):
            torch.cuda._sleep(0)
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for clocks in (0, short, long) * 20:
            torch.cuda._sleep(clocks)
            torch.cuda._sleep(clocks)
        torch.cuda.synchronize()
    pairs = brackets(parse_trace(exported_trace(profiler)))
    empty, first, second = (statistics.median(pair.close_spin_us for pair in pairs[i::3]) for i in range(3))
    clock_mhz = (long - short) / (second - first)
    return {
        "empty_kernel_us": empty,
        "graph_node_us": seconds_each(graph.replay, 1) / 500 * 1e6,
        "spin_overhead_us": first - short / clock_mhz,
        "unloaded_clock_mhz": clock_mhz,
    }


def run(seconds: float) -> dict[str, Any]:
    """Every figure, or the reason why there is none."""
    parts: list[tuple[str, Callable[[], dict[str, Any]]]] = [("launch", launch), ("dram", dram), ("l2", l2)]
    parts += [(dtype, lambda dtype=dtype: tensor(dtype, seconds)) for dtype in ("bf16", "fp16", "fp8", "tf32")]  # type: ignore[misc]
    found: dict[str, Any] = {"environment": CudaDevice.describe(Nvml())}
    for name, part in parts:
        try:
            found |= part()
        except recoverable() as error:
            found[f"{name}_error"] = reason_of(error)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Write the figures as JSON; status 2 where there is no GPU."""
    parser = argparse.ArgumentParser(prog="python -m lab.microbench")
    parser.add_argument("--out", required=True)
    parser.add_argument("--seconds", type=float, default=10.0, help="load for each dtype")
    options = parser.parse_args(argv)
    if not gpus():
        sys.stderr.write("no GPU to measure: torch sees none; pip install 'pipewave[gpu]' on a machine with one\n")
        return 2
    text = json.dumps(run(options.seconds), indent=1)
    Path(options.out).write_text(text + "\n")
    sys.stderr.write(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

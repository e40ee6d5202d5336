"""Watts, joules and clocks of one kernel at a time, by the board's counter: `python -m lab.board_energy --out FILE`.

Each call runs back to back from a CUDA graph: 1 s until it is steady, then 1.5 s that count. The same rows say how far
a card and a day differ: time of the first 30 ms after a rest (`burst_us`) beside the steady time. `--products` runs
those of served models instead, 0.7 and 1 s each. Needs torch and an NVIDIA GPU; NVML is asked through ctypes. Nothing
of the card is changed.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import time
from pathlib import Path
from typing import Any

from lab.energy_subjects import Launch, Subject, attention, gemm, products, subjects

SETTLE_S, COUNT_S, REST_S, BURST_S = 1.0, 1.5, 0.4, 0.03
PRODUCTS_S = 0.7, 1.0  # to settle and to count, of each of many


class Board:
    """What NVML says of the first GPU."""

    CLOCK_SM, CLOCK_MEM = 1, 2

    def __init__(self) -> None:
        self._nvml = ctypes.CDLL("libnvidia-ml.so.1")
        self._nvml.nvmlInit_v2()
        self._handle = ctypes.c_void_p()
        self._ask("nvmlDeviceGetHandleByIndex_v2", 0, ctypes.byref(self._handle), handle=False)

    def _ask(self, name: str, *args: Any, handle: bool = True) -> None:
        status = getattr(self._nvml, name)(*((self._handle,) if handle else ()), *args)
        if status:
            raise OSError(f"{name}: NVML status {status}")

    def _number(self, name: str, *args: Any, kind: Any = ctypes.c_uint) -> int:
        value = kind()
        self._ask(name, *args, ctypes.byref(value))
        return int(value.value)

    def joules(self) -> float:
        """Since the driver was loaded; whole board."""
        return self._number("nvmlDeviceGetTotalEnergyConsumption", kind=ctypes.c_ulonglong) / 1e3

    def state(self) -> dict[str, float]:
        """Clocks, power (a mean over the last second), temperature and why clocks are held back."""
        return {
            "sm_mhz": self._number("nvmlDeviceGetClockInfo", self.CLOCK_SM),
            "mem_mhz": self._number("nvmlDeviceGetClockInfo", self.CLOCK_MEM),
            "power_w": self._number("nvmlDeviceGetPowerUsage") / 1e3,
            "temp_c": self._number("nvmlDeviceGetTemperature", 0),
            "reasons": self._number("nvmlDeviceGetCurrentClocksThrottleReasons", kind=ctypes.c_ulonglong),
        }

    def card(self) -> dict[str, Any]:
        """Name, power limit and a short hash that tells cards of one model apart."""
        text = ctypes.create_string_buffer(96)
        self._ask("nvmlDeviceGetUUID", text, 96)
        tag = hashlib.sha256(text.value).hexdigest()[:8]
        self._ask("nvmlDeviceGetName", text, 96)
        name = text.value.decode()
        limit = self._number("nvmlDeviceGetEnforcedPowerLimit") / 1e3
        return {"gpu": name, "card": tag, "power_limit_w": limit}


def captured(launch: Launch, least_s: float = 0.004) -> tuple[Any, int]:
    """A CUDA graph of as many launches as fill `least_s`, and their number."""
    import torch

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            launch()
    torch.cuda.synchronize()
    began = time.perf_counter()
    launch()
    torch.cuda.synchronize()
    number = max(1, min(500, int(least_s / max(time.perf_counter() - began, 2e-6))))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(number):
            launch()
    return graph, number


def tick(graph: Any, board: Board, each_s: float) -> tuple[float, float]:
    """Seconds and joules at the moment at which the counter moves (ten times a second). The GPU stays busy meanwhile:
    replays are queued first, since the counter is slow to read and a launch would wait for it.
    """
    for _ in range(max(4, int(0.25 / each_s))):
        graph.replay()
    first = board.joules()
    while (now := board.joules()) == first:
        pass
    return time.perf_counter(), now


def replayed(graph: Any, seconds: float, board: Board | None = None) -> tuple[int, float, list[dict[str, float]]]:
    """Replays for so long, two always queued: their number, seconds, and the board's states."""
    import torch

    events = [torch.cuda.Event() for _ in range(2)]
    states, count, began = [], 0, time.perf_counter()
    next_state = began + 0.1
    while time.perf_counter() - began < seconds:
        event = events[count % 2]
        if count >= 2:
            event.synchronize()
        graph.replay()
        event.record()
        count += 1
        if board and time.perf_counter() > next_state:
            states.append(board.state())
            next_state += 0.1
    torch.cuda.synchronize()
    return count, time.perf_counter() - began, states


def median(values: list[float]) -> float:
    """The middle one; 0 of none."""
    return sorted(values)[len(values) // 2] if values else 0.0


def row(subject: Subject, board: Board, settle_s: float = SETTLE_S, count_s: float = COUNT_S) -> dict[str, Any]:
    """One call measured."""
    import torch

    graph, number = captured(subject.launch)
    calls = number * subject.copies
    time.sleep(REST_S)
    replays, seconds, _ = replayed(graph, BURST_S)
    burst = seconds / replays / calls
    replayed(graph, settle_s)
    replay_s = burst * calls
    begin, before = tick(graph, board, replay_s)
    replays, seconds, states = replayed(graph, count_s, board)
    end, after = tick(graph, board, replay_s)
    torch.cuda.synchronize()
    replays, seconds, _ = replayed(graph, 0.3)
    each, watts = seconds / replays / calls, (after - before) / (end - begin)
    return {
        "case": subject.case, "data": subject.data, "copies": subject.copies,
        "burst_us": round(1e6 * burst, 3), "latency_us": round(1e6 * each, 3),
        "power_w": round(watts, 1), "joules_per_call": watts * each,
        **{name: median([s[name] for s in states]) for name in ("sm_mhz", "mem_mhz", "temp_c", "reasons")},
    }  # fmt: skip


def duty(board: Board, busy_s: float, idle_s: float) -> dict[str, Any]:
    """Products with rests between them: what a gap draws."""
    subject = gemm(4096, 4096, 4096)
    graph, _ = captured(subject.launch, busy_s)
    count, begin, before = 0, 0.0, 0.0
    start = time.perf_counter()
    import torch

    while time.perf_counter() - start < SETTLE_S + 3.0:
        if not begin and time.perf_counter() - start > SETTLE_S:
            begin, before = time.perf_counter(), board.joules()
        graph.replay()
        torch.cuda.synchronize()
        time.sleep(idle_s)
        count += bool(begin)
    elapsed, spent = time.perf_counter() - begin, board.joules() - before
    replays, seconds, _ = replayed(graph, 0.2)
    share = count * seconds / replays / elapsed
    return {"busy_s": busy_s, "idle_s": idle_s, "busy_share": round(share, 4), "power_w": round(spent / elapsed, 1)}


def series(board: Board, launch: Launch | None, seconds: float, step_s: float = 0.05) -> list[dict[str, float]]:
    """Time of a call, clocks and joules each `step_s`, from a rested card; without a call, of an idle one."""
    graph, number = captured(launch) if launch else (None, 1)
    if launch:
        time.sleep(4.0)
    began, found = time.perf_counter(), []
    while time.perf_counter() - began < seconds:
        first, at = board.joules(), time.perf_counter()
        if graph:
            replays, elapsed, _ = replayed(graph, step_s)
            each = 1e6 * elapsed / replays / number
        else:
            time.sleep(step_s)
            each = 0.0
        spent = time.perf_counter() - at
        found.append({"s": round(at - began, 3), "us": round(each, 2), "joules": round(board.joules() - first, 3),
                      "over_s": round(spent, 4), **board.state()})  # fmt: skip
    return found


def main() -> None:
    """Measure all of it; a call that this torch cannot run says why in its row."""
    import torch

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--limit", type=int, default=10_000, help="only the first calls")
    parser.add_argument("--products", action="store_true", help="products and experts of served models alone")
    options = parser.parse_args()
    board = Board()
    found: dict[str, Any] = {"date": time.strftime("%Y-%m-%d"), **board.card(), "torch": torch.__version__}
    found["idle"] = series(board, None, 3.0, 0.5)
    torch.zeros(1, device="cuda")
    found["idle_with_context"] = series(board, None, 3.0, 0.5)
    found["rows"] = []
    times = PRODUCTS_S if options.products else (SETTLE_S, COUNT_S)
    for make in list(products() if options.products else subjects())[: options.limit]:
        try:
            found["rows"].append(row(make(), board, *times))
        except (RuntimeError, AttributeError, TypeError) as problem:
            found["rows"].append({"error": f"{type(problem).__name__}: {str(problem)[:200]}"})
        torch.cuda.empty_cache()
        options.out.write_text(json.dumps(found))
    if options.products:
        return
    found["duty"] = [duty(board, *each) for each in ((0.01, 0.01), (0.005, 0.02), (0.002, 0.05))]
    long = attention(1, 16384, 16384, 32, 8)
    found["series"] = {
        "gemm_bf16": series(board, gemm(8192, 8192, 8192).launch, 8.0),
        "gemm_fp8": series(board, gemm(8192, 8192, 8192, "fp8").launch, 6.0),
        "prefill": series(board, long.launch, 6.0),
        "after_load": series(board, None, 20.0, 0.5),
    }
    options.out.write_text(json.dumps(found))


if __name__ == "__main__":
    main()

"""The measurement protocols: calls on a CUDA device between two spins, and latencies read off the profiler's trace.

Every timed call runs between two spin kernels on one stream. Sorted by start, what lies between the spins of a pair
belongs to that call; its latency is the sum of the durations. The flush runs before the opening spin, so it is
outside every bracket. Reading a trace needs no GPU.
"""

from __future__ import annotations

import functools
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pipewave.errors import BadInput

SPIN = "spin_kernel"
DEVICE_CATEGORIES = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})


@dataclass(frozen=True, slots=True)
class Event:
    """One activity on the device, times in microseconds; grid and block are empty for copies."""

    name: str
    start_us: float
    duration_us: float
    grid: tuple[int, ...] = ()
    block: tuple[int, ...] = ()
    smem_bytes: int = 0
    registers: int = 0


@dataclass(frozen=True, slots=True)
class Bracket:
    """What ran between one pair of spins, and how long the closing one took."""

    events: tuple[Event, ...]
    close_spin_us: float

    @property
    def latency_us(self) -> float:
        """Sum of the durations, the definition of latency under the `cold` protocol."""
        return sum(event.duration_us for event in self.events)


def parse_trace(text: str | bytes) -> list[Event]:
    """Device events of a Chrome trace written by the PyTorch profiler, sorted by start."""
    events = []
    for item in json.loads(text)["traceEvents"]:
        if item.get("cat") in DEVICE_CATEGORIES:
            args = item.get("args", {})
            grid, block = tuple(args.get("grid", ())), tuple(args.get("block", ()))
            held = (int(args.get("shared memory", 0)), int(args.get("registers per thread", 0)))
            events.append(Event(item["name"], float(item["ts"]), float(item["dur"]), grid, block, *held))
    return sorted(events, key=lambda event: event.start_us)


def brackets(events: Sequence[Event]) -> list[Bracket]:
    """Cut a sorted event list into brackets; spins pair up first with second, third with fourth, and so on. Raises
    ValueError on an odd number of spins: one is missing, and no pairing can be trusted.
    """
    spins = [place for place, event in enumerate(events) if SPIN in event.name]
    if len(spins) % 2:
        raise ValueError(f"odd number of spin kernels: {len(spins)}")
    pairs = zip(spins[::2], spins[1::2], strict=True)
    return [Bracket(tuple(events[first + 1 : last]), events[last].duration_us) for first, last in pairs]


@dataclass(frozen=True, slots=True)
class Timing:
    """Latency statistics over repetitions, in microseconds, and the events of the last one."""

    latency_us: float
    min_us: float
    max_us: float
    n: int
    events: tuple[Event, ...] = ()
    spin_us: float = 0.0
    spin_spread: float = 0.0
    rejected: int = 0


def summarize(runs: Sequence[Bracket], middle: Callable[[Sequence[float]], float] = statistics.median) -> Timing:
    """Median (`middle`), minimum and maximum; `rejected` are repetitions over 1.5 times the median. `spin_spread`, of
    the closing spins, is a change of clock between repetitions: a spin lasts a fixed number of SM clocks.
    """
    if not runs:
        raise ValueError("no repetitions")
    if any(not run.events for run in runs):
        raise ValueError("a repetition launched no kernel")
    times = [run.latency_us for run in runs]
    spins = [run.close_spin_us for run in runs]
    return Timing(
        latency_us=middle(times),
        min_us=min(times),
        max_us=max(times),
        n=len(times),
        events=runs[-1].events,
        spin_us=statistics.median(spins),
        spin_spread=(max(spins) - min(spins)) / max(min(spins), 1e-9),
        rejected=sum(time > 1.5 * statistics.median(times) for time in times),
    )


REPETITIONS = 7
FLUSH_BYTES = 256 << 20
SPIN_CLOCKS = 40_000  # 20 µs at 1.98 GHz: long enough to read the SM clock from its duration
WARM_UPS, WARM_CALLS = 5, 10
GRAPH_SAMPLES = 5
GRAPH_FILL_US = 400.0
BURST = 12  # calls timed back to back: after some 20 ms of tensor load, power management lowers the clock
REST_S, REST_PER_BUSY = 0.04, 2.0

Call = Callable[[], object]
Attempt = list[Bracket] | Exception


class DeviceLostError(Exception):
    """The CUDA context is broken: nothing more can be measured in this process."""


@functools.cache
def recoverable() -> tuple[type[Exception], ...]:
    """What a case may raise without ending the run: missing libraries, wrong shapes, no memory, no compilation."""
    known: tuple[type[Exception], ...] = (RuntimeError, ImportError, ValueError, TypeError, AssertionError,
                                          AttributeError, KeyError, IndexError, OSError, BadInput)  # fmt: skip
    try:
        from triton.compiler.errors import CompilationError
        from triton.runtime.errors import OutOfResources, PTXASError
    except ImportError:
        return known
    return (*known, CompilationError, OutOfResources, PTXASError)


def is_fatal(error: BaseException) -> bool:
    """True when an error leaves the CUDA context unusable (illegal address, launch failure), unlike out of memory."""
    text = str(error).lower()
    sticky = ("illegal", "launch failure", "misaligned", "device-side assert", "unspecified", "hardware", "ecc error")
    return any(word in text for word in sticky) and ("cuda" in text or "device" in text)


class Flusher:
    """Empties L2 by overwriting (or reading) a buffer several times its size."""

    def __init__(self) -> None:
        import torch

        self._buffer = torch.empty(FLUSH_BYTES // 4, dtype=torch.float32, device="cuda").normal_()
        self._sum = torch.empty((), device="cuda")

    def call(self, how: str) -> Call:
        """`write`: zero_(), as the `cold` protocol says; `read`: leaves clean lines behind."""
        import torch

        if how == "read":
            return lambda: torch.sum(self._buffer, dim=0, out=self._sum)
        return lambda: self._buffer.zero_()


class Pace:
    """Idles the GPU before every `burst` calls, twice as long as the last burst took; 0 lets it run through."""

    def __init__(self, burst: int, wait: Callable[[], object]) -> None:
        """`wait` returns when everything queued has run."""
        self._burst, self._wait = burst, wait
        self._since = time.monotonic()

    def before(self, index: int) -> None:
        """Rest when call `index` opens a burst."""
        if self._burst and index % self._burst == 0:
            self._wait()
            time.sleep(max(REST_S, REST_PER_BUSY * (time.monotonic() - self._since)))
            self._since = time.monotonic()


def bracketed(
    calls: Sequence[Call], flush: Call | None, repetitions: int, on_queued: Call, burst: int = 0
) -> list[Attempt]:
    """Run every call `repetitions` times between spins in one profiler context; brackets or the error of each call."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    attempted: list[int] = []
    errors: dict[int, Exception] = {}
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        pace = Pace(burst, torch.cuda.synchronize)
        for index, call in enumerate(calls):
            pace.before(index)
            for _ in range(repetitions):
                if flush is not None:
                    flush()
                attempted.append(index)
                torch.cuda._sleep(SPIN_CLOCKS)
                try:
                    call()
                except recoverable() as error:
                    errors[index] = error
                torch.cuda._sleep(SPIN_CLOCKS)
                if index in errors:
                    break
        on_queued()
        torch.cuda.synchronize()
    found = brackets(parse_trace(exported_trace(profiler)))
    if len(found) != len(attempted):
        raise RuntimeError(f"the profiler returned {len(found)} of {len(attempted)} brackets")
    runs: list[list[Bracket]] = [[] for _ in calls]
    for index, bracket in zip(attempted, found, strict=True):
        runs[index].append(bracket)
    return [errors.get(index, run) for index, run in enumerate(runs)]


def exported_trace(profiler: Any) -> bytes:
    """The Chrome trace of a finished profile, by way of memory where the system has a memory file system."""
    folder = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        path = os.path.join(scratch, "trace.json")
        profiler.export_chrome_trace(path)
        with open(path, "rb") as file:
            return file.read()


def graph_replays(call: Call, rough_us: float) -> Timing:
    """Mean per call over back-to-back replays of a graph of several calls; median of a few such samples."""
    import torch

    inner = max(1, min(20, round(GRAPH_FILL_US / rough_us)))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(inner):
            call()
    replays = max(3, min(20, round(4 * GRAPH_FILL_US / (inner * rough_us))))
    samples = []
    for _ in range(GRAPH_SAMPLES + 1):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(replays):
            graph.replay()
        end.record()
        end.synchronize()
        samples.append(start.elapsed_time(end) * 1e3 / (inner * replays))
    kept = samples[1:]
    return Timing(statistics.median(kept), min(kept), max(kept), len(kept))

"""The measurement protocols on a CUDA device. Everything here needs torch and a GPU; the arithmetic is in brackets."""

from __future__ import annotations

import functools
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

from pipewave.errors import BadInput
from pipewave.measure.brackets import Bracket, Timing, brackets, parse_trace, summarize

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


def mean_of(runs: Sequence[Bracket]) -> Timing:
    """As `summarize`, but the latency is the mean: the definition under `profiler_warm`."""
    summary = summarize(runs)
    mean = statistics.fmean(run.latency_us for run in runs)
    return Timing(mean, summary.min_us, summary.max_us, summary.n, summary.events, summary.spin_us,
                  summary.spin_spread, summary.rejected)  # fmt: skip


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

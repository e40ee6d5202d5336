"""The current GPU as a device to tune kernels on, and its timer. Needs torch and triton.

The protocol is `cold`: a 256 MB buffer is zeroed before each call. Events around one launch add a constant, the gap
between a kernel and its neighbours.

Launches that have a long queue behind them are timed up to a microsecond longer, and less evenly, than the last ones of
a queue, on an H100 and an H200 alike and however the host keeps up. A timer of short launches queues few at once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import Any

from pipewave.tune.law.anchors import peaks_of
from pipewave.tune.user_kernels.device import Built, Launch, this_machine

Call = Callable[[], Any]
FLUSH_MB = 256
POOL = 2048  # events in flight; the launch queue is about as long
FEW = 4  # launches queued at once where each counts as the last ones do
LEAD = 8  # flushes before the first call: a host that is late for a moment does not lengthen a launch then
FEW_LEAD = 6  # where few are queued: a shorter one lets a busy host lengthen them


def current() -> Gpu | None:
    """The GPU in use; None where there is none, or where kernels run in Triton's interpreter."""
    if os.environ.get("TRITON_INTERPRET", "0") not in ("", "0"):
        return None
    try:
        import torch
    except ImportError:
        return None
    return _gpu(torch.cuda.current_device()) if torch.cuda.is_available() else None


@cache
def _gpu(_device: int) -> Gpu:
    """One timer with its buffer serves all kernels on a device."""
    return Gpu()


@contextmanager
def compiling_in_threads() -> Iterator[bool]:
    """What is compiled within is compiled in threads, and is there at the end; yields whether this Triton can."""
    try:
        from triton.runtime._async_compile import AsyncCompileMode
    except ImportError:
        yield False
        return
    with ThreadPoolExecutor(max(2, (os.cpu_count() or 2) - 1)) as pool, AsyncCompileMode(pool, ignore_errors=True):
        yield True


class Gpu:
    """Compiles in threads and times with a cold L2."""

    def __init__(self) -> None:
        import torch

        torch.cuda.init()
        self.env: Mapping[str, Any] = this_machine()
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        self.peaks = peaks_of(properties.name, properties.multi_processor_count)
        self._timer: ColdTimer | None = None

    def idle(self) -> bool:
        """Whether measuring is allowed now."""
        import torch

        return not torch.cuda.is_current_stream_capturing()

    def build(self, launch: Launch, configs: Sequence[int]) -> dict[int, Built]:
        """Compile configurations."""
        with compiling_in_threads() as ahead:
            for index in configs if ahead else ():
                built(launch, index)
        return {index: built(launch, index) for index in configs}

    def time(self, launch: Launch, order: Sequence[int]) -> list[float]:
        """µs of one launch of each configuration, each after a flush of the L2."""
        if self._timer is None:
            self._timer = ColdTimer(queued=FEW)
        return self._timer([_Prepared(launch, index) for index in order])


def built(launch: Launch, index: int) -> Built:
    """Compile a configuration as a launch would."""
    try:
        launch.prepare(index)
        compiled = launch.fn.run(*launch.args, grid=launch.grid, warmup=True, **launch.kwargs, **launch.configs[index])
        if hasattr(compiled, "future") and compiled.kernel is None:
            return Built()
        compiled._init_handles()
        return Built(int(compiled.metadata.shared), int(compiled.n_regs or 32))
    except Exception as problem:  # noqa: BLE001  the compiler raises whatever its passes raise
        return Built(error=f"{type(problem).__name__}: {problem}"[:200])


class _Prepared(list[Call]):
    """The launch of one configuration, for the timer: `before` and `after` run outside its time."""

    def __init__(self, launch: Launch, index: int) -> None:
        kwargs = {**launch.kwargs, **launch.configs[index]}
        super().__init__([lambda: launch.fn.run(*launch.args, grid=launch.grid, warmup=False, **kwargs)])
        self.before, self.after = (lambda: launch.before(index)), (lambda: launch.after(index))


class ColdTimer:
    """Times sequences of launches on the current stream, each after an L2 flush."""

    def __init__(self, queued: int = POOL) -> None:
        import torch

        self._torch = torch
        self.flush = torch.empty(FLUSH_MB << 20, dtype=torch.int8, device="cuda")
        self.events = [tuple(torch.cuda.Event(enable_timing=True) for _ in range(2)) for _ in range(queued)]
        self.lead = LEAD if queued > LEAD else FEW_LEAD

    def __call__(self, calls: Sequence[Sequence[Call]]) -> list[float]:
        """Return the µs of each entry; an entry's launches are timed together. An entry may bring `before` and `after`:
        they run around its launches, outside their time.
        """
        times: list[float] = []
        for start in range(0, len(calls), len(self.events)):
            times += self._batch(calls[start : start + len(self.events)])
        return times

    def _batch(self, calls: Sequence[Sequence[Call]]) -> list[float]:
        for _ in range(self.lead):
            self.flush.zero_()
        for (before, after), launches in zip(self.events, calls, strict=False):
            if hasattr(launches, "before"):
                launches.before()
            self.flush.zero_()
            before.record()
            for launch in launches:
                launch()
            after.record()
            if hasattr(launches, "after"):
                launches.after()
        self._torch.cuda.synchronize()
        return [before.elapsed_time(after) * 1e3 for before, after in self.events[: len(calls)]]

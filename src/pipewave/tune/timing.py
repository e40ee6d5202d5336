"""Time many launches with few host waits: flush L2, event, launch, event; read the events at the end. Needs torch.

The protocol is `cold`: a 256 MB buffer is zeroed before each call. Events around one launch add a constant (the gap
between a kernel and its neighbours), which `empty_us` measures so that it can be subtracted.

Launches that have a long queue behind them are timed up to a microsecond longer, and less evenly, than the last ones of
a queue, on an H100 and an H200 alike and however the host keeps up. A timer of short launches queues few at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

Call = Callable[[], Any]
POOL = 2048  # events in flight; the launch queue is about as long
FEW = 4  # launches queued at once where each counts as the last ones do
LEAD = 8  # flushes before the first call: a host that is late for a moment does not lengthen a launch then
FEW_LEAD = 6  # where few are queued: a shorter one lets a busy host lengthen them


class ColdTimer:
    """Times sequences of launches on the current stream, each after an L2 flush."""

    def __init__(self, flush_mb: int = 256, queued: int = POOL) -> None:
        self.flush = torch.empty(flush_mb << 20, dtype=torch.int8, device="cuda")
        self.events = [(_event(), _event()) for _ in range(queued)]
        self.lead = LEAD if queued > LEAD else FEW_LEAD

    def __call__(self, calls: Sequence[Sequence[Call]]) -> list[float]:
        """Return the µs of each entry; an entry's launches are timed together.

        An entry may bring `before` and `after`: they run around its launches, outside their time.
        """
        times: list[float] = []
        for start in range(0, len(calls), len(self.events)):
            times += self._batch(calls[start : start + len(self.events)])
        return times

    def _batch(self, calls: Sequence[Sequence[Call]]) -> list[float]:
        for _ in range(self.lead):
            self.flush.zero_()
        for (before, after), launches in zip(self.events, calls, strict=False):
            getattr(launches, "before", _nothing)()
            self.flush.zero_()
            before.record()
            for launch in launches:
                launch()
            after.record()
            getattr(launches, "after", _nothing)()
        torch.cuda.synchronize()
        return [before.elapsed_time(after) * 1e3 for before, after in self.events[: len(calls)]]

    def empty_us(self, launch: Call, count: int = 200) -> float:
        """Median µs of a launch that does nothing."""
        return sorted(self([[launch]] * count))[count // 2]


def _nothing() -> None:
    """Run around launches that need nothing."""


def _event() -> Any:
    return torch.cuda.Event(enable_timing=True)

"""From a profiler trace to latencies: pure functions over device events, tested without a GPU.

Every timed call runs between two spin kernels on one stream. Sorted by start, what lies between the spins of a pair
belongs to that call; its latency is the sum of the durations. The flush runs before the opening spin, so it is
outside every bracket.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

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
    """What ran between one pair of spins, and how long those spins took."""

    events: tuple[Event, ...]
    open_spin_us: float
    close_spin_us: float

    @property
    def latency_us(self) -> float:
        """Sum of the durations, the definition of latency under the `cold` protocol."""
        return sum(event.duration_us for event in self.events)


def parse_trace(text: str | bytes) -> list[Event]:
    """Device events of a Chrome trace written by the PyTorch profiler, sorted by start."""
    events = [_event(item) for item in json.loads(text)["traceEvents"] if item.get("cat") in DEVICE_CATEGORIES]
    return sorted(events, key=lambda event: event.start_us)


def _event(item: dict[str, Any]) -> Event:
    args = item.get("args", {})
    return Event(
        name=item["name"],
        start_us=float(item["ts"]),
        duration_us=float(item["dur"]),
        grid=tuple(args.get("grid", ())),
        block=tuple(args.get("block", ())),
        smem_bytes=int(args.get("shared memory", 0)),
        registers=int(args.get("registers per thread", 0)),
    )


def brackets(events: Iterable[Event]) -> list[Bracket]:
    """Cut a sorted event list into brackets; spins pair up first with second, third with fourth, and so on.

    Raises ValueError on an odd number of spins: one is missing, and no pairing can be trusted.
    """
    out: list[Bracket] = []
    inside: list[Event] = []
    opened: Event | None = None
    for event in events:
        is_spin = SPIN in event.name
        if is_spin and opened is None:
            opened, inside = event, []
        elif is_spin and opened is not None:
            out.append(Bracket(tuple(inside), opened.duration_us, event.duration_us))
            opened = None
        else:
            inside.append(event)
    if opened is not None:
        raise ValueError(f"odd number of spin kernels: {2 * len(out) + 1}")
    return out


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


def summarize(runs: Sequence[Bracket]) -> Timing:
    """Median, minimum and maximum; a repetition over 1.5 times the median counts as rejected (an outlier).

    `spin_spread` is (max - min) / min of the closing spins. A spin lasts a fixed number of SM clocks, so a spread is a
    change of clock between repetitions.
    """
    if not runs:
        raise ValueError("no repetitions")
    if any(not run.events for run in runs):
        raise ValueError("a repetition launched no kernel")
    times = [run.latency_us for run in runs]
    spins = [run.close_spin_us for run in runs]
    middle = statistics.median(times)
    return Timing(
        latency_us=middle,
        min_us=min(times),
        max_us=max(times),
        n=len(times),
        events=runs[-1].events,
        spin_us=statistics.median(spins),
        spin_spread=(max(spins) - min(spins)) / max(min(spins), 1e-9),
        rejected=sum(time > 1.5 * middle for time in times),
    )

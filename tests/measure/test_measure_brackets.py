"""From traces to latencies, without a GPU."""

from __future__ import annotations

import json
import random

import pytest

from lab.collectives import across_ranks
from pipewave.measure.protocol import Bracket, Event, brackets, parse_trace, summarize

SPIN_NAME = "void at::cuda::(anonymous namespace)::spin_kernel(long)"


def _trace(durations: list[list[float]], spin_us: float = 20.0) -> list[dict[str, object]]:
    """A trace of calls, each a list of kernel durations, as the profiler writes it: with flushes and host events."""
    now, items = 1000.0, []

    def add(name: str, duration: float, category: str = "kernel") -> None:
        nonlocal now
        args = {"grid": [7, 1, 1], "block": [128, 1, 1], "registers per thread": 40, "shared memory": 64}
        items.append({"ph": "X", "cat": category, "name": name, "ts": now, "dur": duration, "args": args})
        now += duration + 1.0

    for call in durations:
        add("flush", 70.0)
        add(SPIN_NAME, spin_us)
        for index, duration in enumerate(call):
            add("cudaLaunchKernel", 3.0, "cuda_runtime")
            add(f"kernel_{index}", duration, "gpu_memset" if index == 2 else "kernel")
        add(SPIN_NAME, spin_us)
    random.Random(0).shuffle(items)
    return items


def test_latency_is_the_sum_between_spins_whatever_the_order_in_the_file() -> None:
    calls = [[5.0, 7.5], [1.0], [2.0, 3.0, 4.0]]
    found = brackets(parse_trace(json.dumps({"traceEvents": _trace(calls)})))
    assert [bracket.latency_us for bracket in found] == [12.5, 1.0, 9.0]
    assert [event.name for event in found[2].events] == ["kernel_0", "kernel_1", "kernel_2"]
    assert found[0].events[0].grid == (7, 1, 1)
    assert found[0].events[0].registers == 40


def test_a_lost_spin_is_an_error() -> None:
    events = [Event(SPIN_NAME, 0.0, 1.0), Event("k", 2.0, 1.0)]
    with pytest.raises(ValueError, match="odd number"):
        brackets(events)


def test_summary_takes_the_median_and_counts_outliers() -> None:
    found = brackets(parse_trace(json.dumps({"traceEvents": _trace([[10.0], [11.0], [9.0], [10.0], [30.0]])})))
    timing = summarize(found)
    assert (timing.latency_us, timing.min_us, timing.max_us, timing.n) == (10.0, 9.0, 30.0, 5)
    assert timing.rejected == 1
    assert timing.spin_spread == 0.0


def test_a_clock_that_changes_between_repetitions_shows_in_the_spins() -> None:
    slow = parse_trace(json.dumps({"traceEvents": _trace([[10.0]], spin_us=22.0)}))
    fast = parse_trace(json.dumps({"traceEvents": _trace([[10.0]], spin_us=20.0)}))
    assert summarize([*brackets(slow), *brackets(fast)]).spin_spread == pytest.approx(0.1)


def test_a_call_without_kernels_has_no_latency() -> None:
    found = brackets(parse_trace(json.dumps({"traceEvents": _trace([[1.0], []])})))
    with pytest.raises(ValueError, match="no kernel"):
        summarize(found)


def test_a_collective_lasts_as_long_as_its_slowest_rank() -> None:
    def rank(*latencies: float) -> list[Bracket]:
        return [Bracket((Event("all_reduce", 0.0, us),), 20.0) for us in latencies]

    timing, fastest_us = across_ranks([rank(5.0, 9.0, 6.0), rank(7.0, 5.5, 50.0)])
    assert (timing.latency_us, timing.min_us, timing.max_us, timing.n) == (9.0, 7.0, 50.0, 3)
    assert fastest_us == 5.5
    with pytest.raises(ValueError, match="no kernel"):
        across_ranks([rank(5.0), [Bracket((), 20.0)]])

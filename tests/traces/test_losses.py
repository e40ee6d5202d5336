"""What a trace lost its time to: traces made on purpose, and recorded ones changed, each named by its one true cause."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pipewave.traces import explain_trace
from pipewave.traces.losses import ACTIONS, first
from pipewave.traces.reader import parse, read
from pipewave.traces.trace import Kernel, Trace
from studies import e2e_kernels
from tests.traces import made

RECORDED = Path(__file__).parents[2] / "data" / "measured" / "h200" / "traces"


@pytest.mark.parametrize("name", made.MADE)
def test_the_first_line_names_the_true_cause(name: str) -> None:
    cause, document = made.trace(name)
    found = explain_trace(parse(json.dumps(document).encode(), name))
    loss = first(found.losses)
    assert (loss.cause if loss else "") == cause, found.losses
    line = found.headline[0]
    assert (loss.what in line and ACTIONS[cause]["action"][1:] in line) if loss else "healthy" in line


@pytest.mark.parametrize("name", made.MADE)
def test_losses_are_parts_of_the_wall_clock_largest_first(name: str) -> None:
    found = explain_trace(parse(json.dumps(made.trace(name)[1]).encode(), name))
    assert found.idle is not None
    sizes = [loss.us for loss in found.losses]
    assert sizes == sorted(sizes, reverse=True)
    assert all(0.0 <= loss.us <= found.idle.span_us for loss in found.losses)
    waits = sum(loss.us for loss in found.losses if loss.cause in ("host", "launches", "replays", "input", "sync"))
    assert waits <= found.idle.idle_us + 1e-6


def stretched(trace: Trace, name: str, factor: float) -> Trace:
    """The run with kernels of a name that many times as long, all later."""
    kernels, shift = list[Kernel](), 0.0
    for one in trace.kernels:
        more = (factor - 1.0) * one.duration_us if name in one.name else 0.0
        launch = one.launch and (one.launch[0] + shift, one.launch[1] + shift)
        kernels.append(replace(one, start_us=one.start_us + shift, duration_us=one.duration_us + more, launch=launch))
        shift += more
    return replace(trace, kernels=tuple(kernels), waits=())


@pytest.mark.parametrize(
    ("step", "name", "factor", "cause"),
    [
        ("Llama-3.1-8B-tp1-graph-decode", "", 1.0, ""),
        ("Llama-3.1-8B-tp1-graph-decode", "", 1.4, "clock"),
        ("Llama-3.1-8B-tp1-graph-decode", "cutlass::device_kernel", 4.0, "kernel"),
        ("Llama-3.1-8B-tp1-graph-prefill", "", 1.4, "clock"),
        ("Llama-3.1-8B-tp1-graph-prefill", "nvjet_sm90_tst_256x128", 4.0, "kernel"),
        ("Qwen3-30B-A3B-tp1-graph-decode", "fused_moe_kernel", 4.0, "kernel"),
        ("Qwen3-32B-tp2-graph-prefill", "nccl", 4.0, "communication"),
        ("Qwen3-30B-A3B-tp1-graph-prefill", "", 1.0, "launches"),
    ],
)
def test_recorded_runs_are_named_by_what_was_changed(step: str, name: str, factor: float, cause: str) -> None:
    trace = stretched(read(RECORDED / f"trace-{step}.json.gz"), name, factor)
    loss = first(explain_trace(trace, workload=e2e_kernels.workload_of(step)).losses)
    assert (loss.cause if loss else "") == cause

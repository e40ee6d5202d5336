"""What a trace says first, and eager traces of several steps beside a model."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from pipewave.models import load
from pipewave.models.kernels import Deployment
from pipewave.traces import Workload, explain_trace
from pipewave.traces.entry import by_layer
from pipewave.traces.reader import parse

TRACES = Path(__file__).parents[2] / "data" / "measured" / "h200" / "traces"
QWEN = "trace-Qwen3-30B-A3B-tp1"
MODEL = Workload(Deployment(load("Qwen3-30B-A3B")))


def test_idle_time_and_its_cause_come_before_the_kernels() -> None:
    found = explain_trace(TRACES / f"{QWEN}-4layers-eager-decode.json.gz")
    first, second = found.headline
    assert first.startswith("42.472 ms, GPU idle 89.5%: host-bound launches") and "CUDA graphs" in first
    assert second.startswith("kernels took 4.483 ms; 0.0") and second.endswith("could be won back")
    assert found.to_dict()["headline"] == [first, second] and found.judged


def test_a_graph_without_a_model_has_no_recoverable_time_to_tell() -> None:
    found = explain_trace(TRACES / f"{QWEN}-graph-decode.json.gz")
    assert not found.judged and "not known" in found.headline[-1] and "not known" in repr(found)
    assert found.headline[0] == "50.168 ms, GPU idle 8.5%"
    assert explain_trace(TRACES / f"{QWEN}-graph-decode.json.gz", workload=MODEL).judged


@pytest.mark.parametrize("kind", ["decode", "prefill"])
def test_layers_of_an_eager_run_are_those_of_its_model(kind: str) -> None:
    path = TRACES / f"{QWEN}-4layers-eager-{kind}.json.gz"
    alone = by_layer(explain_trace(path).ran)
    assert [row.name for row in alone] == [f"layer {n}" for n in range(4)] + ["outside of layers"]
    named = by_layer(explain_trace(path, workload=MODEL).ran)
    assert [row.measured_us for row in alone[:4]] == pytest.approx([row.measured_us for row in named[:4]], rel=0.1)


def events(kind: str) -> list[dict[str, Any]]:
    """An eager run without names of its steps and without operators of experts."""
    document = json.loads(gzip.decompress((TRACES / f"{QWEN}-4layers-eager-{kind}.json.gz").read_bytes()))
    return [
        event
        for event in document["traceEvents"]
        if not ("execute" in event["name"] and event.get("cat") == "user_annotation")
        and not ("moe" in event["name"].lower() and event.get("cat") == "cpu_op")
    ]


def follows(first: list[dict[str, Any]], then: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Two runs, one after the other."""
    end = max(event["ts"] + event.get("dur", 0) for event in first if event.get("ph") == "X")
    begin = min(event["ts"] for event in then if event.get("ph") == "X")
    for event in then:
        args = event.get("args", {})
        args |= {name: args[name] + 10**7 for name in ("correlation", "External id") if isinstance(args.get(name), int)}
        event["ts"] = event.get("ts", begin) + end - begin + 1000
    return first + then


@pytest.fixture(scope="module")
def several() -> bytes:
    found = follows(events("prefill"), events("decode"))
    return json.dumps({"traceEvents": found, "deviceProperties": [{"name": "NVIDIA H200"}]}).encode()


def test_steps_of_different_requests_match_the_model_in_turn(several: bytes) -> None:
    trace = parse(several, "x")
    bare, found = explain_trace(trace), explain_trace(trace, workload=MODEL)
    assert any("fused_moe" in left.name for left in bare.unshaped)
    assert not any("fused_moe" in left.name for left in found.unshaped)
    experts = [entry for entry in found.entries if entry.family == "fused_moe"]
    assert {entry.call["tokens"] for entry in experts} == {2048, 32}
    assert by_layer(found.ran)
    assert found.shaped_share > 0.95 > bare.shaped_share

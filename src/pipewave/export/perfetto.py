"""A simulated run as a Chrome trace, which Perfetto opens: steps, queue and cache over time, requests as spans."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from pipewave.files import whole
from pipewave.files.json_text import dumps
from pipewave.simulate.simulation import Record
from pipewave.simulate.traffic import Traffic

US = 1e6


def events(record: Record, traffic: Traffic) -> Iterator[dict[str, Any]]:
    """Trace events; times in µs, engines are processes."""
    for which in sorted({which for which, _ in record.steps}):
        yield {"ph": "M", "name": "process_name", "pid": which, "args": {"name": f"engine {which}"}}
    for which, step in record.steps:
        tokens = sum(piece[1] for piece in step.pieces)
        yield {
            "ph": "X",
            "name": "mixed" if tokens and step.decoding else ("prefill" if tokens else "decode"),
            "pid": which,
            "tid": 0,
            "ts": step.start_s * US,
            "dur": step.seconds * US,
            "args": {"decoding": step.decoding, "prompt_tokens": tokens, "preempted": step.preempted},
        }
        yield {
            "ph": "C",
            "name": "decoding",
            "pid": which,
            "ts": step.start_s * US,
            "args": {"requests": step.decoding},
        }
    for request in range(len(traffic)):
        yield from _request(record, traffic, request)


def _request(record: Record, traffic: Traffic, request: int) -> Iterator[dict[str, Any]]:
    marks = (record.arrival_s[request], record.first_s[request], record.done_s[request])
    if any(np.isnan(mark) for mark in marks):
        return
    args = {"input": int(traffic.input_len[request]), "output": int(traffic.output_len[request])}
    for name, begin, end in (("to first token", *marks[:2]), ("later tokens", *marks[1:])):
        common = {"cat": "request", "name": name, "id": request, "pid": 1_000_000, "tid": 0}
        yield common | {"ph": "b", "ts": begin * US, "args": args}
        yield common | {"ph": "e", "ts": end * US}


def write(path: str | Path, record: Record, traffic: Traffic) -> None:
    """Write the trace as JSON; BadFile when the place cannot be written."""
    with whole.lines(path, field="trace_out") as out:
        out.file.write('{"displayTimeUnit": "ms", "traceEvents": [\n')
        separator = ""
        for event in events(record, traffic):
            out.file.write(separator + dumps(event))
            separator = ",\n"
        out.file.write("\n]}\n")

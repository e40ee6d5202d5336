"""A simulated run for other tools: as a Chrome trace that Perfetto opens, and as AIPerf's result files.

The trace has steps, queue and cache over time, and requests as spans. What reads AIPerf's files, such as `aiperf plot`,
takes these:

    <folder>/profile_export.jsonl          a request a line: when it ran, its lengths and latencies
            /profile_export_aiperf.json    each figure over all requests

Names are those of AIPerf 0.13 (`MetricRecordInfo`, `JsonExportData` 1.4). Wall clocks begin with the epoch of 1970.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pipewave.export.tables import Row, json_file
from pipewave.files import whole
from pipewave.files.json_text import dumps
from pipewave.physics.demand import Array
from pipewave.simulate.simulation import Record
from pipewave.simulate.traffic import Ints, Traffic

SCHEMA = "1.4"
UNITS = {"time_to_first_token": "ms", "inter_token_latency": "ms", "request_latency": "ms",
         "input_sequence_length": "tokens", "output_sequence_length": "tokens",
         "output_token_throughput_per_user": "tokens/sec/user"}  # fmt: skip
PERCENTILES = (1, 5, 10, 25, 50, 75, 90, 95, 99)
US = 1e6  # of a second, of times in a trace
REQUESTS_PID = 1_000_000  # the process of all requests, beyond those of engines


def write_aiperf(folder: str | Path, record: Record, traffic: Traffic, answer: Mapping[str, Any]) -> tuple[Path, ...]:
    """Write both files of a run; BadFile where the folder cannot be written."""
    kept = np.flatnonzero(np.isfinite(record.done_s))
    values = _figures(record, traffic, kept)
    seconds = float(record.done_s[kept].max() - record.arrival_s[kept].min())
    rates = {"request_throughput": ("requests/sec", len(kept) / seconds), "request_count": ("requests", len(kept)),
             "output_token_throughput": ("tokens/sec", answer["output_tokens_per_s"]),
             "benchmark_duration": ("sec", seconds)}  # fmt: skip
    span, held = float(np.ptp(traffic.arrival_s)), traffic.concurrency
    load = {} if traffic.closed else {"rate": (traffic.sessions - 1) / span if span else "inf"}
    load |= {"concurrency": held} if held else {}
    summary = {
        "schema_version": SCHEMA,
        "input_config": {"phases": [{"name": "profiling", "requests": len(traffic), **load}]},
        **{name: {"unit": unit, "avg": float(value)} for name, (unit, value) in rates.items()},
        **{name: _spread(UNITS[name], each[np.isfinite(each)]) for name, each in values.items()},
    }
    file = json_file(Path(folder) / "profile_export_aiperf.json", summary)  # makes the folder, too
    lines = file.with_name("profile_export.jsonl")
    with whole.lines(lines, field="aiperf") as out:
        for row in _profile_rows(record, kept, values):
            out.file.write(dumps(row) + "\n")
    return lines, file


def _figures(record: Record, traffic: Traffic, kept: Ints) -> dict[str, Array]:
    """Each figure of each request, NaN where it has none (a lone token has no gap)."""
    arrived, first, done = record.arrival_s[kept], record.first_s[kept], record.done_s[kept]
    tokens = traffic.output_len[kept].astype(float)
    gap_ms = 1e3 * np.where(tokens > 1, (done - first) / np.maximum(tokens - 1, 1), np.nan)
    return {
        "time_to_first_token": 1e3 * (first - arrived), "inter_token_latency": gap_ms,
        "request_latency": 1e3 * (done - arrived), "input_sequence_length": traffic.input_len[kept].astype(float),
        "output_sequence_length": tokens, "output_token_throughput_per_user": 1e3 / gap_ms,
    }  # fmt: skip


def _profile_rows(record: Record, kept: Ints, values: Mapping[str, Array]) -> Iterator[Row]:
    for at, request in enumerate(kept.tolist()):
        metadata = {
            "session_num": at, "x_request_id": str(request), "worker_id": "pipewave",
            "record_processor_id": "pipewave", "benchmark_phase": "profiling",
            "request_start_ns": round(1e9 * float(record.arrival_s[request])),
            "request_end_ns": round(1e9 * float(record.done_s[request])),
        }  # fmt: skip
        known = {name: float(each[at]) for name, each in values.items() if np.isfinite(each[at])}
        metrics = {name: {"value": value, "unit": UNITS[name]} for name, value in known.items()}
        yield {"metadata": metadata, "metrics": metrics, "error": None}


def _spread(unit: str, values: Array) -> Row:
    if not len(values):
        return {"unit": unit, "count": 0}
    places = dict(zip((f"p{one}" for one in PERCENTILES), np.percentile(values, PERCENTILES).tolist(), strict=True))
    figures = {name: float(getattr(values, name)()) for name in ("min", "max", "std", "sum")}
    return {"unit": unit, "avg": float(values.mean()), **places, **figures, "count": len(values)}


def events(record: Record, traffic: Traffic) -> Iterator[dict[str, Any]]:
    """Trace events; times in µs, engines are processes."""
    for which in sorted({which for which, _ in record.steps}):
        yield {"ph": "M", "name": "process_name", "pid": which, "args": {"name": f"engine {which}"}}
    for which, step in record.steps:
        tokens, at = sum(piece[1] for piece in step.pieces), {"pid": which, "ts": step.start_s * US}
        kind = "mixed" if tokens and step.decoding else ("prefill" if tokens else "decode")
        args = {"decoding": step.decoding, "prompt_tokens": tokens, "preempted": step.preempted}
        yield {"ph": "X", "name": kind, **at, "tid": 0, "dur": step.seconds * US, "args": args}
        yield {"ph": "C", "name": "decoding", **at, "args": {"requests": step.decoding}}
    for request in range(len(traffic)):
        yield from _spans(record, traffic, request)


def _spans(record: Record, traffic: Traffic, request: int) -> Iterator[dict[str, Any]]:
    marks = (record.arrival_s[request], record.first_s[request], record.done_s[request])
    if any(np.isnan(mark) for mark in marks):
        return
    args = {"input": int(traffic.input_len[request]), "output": int(traffic.output_len[request])}
    for name, begin, end in (("to first token", *marks[:2]), ("later tokens", *marks[1:])):
        common = {"cat": "request", "name": name, "id": request, "pid": REQUESTS_PID, "tid": 0}
        yield common | {"ph": "b", "ts": begin * US, "args": args}
        yield common | {"ph": "e", "ts": end * US}


def write_perfetto(path: str | Path, record: Record, traffic: Traffic) -> None:
    """Write the trace as JSON; BadFile when the place cannot be written."""
    with whole.lines(path, field="trace_out") as out:
        out.file.write('{"displayTimeUnit": "ms", "traceEvents": [\n')
        separator = ""
        for event in events(record, traffic):
            out.file.write(separator + dumps(event))
            separator = ",\n"
        out.file.write("\n]}\n")

"""Arrival files: requests of a CSV, JSON-lines or parquet trace, by the names and units of public kinds.

A column whose unit cannot be told is refused, never guessed.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipewave.errors import BadFile, BadInput, MissingExtra, MissingField
from pipewave.physics.demand import Array
from pipewave.simulate.traffic import Ints, Traffic

HASHES = "hash_ids"
# Columns of Azure and Splitwise, Vidur, Mooncake, SGLang, BurstGPT, ShareGPT dumps, by their unit in seconds.
UNITS = {
    **dict.fromkeys(
        ("arrival_time", "arrived_at", "arrival", "arrival_s", "time_s", "timestamp_s", "arrival_time_s"), 1.0
    ),
    **dict.fromkeys(("arrival_ms", "arrival_time_ms", "time_ms", "timestamp_ms"), 1e-3),
}
MOONCAKE = ("input_length", "output_length")  # beside a `timestamp` in ms
BURSTGPT = ("Request tokens", "Response tokens")  # beside a `Timestamp` in seconds
TIMELIKE = ("time", "arriv", "stamp", "date")
EPOCHS = ((1e9, 1e10, 1.0), (1e12, 1e13, 1e-3))  # seconds and milliseconds since 1970, of the years 2001 to 2286
INPUT = (
    "num_prefill_tokens",
    "input_length",
    "input_len",
    "input_tokens",
    "prompt_len",
    "prompt_tokens",
    "ContextTokens",
    "Request tokens",
    "isl",
)
# PipeWeave's tables hold both a request's own output and the one its batch ran; the latter comes first.
OUTPUT = (
    "output_tokens",
    "num_decode_tokens",
    "output_length",
    "output_len",
    "completion_tokens",
    "GeneratedTokens",
    "Response tokens",
    "osl",
)


def read_trace(
    path: str | Path, *, requests: int | None = None, rate: float | None = None, concurrency: int | None = None
) -> Traffic:
    """Requests of a CSV, JSON-lines or parquet trace; `rate` rescales its times to that many requests a second.

    A trace without a column of times arrives at once, unless `rate` or `concurrency` says otherwise. Dates, and seconds
    or milliseconds since 1970, are understood. Raises BadFile, MissingField or BadInput.
    """
    return _traffic(_read_columns(Path(path)), requests, rate, concurrency)


def parse_trace(
    text: str, name: str, *, requests: int | None = None, rate: float | None = None, concurrency: int | None = None
) -> Traffic:
    """Requests of the text of a CSV or JSON-lines trace, as `read_trace` reads a file; `name` is for messages."""
    return _traffic(_columns(Path(name), text), requests, rate, concurrency)


def _traffic(
    columns: Mapping[str, list[Any]], requests: int | None, rate: float | None, concurrency: int | None
) -> Traffic:
    if requests is not None and requests < 1:
        raise BadInput(f"requests = {requests}: must be at least 1", field="requests")
    prompt, answer = (_numbers(columns, names, what) for names, what in ((INPUT, "prompt"), (OUTPUT, "output")))
    times = _times(columns, len(prompt))
    order = np.argsort(times, kind="stable")[:requests]
    blocks = _blocks(columns, order)
    traffic = Traffic(times[order] - times[order].min(), prompt[order], answer[order], concurrency, blocks=blocks)
    return _rescaled(traffic, rate) if rate is not None else traffic


def _blocks(columns: Mapping[str, list[Any]], order: NDArray[np.intp]) -> tuple[tuple[int, ...], ...] | None:
    """Hashes of each prompt's blocks, where every request has a list of them."""
    listed = columns.get(HASHES)
    if listed is None or not all(isinstance(row, list) for row in listed):
        return None
    return tuple(tuple(listed[i]) for i in order.tolist())


def _rescaled(traffic: Traffic, rate: float) -> Traffic:
    """The same requests at another mean rate; without times of its own, evenly spaced."""
    if not 0 < rate < 1e9:
        raise BadInput(f"rate = {rate!r}: must be above 0 and below 1e9", field="rate")
    span, count = float(traffic.arrival_s[-1]), len(traffic)
    own = traffic.arrival_s / span if span > 0 else np.arange(count) / max(count - 1, 1)
    return replace(traffic, arrival_s=own * ((count - 1) / rate))


def _read_columns(path: Path) -> dict[str, list[Any]]:
    try:
        if path.suffix == ".parquet":
            return _parquet(path)
        text = path.read_text("utf-8-sig")
    except OSError as problem:
        raise BadFile(f"{path}: cannot be read ({problem.strerror})", field="trace") from problem
    except UnicodeDecodeError as problem:
        raise BadFile(f"{path}: not text ({problem.reason})", field="trace") from problem
    return _columns(path, text)


def _columns(path: Path, text: str) -> dict[str, list[Any]]:
    return _table(path, _json_rows(path, text) if text.lstrip()[:1] == "{" else csv.DictReader(text.splitlines()))


def _parquet(path: Path) -> dict[str, list[Any]]:
    try:
        from pyarrow import ArrowInvalid, parquet
    except ImportError as problem:
        raise MissingExtra("reading parquet traces needs pyarrow: pip install 'pipewave[train]'") from problem
    try:
        return dict(parquet.read_table(path).to_pydict())
    except ArrowInvalid as problem:
        raise BadFile(f"{path}: not a parquet file ({problem})", field="trace") from problem


def _json_rows(path: Path, text: str) -> Iterable[Mapping[str, Any]]:
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as problem:
            raise BadFile(f"{path}, line {number}: not valid JSON ({problem})", field="trace") from problem
        if not isinstance(row, dict):
            raise BadFile(f"{path}, line {number}: must be an object", field="trace")
        yield row


def _table(path: Path, rows: Iterable[Mapping[str, Any]]) -> dict[str, list[Any]]:
    every = list(rows)
    if not every:
        raise BadFile(f"{path}: holds no requests", field="trace")
    return {name: [row.get(name) for row in every] for name in every[0]}


def _named(columns: Mapping[str, list[Any]], names: tuple[str, ...]) -> str | None:
    return next((name for name in names if name in columns), None)


def _numbers(columns: Mapping[str, list[Any]], names: tuple[str, ...], what: str) -> Ints:
    name = _named(columns, names)
    if name is None:
        raise MissingField(f"trace has no {what} length: name a column {', '.join(names)}", field="trace")
    try:
        return np.array([int(float(value)) for value in columns[name]], np.int64)
    except (TypeError, ValueError, OverflowError) as problem:
        raise BadInput(f"trace column {name}: every row needs a number ({problem})", field=name) from problem


def _times(columns: Mapping[str, list[Any]], count: int) -> Array:
    """Seconds of each arrival; zeros where no column is of times. Raises BadInput where the unit cannot be told."""
    timelike = [name for name in columns if name in UNITS or any(part in name.lower() for part in TIMELIKE)]
    name = next((name for name in UNITS if name in columns), timelike[0] if timelike else None)
    if name is None:
        return np.zeros(count)
    try:
        values = np.array([float(value) for value in columns[name]])
    except (TypeError, ValueError, OverflowError):
        return _dates(name, columns[name])
    return values * _unit(name, values, columns)


def _unit(name: str, values: Array, columns: Mapping[str, list[Any]]) -> float:
    """Seconds of one unit of a column of times."""
    if name in UNITS:
        return UNITS[name]
    if name == "timestamp" and all(one in columns for one in MOONCAKE):
        return 1e-3
    if name == "Timestamp" and any(one in columns for one in BURSTGPT):
        return 1.0
    for low, high, unit in EPOCHS:
        if len(values) and low <= float(values.min()) <= float(values.max()) < high:
            return unit
    raise BadInput(
        f"trace column {name}: its unit is not known; name it arrival_time (seconds) or timestamp_ms", field=name
    )


def _dates(name: str, values: list[Any]) -> Array:
    """Azure's `2023-11-16 18:15:46.6805900`, in seconds after the first."""
    try:
        stamps = np.array([str(value)[:26].replace(" ", "T") for value in values], "datetime64[us]")
    except ValueError as problem:
        raise BadInput(f"trace column {name}: must hold seconds or dates ({problem})", field=name) from problem
    return np.asarray((stamps - stamps.min()) / np.timedelta64(1, "s"), float)

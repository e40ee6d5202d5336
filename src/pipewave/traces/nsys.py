"""A SQLite export of Nsight Systems (`nsys export --type sqlite`) to a Trace.

Tables and columns are those of NVIDIA's schema reference: kernels, copies and fills with the `correlationId` of the
call that launched them (CUPTI_ACTIVITY_KIND_RUNTIME), names as numbers of `StringIds`, ranges of NVTX on the thread of
the call. Times there are nanoseconds. `emit_nvtx(record_shapes=True)` of PyTorch writes operators and their sizes into
names of ranges, engines write layers and steps; operand types are in neither, so they come from names of kernels.
"""

from __future__ import annotations

import json
import re
import sqlite3
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from functools import lru_cache
from pathlib import Path
from typing import Any

from pipewave.traces.trace import INPUT, WAITS, At, Kernel, Op, Span, Step, Trace, bad, dims_of, named, open_at, step_of

MAGIC = b"SQLite format 3\0"
KERNELS, RUNTIME, STRINGS = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "StringIds"
COPIES, FILLS, GRAPHS = "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET", "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
WORK = ("start", "end", "deviceId", "streamId", "correlationId", "bytes",
        "gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ")  # fmt: skip
RANGES, GPUS = "NVTX_EVENTS", "TARGET_INFO_GPU"
DIRECTIONS = {1: "HtoD", 2: "DtoH", 8: "DtoD", 9: "HtoH", 10: "PtoP"}  # CUpti_ActivityMemcpyKind
PUSH_POP = 59  # eventType of ranges that nest on a thread
GRAPH = "CUDA graph as a whole, record with --cuda-graph-trace=node"
MOST_STEPS = 4_000  # of a million of SQLite's instructions each: about a minute
TORCH = re.compile(r"^([\w.]+::[\w.]+), .*?sizes = (\[.*?\])(?:, input_op_ids|$)")
TABLE = re.compile(r"\A\s*CREATE\s+TABLE\b", re.IGNORECASE)
Row = Mapping[str, Any]


def looks_like(data: bytes) -> bool:
    """Whether these bytes begin a database of SQLite."""
    return data.startswith(MAGIC)


def read(data: bytes | Path, source: str, most_rows: int) -> Trace:
    """The trace in these bytes, or in a file, which is read where it lies. Raises BadFile."""
    where = f"{data.resolve().as_uri()}?mode=ro&immutable=1" if isinstance(data, Path) else "file::memory:"
    try:
        with closing(sqlite3.connect(where, uri=True)) as base:
            if isinstance(data, bytes):
                base.deserialize(data)
            return _trace(_Export(base, source, most_rows), source)
    except (sqlite3.Error, UnicodeDecodeError) as problem:  # names in damaged schemas are no text
        raise bad(source, f"not an export of Nsight Systems ({problem})") from problem


class _Export:
    """Rows of the tables that the export has; views and virtual tables, which may compute anything, are none."""

    def __init__(self, base: sqlite3.Connection, source: str, most_rows: int) -> None:
        self._base, self._source, steps = base, source, iter(range(MOST_STEPS))
        self._most = most_rows  # of all tables together
        base.execute("PRAGMA trusted_schema = OFF")
        base.set_progress_handler(lambda: int(next(steps, None) is None), 1_000_000)
        base.text_factory = lambda data: data.decode("utf-8", "replace")
        listed = base.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table' AND sql IS NOT NULL")
        self._tables = {name for name, sql in listed if TABLE.match(str(sql))}

    def rows(self, table: str, *columns: str) -> Iterator[dict[str, Any]]:
        """Rows with these columns, None where the table lacks one; none where there is no such table."""
        if table not in self._tables:
            return
        there = {str(row[1]) for row in self._base.execute(f'PRAGMA table_info("{table}")')}
        wanted = [name for name in columns if name in there]
        listed = ", ".join(f'"{name}"' for name in wanted) or "NULL"
        nothing = dict.fromkeys(columns)
        for row in self._base.execute(f'SELECT {listed} FROM "{table}"'):
            self._most -= 1
            if self._most < 0:
                raise bad(self._source, f"too many rows, reached in {table}: the limit here")
            yield nothing | dict(zip(wanted, row, strict=False))


def _trace(export: _Export, source: str) -> Trace:
    names = {row["id"]: row["value"] for row in export.rows(STRINGS, "id", "value")}
    calls = _calls(export, names)
    ranges = list(_ranges(export, names))
    inside = open_at(ranges, (At(call.start_us, call.thread, key) for key, call in calls.items()))
    steps = sorted((step for span in ranges if (step := step_of(span.what, span.start_us))), key=lambda s: s.start_us)
    kernels = [_kernel(row, calls.get(row["correlationId"]), inside, steps, source) for row in _work(export, names)]
    if not kernels:
        raise bad(source, "no GPU kernels: profile with --trace=cuda")
    kernels.sort(key=lambda kernel: kernel.start_us)
    gpu = next((str(row["name"]) for row in export.rows(GPUS, "id", "name") if row["name"]), None)
    waits, inputs = named(calls.values(), WAITS.match), named(ranges, INPUT.search)
    return Trace(source, gpu, tuple(kernels), tuple(steps), waits=waits, inputs=inputs)


def _calls(export: _Export, names: Mapping[Any, Any]) -> dict[Any, Span]:
    """Each call of CUDA by its correlation."""
    calls: dict[Any, Span] = {}
    for row in export.rows(RUNTIME, "start", "end", "globalTid", "correlationId", "nameId"):
        start, end = _us(row["start"]), _us(row["end"])
        if start is not None and end is not None and end >= start:
            calls[row["correlationId"]] = Span(start, end, row["globalTid"], names.get(row["nameId"], ""))
    return calls


def _ranges(export: _Export, names: Mapping[Any, Any]) -> Iterator[Span]:
    """Ranges that nest on a thread, with their text."""
    for row in export.rows(RANGES, "start", "end", "text", "textId", "globalTid", "eventType"):
        start, end = _us(row["start"]), _us(row["end"])
        text = row["text"] or names.get(row["textId"])
        if start is not None and end is not None and isinstance(text, str) and row["eventType"] in (None, PUSH_POP):
            yield Span(start, end, row["globalTid"], text)


def _work(export: _Export, names: Mapping[Any, Any]) -> Iterator[dict[str, Any]]:
    """All work of GPUs, each with a name in words; only kernels have a grid, only copies and fills bytes."""
    for row in export.rows(KERNELS, *WORK, "demangledName", "shortName"):
        name = names.get(row["demangledName"]) or names.get(row["shortName"]) or "unnamed kernel"
        yield row | {"name": str(name)}
    for row in export.rows(COPIES, *WORK, "copyKind"):
        yield row | {"name": f"Memcpy {DIRECTIONS.get(row['copyKind'], 'other')}"}
    for table, name in ((FILLS, "Memset"), (GRAPHS, GRAPH)):
        yield from (row | {"name": name} for row in export.rows(table, *WORK))


def _kernel(
    row: Row, call: Span | None, inside: Mapping[Any, tuple[str, ...]], steps: Sequence[Step], source: str
) -> Kernel:
    start, end = _us(row["start"]), _us(row["end"])
    if start is None or end is None or end < start:
        raise bad(source, f"{row['name'][:60]!r} has no time: {row['start']!r} to {row['end']!r}")
    within = inside.get(row["correlationId"], ())
    return Kernel(
        row["name"],
        start,
        end - start,
        dims_of([row[f"grid{axis}"] for axis in "XYZ"]),
        dims_of([row[f"block{axis}"] for axis in "XYZ"]),
        row["streamId"] if isinstance(row["streamId"], int) else 0,
        tuple(op for text in within if (op := _operator(text)) is not None),
        bisect_right(steps, call.start_us if call else start, key=lambda step: step.start_us) - 1,
        (("bytes", row["bytes"]),) if isinstance(row["bytes"], int) and row["bytes"] >= 0 else (),
        (call.start_us, call.end_us) if call else None,
        within,
        row["deviceId"] if isinstance(row["deviceId"], int) else 0,
    )


def _us(value: Any) -> float | None:
    """Nanoseconds as µs; None where it is no time."""
    return value / 1e3 if isinstance(value, int) and 0 <= value < 1 << 62 else None


@lru_cache(maxsize=65536)
def _operator(text: str) -> Op | None:
    """The operator of PyTorch that a range names, None where it names none."""
    match = TORCH.match(text[:4096])
    if match is None:
        return None
    try:
        sizes = json.loads(match[2])  # an entry an argument: [[4, 1024], [], [[2], [2]]]; a list of tensors has none
    except (ValueError, RecursionError):
        sizes = []
    return Op(-1, match[1], tuple(map(dims_of, sizes)))

"""Tables of `nsys stats --format csv` to a Trace: `cuda_gpu_trace`, with or without `cuda_kern_exec_trace`.

The first lists all work of the GPU, the second when the host launched each kernel. One text may hold both; tables are
told apart by their headers, and units of times stand in these.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from pipewave.errors import BadFile
from pipewave.traces.trace import Dims, Kernel, Trace

HEADER = re.compile(
    rb"^(Start \([nmu]?s(ec)?\),Duration \(|API Start \(|\"?Time \(%\)\"?,\"?Total Time \()", re.MULTILINE
)
TO_US = {"ns": 1e-3, "nsec": 1e-3, "us": 1.0, "usec": 1.0, "ms": 1e3, "msec": 1e3, "s": 1e6, "sec": 1e6}
SIZES = {"B": 1, "KB": 1e3, "MB": 1e6, "GB": 1e9}
DIRECTIONS = {"Host-to-Device": "HtoD", "Device-to-Host": "DtoH", "Device-to-Device": "DtoD", "Peer-to-Peer": "PtoP"}
UNIT = re.compile(r"^(.*?) \((\w+)\)$")
Row = Mapping[str, str]


def looks_like(data: bytes) -> bool:
    """Whether these bytes hold a table of `nsys stats`."""
    return HEADER.search(data) is not None


def trace(text: str, source: str) -> Trace:
    """All GPU work of the tables. Raises BadFile."""
    work, launched, device = list[Kernel](), dict[tuple[str, float], tuple[float, float]](), None
    for columns, rows in _tables(text, source):
        if "API Start" in columns:
            own = [_executed(row, columns, source) for row in rows]
            launched |= {(one.name, one.start_us): one.launch for one in own if one.launch}
            work = work or own
        elif "Start" in columns:
            work = [_ran(row, columns, source) for row in rows]
            device = next((row["Device"] for row in rows if row.get("Device")), device)
    if not work:
        raise BadFile(
            f"{source}: sums only: print each kernel, `nsys stats --report cuda_gpu_trace --format csv`", field="file"
        )
    timed = (replace(one, launch=one.launch or launched.get((one.name, one.start_us))) for one in work)
    name = re.sub(r" \(\d+\)$", "", device) if device else None
    return Trace(source, name, tuple(sorted(timed, key=lambda one: one.start_us)))


def _tables(text: str, source: str) -> Iterator[tuple[dict[str, str], list[Row]]]:
    """(units of columns, rows) of each table; columns go by their names without units."""
    blocks = re.split(r"\r?\n\s*\r?\n", text)
    for block in blocks:
        at = HEADER.search(block.encode("utf-8", "replace"))
        if at is None:
            continue
        body = block.encode("utf-8", "replace")[at.start() :].decode("utf-8", "replace")
        try:
            lines = [line for line in csv.reader(io.StringIO(body)) if line]
        except csv.Error as problem:
            raise BadFile(f"{source}: not a table of nsys stats ({problem})", field="file") from problem
        names, units = _header(lines[0])
        yield units, [dict(zip(names, line, strict=False)) for line in lines[1:] if len(line) >= len(names) - 1]


def _header(titles: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Names of columns without their units, and the units."""
    found = [UNIT.match(title) for title in titles]
    names = [match[1] if match else title for title, match in zip(titles, found, strict=True)]
    return names, {name: match[2] if match else "" for name, match in zip(names, found, strict=True)}


def _ran(row: Row, units: Mapping[str, str], source: str) -> Kernel:
    """A row of `cuda_gpu_trace`."""
    name, size = row.get("Name", ""), _number(row.get("Bytes", ""))
    copied = re.match(r"\[CUDA (?:memcpy|memset)(?: ([\w-]+))?\]", name)
    if copied:
        name = f"Memcpy {DIRECTIONS.get(copied[1], 'other')}" if copied[1] else "Memset"
    moved = (("bytes", round(size * SIZES.get(units.get("Bytes", ""), 1))),) if copied and size is not None else ()
    return Kernel(
        name,
        _time(row, "Start", units, source),
        _time(row, "Duration", units, source),
        _dims([row.get(f"Grd{axis}", "") for axis in "XYZ"]),
        _dims([row.get(f"Blk{axis}", "") for axis in "XYZ"]),
        int(_number(row.get("Strm", "")) or 0),
        args=moved,
    )


def _executed(row: Row, units: Mapping[str, str], source: str) -> Kernel:
    """A row of `cuda_kern_exec_trace`."""
    called, took = _time(row, "API Start", units, source), _time(row, "API Dur", units, source)
    return Kernel(
        row.get("Kernel Name", ""),
        _time(row, "Kernel Start", units, source),
        _time(row, "Kernel Dur", units, source),
        _dims(row.get("GridXYZ", "").split()),
        _dims(row.get("BlockXYZ", "").split()),
        launch=(called, called + took),
        device=int(_number(row.get("DevId", "")) or 0),
    )


def _time(row: Row, column: str, units: Mapping[str, str], source: str) -> float:
    """µs. BadFile where it is no time."""
    value = _number(row.get(column, ""))
    if value is None or value < 0 or units.get(column) not in TO_US:
        raise BadFile(f"{source}: {column} = {row.get(column, '')[:40]!r} {units.get(column)!r}: no time", field="file")
    return value * TO_US[units[column]]


def _number(text: str) -> float | None:
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return None
    return value if math.isfinite(value) and abs(value) < 1e18 else None


def _dims(texts: Sequence[str]) -> Dims:
    return tuple(int(text) for text in texts) if texts and all(t.isdecimal() and len(t) < 12 for t in texts) else ()

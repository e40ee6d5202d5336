"""`ncu --csv` to a Trace: the wide table of `--page raw` or the long one of `--page details`. It holds no shapes."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterable, Mapping, Sequence

from pipewave.errors import BadFile
from pipewave.traces.trace import Dims, Kernel, Trace

HEADER = re.compile(rb'^"ID",', re.MULTILINE)
DURATION = "gpu__time_duration.sum"
DEVICE = "device__attribute_display_name"
TO_US = {"ns": 1e-3, "nsecond": 1e-3, "us": 1.0, "usecond": 1.0, "ms": 1e3, "msecond": 1e3, "s": 1e6, "second": 1e6}
Row = Mapping[str, str]


def looks_like(data: bytes) -> bool:
    """Whether these bytes hold a table of ncu."""
    return HEADER.search(data) is not None


def trace(text: str, source: str) -> Trace:
    """The kernels of the table. ncu flushes the caches before each, so durations follow protocol `cold`."""
    start = text.find('"ID",')
    try:
        rows = [{k: v or "" for k, v in row.items() if k} for row in csv.DictReader(io.StringIO(text[start:]))]
    except csv.Error as problem:
        raise BadFile(f"{source}: not a table of ncu ({problem})", field="file") from problem
    found = _long(rows, source) if rows and "Metric Name" in rows[0] else _wide(rows, source)
    if not found:
        raise BadFile(f"{source}: no kernels in the table of ncu", field="file")
    return Trace(source, _gpu(rows), tuple(found), protocol="cold", clocked=False)


def _wide(rows: Sequence[Row], source: str) -> list[Kernel]:
    """One row a kernel; the row after the header holds units and no ID."""
    units = rows[0] if rows and not rows[0].get("ID") else {}
    kernels = [row for row in rows if row.get("ID")]
    if kernels and DURATION not in kernels[0]:
        raise BadFile(f"{source}: no column {DURATION}: run ncu with --metrics {DURATION}", field="file")
    return [_kernel(i, row, row[DURATION], units.get(DURATION, ""), source) for i, row in enumerate(kernels)]


def _long(rows: Iterable[Row], source: str) -> list[Kernel]:
    """One row a metric."""
    timed = [row for row in rows if row.get("Metric Name") in (DURATION, "Duration")]
    return [
        _kernel(i, row, row.get("Metric Value", ""), row.get("Metric Unit", ""), source) for i, row in enumerate(timed)
    ]


def _kernel(index: int, row: Row, value: str, unit: str, source: str) -> Kernel:
    try:
        duration = float(value.replace(",", "")) * TO_US[unit or "ns"]
    except (ValueError, KeyError) as problem:
        raise BadFile(f"{source}: kernel {row.get('ID')}: duration {value!r} {unit!r}", field="file") from problem
    if not math.isfinite(duration) or duration < 0:
        raise BadFile(f"{source}: kernel {row.get('ID')}: duration {value!r}", field="file")
    grid, block = _triple(row.get("Grid Size", "")), _triple(row.get("Block Size", ""))
    return Kernel(row.get("Kernel Name", ""), float(index), duration, grid, block)


def _triple(text: str) -> Dims:
    return tuple(int(number[:12]) for number in re.findall(r"\d+", text))


def _gpu(rows: Iterable[Row]) -> str | None:
    return next((row[DEVICE] for row in rows if row.get(DEVICE) and row.get("ID")), None)

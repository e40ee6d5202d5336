"""Tables of `nsys stats --format csv` and of `ncu --csv` to a Trace.

Of nsys, `cuda_gpu_trace` lists all work of the GPU and `cuda_kern_exec_trace` when the host launched each kernel; one
text may hold both, and sums (`cuda_gpu_kern_sum`). Of ncu, the wide table of `--page raw` or the long one of
`--page details`; it holds no shapes and no clock. No table marks its end: what breaks off inside a row is refused, and
what ends between two rows is held against sums or ncu's log where the text has them, else a note says how far it goes.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from pipewave.traces.trace import Dims, Kernel, Trace, bad

NSYS = re.compile(
    rb"^(Start \([nmu]?s(ec)?\),Duration \(|API Start \(|\"?Time \(%\)\"?,\"?Total Time \()", re.MULTILINE
)
NCU = re.compile(rb'^"ID",', re.MULTILINE)
PROFILED = re.compile(r"^==PROF== Profiling ", re.MULTILINE)  # ncu's log, a line a kernel
LOG = re.compile(r"^==\w+==", re.MULTILINE)
DURATION, DEVICE = "gpu__time_duration.sum", "device__attribute_display_name"
SECONDS, PREFIXES = ("s", "sec", "second"), {"n": 1e-3, "u": 1.0, "m": 1e3, "": 1e6}
TO_US = {prefix + word: us for prefix, us in PREFIXES.items() for word in SECONDS}
SIZES = {"B": 1, "KB": 1e3, "MB": 1e6, "GB": 1e9}
DIRECTIONS = {"Host-to-Device": "HtoD", "Device-to-Host": "DtoH", "Device-to-Device": "DtoD", "Peer-to-Peer": "PtoP"}
# Columns of sums that count kernels and copies: another column of such a table, and what is counted.
SUMS = {"Instances": ("Name", "kernels"), "Count": ("Operation", "copies and fills")}
UNIT = re.compile(r"^(.*?) \((\w+)\)$")
Row = Mapping[str, str]


def looks_like(data: bytes) -> bool:
    """Whether these bytes hold a table of `nsys stats` or of ncu."""
    return NCU.search(data) is not None or NSYS.search(data) is not None


def trace(text: str, source: str) -> Trace:
    """The kernels of the tables. Raises BadFile, also where the text breaks off."""
    if not text.endswith("\n"):
        raise bad(source, f"truncated: byte {len(text.encode())} ends no line; a whole table ends with a line end")
    return _of_ncu(text, source) if NCU.search(text.encode()) else _of_nsys(text, source)


def _rows(text: str, source: str, tool: str) -> list[list[str]]:
    """Header and rows of a table, all as wide as the header."""
    try:
        rows = [row for row in csv.reader(io.StringIO(text), strict=True) if row]
    except csv.Error as problem:
        raise bad(source, f"truncated, or not a table of {tool} ({problem})") from problem
    for number, row in enumerate(rows):
        if len(row) < len(rows[0]):
            where = f"row {number} of a table of {tool}"
            raise bad(source, f"truncated or damaged: {where} has {len(row)} of {len(rows[0])} columns")
    return rows


def _unended(kernels: Sequence[Kernel], reached: str, how: str) -> str:
    """What is said of a table that may have been cut between two rows."""
    return f"the table has no end mark: {len(kernels):,} kernels, up to {reached}, are taken as all; {how}"


# nsys


def _of_nsys(text: str, source: str) -> Trace:
    work, launched, device = list[Kernel](), dict[tuple[str, float], tuple[float, float]](), None
    sums: dict[str, int] = {}
    for units, rows in _tables(text, source):
        if "API Start" in units:
            own = [_executed(row, units, source) for row in rows]
            launched |= {(one.name, one.start_us): one.launch for one in own if one.launch}
            work = work or own
        elif "Start" in units:
            work = [_ran(row, units, source) for row in rows]
            device = next((row["Device"] for row in rows if row.get("Device")), device)
        elif counted := next((name for name in SUMS if name in units and SUMS[name][0] in units), None):
            sums[counted] = sum(int(_number(row[counted]) or 0) for row in rows)
    if not work:
        raise bad(source, "sums only: print each kernel, `nsys stats --report cuda_gpu_trace --format csv`")
    timed = [replace(one, launch=one.launch or launched.get((one.name, one.start_us))) for one in work]
    timed.sort(key=lambda one: one.start_us)
    name = re.sub(r" \(\d+\)$", "", device) if device else None
    return Trace(source, name, tuple(timed), notes=_nsys_notes(timed, sums, source, launches=bool(launched)))


def _nsys_notes(work: Sequence[Kernel], sums: Mapping[str, int], source: str, *, launches: bool) -> tuple[str, ...]:
    """What the tables may lack. BadFile where their sums count more kernels or copies than they list."""
    kernels = [one for one in work if not one.name.startswith(("Memcpy", "Memset"))]
    listed = {"Instances": len(kernels), "Count": len(work) - len(kernels)}
    for name, summed in sums.items():
        if summed != listed[name]:
            raise bad(source, f"truncated: {listed[name]:,} {SUMS[name][1]} are listed, their sums count {summed:,}")
    unlaunched = sum(one.launch is None for one in kernels) if launches else 0
    notes = [f"{unlaunched:,} kernels have no launch: cuda_kern_exec_trace is cut or filtered"] if unlaunched else []
    if len(sums) < len(SUMS):
        how = "print cuda_gpu_kern_sum and cuda_gpu_mem_time_sum beside it and it is checked"
        notes.append(_unended(work, f"{work[-1].start_us / 1e3:,.3f} ms", how))
    return tuple(notes)


def _tables(text: str, source: str) -> Iterator[tuple[dict[str, str], list[Row]]]:
    """(units of columns, rows) of each table; columns go by their names without units."""
    for block in re.split(r"\r?\n\s*\r?\n", text):
        encoded = block.encode("utf-8", "replace")
        if (at := NSYS.search(encoded)) is None:
            continue
        lines = _rows(encoded[at.start() :].decode("utf-8", "replace"), source, "nsys stats")
        found = [UNIT.match(title) for title in lines[0]]
        names = [match[1] if match else title for title, match in zip(lines[0], found, strict=True)]
        units = {name: match[2] if match else "" for name, match in zip(names, found, strict=True)}
        yield units, [dict(zip(names, line, strict=False)) for line in lines[1:]]


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
        raise bad(source, f"{column} = {row.get(column, '')[:40]!r} {units.get(column)!r}: no time")
    return value * TO_US[units[column]]


def _number(text: str) -> float | None:
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return None
    return value if math.isfinite(value) and abs(value) < 1e18 else None


def _dims(texts: Sequence[str]) -> Dims:
    return tuple(int(text) for text in texts) if texts and all(t.isdecimal() and len(t) < 12 for t in texts) else ()


# ncu


def _of_ncu(text: str, source: str) -> Trace:
    """ncu flushes the caches before each kernel, so durations follow protocol `cold`."""
    table = text[text.find('"ID",') :]
    logged = LOG.search(table)
    lines = _rows(table[: logged.start()] if logged else table, source, "ncu")
    rows = [dict(zip(lines[0], line, strict=False)) for line in lines[1:]]
    found = _long(rows, source) if rows and "Metric Name" in rows[0] else _wide(rows, source)
    if not found:
        raise bad(source, "no kernels in the table of ncu")
    profiled = len(PROFILED.findall(text))
    if profiled > len(found):
        raise bad(source, f"truncated: {len(found):,} kernels are listed, ncu's log has {profiled:,}")
    device = next((row[DEVICE] for row in rows if row.get(DEVICE) and row.get("ID")), None)
    last = f"ID {max((row['ID'] for row in rows if row.get('ID')), key=lambda text: (len(text), text))}"
    notes = () if profiled else (_unended(found, last, "keep ncu's log (==PROF==) in the file and it is checked"),)
    return Trace(source, device, tuple(found), protocol="cold", clocked=False, notes=notes)


def _wide(rows: Sequence[Row], source: str) -> list[Kernel]:
    """One row a kernel; the row after the header holds units and no ID."""
    units = rows[0] if rows and not rows[0].get("ID") else {}
    kernels = [row for row in rows if row.get("ID")]
    if kernels and DURATION not in kernels[0]:
        raise bad(source, f"no column {DURATION}: run ncu with --metrics {DURATION}")
    return [_profiled(i, row, row[DURATION], units.get(DURATION, ""), source) for i, row in enumerate(kernels)]


def _long(rows: Sequence[Row], source: str) -> list[Kernel]:
    """One row a metric; the last kernel has as many as others have at least."""
    metrics = Counter(row.get("ID", "") for row in rows)
    last = rows[-1].get("ID", "")
    if metrics[last] < min(metrics.values() if len(metrics) == 1 else (n for i, n in metrics.items() if i != last)):
        raise bad(source, f"truncated: kernel {last} has {metrics[last]} metrics, others more")
    timed = [row for row in rows if row.get("Metric Name") in (DURATION, "Duration")]
    told = ((row, row.get("Metric Value", ""), row.get("Metric Unit", "")) for row in timed)
    return [_profiled(i, *one, source) for i, one in enumerate(told)]


def _profiled(index: int, row: Row, value: str, unit: str, source: str) -> Kernel:
    duration = _number(value)
    if duration is None or duration < 0 or (unit or "ns") not in TO_US:
        raise bad(source, f"kernel {row.get('ID')}: duration {value[:40]!r} {unit[:40]!r}")
    sizes = (re.findall(r"\d+", row.get(f"{of} Size", "")) for of in ("Grid", "Block"))
    grid, block = (tuple(int(n[:12]) for n in each) for each in sizes)
    return Kernel(row.get("Kernel Name", ""), float(index), duration * TO_US[unit or "ns"], grid, block)

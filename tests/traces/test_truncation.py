"""A table that breaks off is refused, or a note says what it may lack: never a smaller total in silence."""

from __future__ import annotations

import gzip
import json
import zlib
from collections import Counter
from pathlib import Path

import nsight
import pytest
from nsight import ncu_long, ncu_wide

from pipewave.errors import BadFile
from pipewave.traces import explain_trace
from pipewave.traces.reader import Limits, parse

ROOT = Path(__file__).parents[2]
RUN = ROOT / "data" / "measured" / "h100" / "traces" / "trace-hf-llama-2layers-decode-modules.json.gz"
SUMS = "Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name\n"
COPIES = "Time (%),Total Time (ns),Count,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Operation\n"


def summed() -> str:
    """The tables of a run with the sums of its kernels and copies, as `nsys stats` prints them by default."""
    text = nsight.tables(RUN)
    work = Counter(kernel.name for kernel in parse(text.encode(), "x").kernels)
    rows = {name: f'1.0,5,{count},1,1,1,1,0,"{name}"\n' for name, count in work.items()}
    copies = "".join(row for name, row in rows.items() if name.startswith("Mem"))
    kernels = "".join(row for name, row in rows.items() if not name.startswith("Mem"))
    return f"Processing [x.sqlite]...\n\n{SUMS}{kernels}\n{COPIES}{copies}\n{text}"


TABLES = {
    "nsys": nsight.tables(RUN),
    "nsys without launches": nsight.tables(RUN, launches=False),
    "nsys with sums": summed(),
    "ncu wide": ncu_wide(40),
    "ncu wide with its log": "".join(f'==PROF== Profiling "k" - {i}: 8 passes\n' for i in range(40)) + ncu_wide(40),
    "ncu long": ncu_long(20),
    "recorded nsys": (ROOT / "tests" / "data" / "traces" / "nsys.csv").read_text("utf-8"),
    "recorded ncu": (ROOT / "tests" / "data" / "traces" / "ncu-h200.csv").read_text("utf-8"),
}


@pytest.mark.parametrize("name", TABLES)
def test_no_cut_is_silent(name: str) -> None:
    data = TABLES[name].encode()
    cuts = 120 if len(data) < 100_000 else 25
    whole = parse(data, "x")
    checked = 0
    for at in range(len(data) * 2 // (2 * cuts + 1), len(data), len(data) // cuts):
        for end in (at, data.rfind(b"\n", 0, at) + 1):  # inside a row, and between two
            try:
                found = parse(data[:end], "x")
            except BadFile:
                continue
            checked += 1
            lost = whole.gpu_us - found.gpu_us
            assert lost == 0 or found.notes, (name, end)
    if "sums" in name or "log" in name:
        assert not whole.notes
    else:
        assert checked and any("no end mark" in note for note in whole.notes)


def test_what_a_table_may_lack_is_told_in_the_report() -> None:
    found = explain_trace(parse(ncu_wide(3).encode(), "x"), gpu="H200")
    assert any("no end mark: 3 kernels, up to ID 2" in note for note in found.notes)


def test_fewer_kernels_than_sums_or_the_log_count_are_a_cut_file() -> None:
    with pytest.raises(BadFile, match="truncated: 2 kernels are listed, ncu's log has 3"):
        parse(('==PROF== Profiling "k" - 0: 1 pass\n' * 3 + ncu_wide(2)).encode(), "x")
    trace, launches = summed().split("\nProcessing [trace.sqlite] with [cuda_kern_exec_trace.py]")
    cut = trace[: trace.rstrip().rfind("\n") + 1]
    with pytest.raises(BadFile, match="their sums count"):
        parse(f"{cut}\nProcessing{launches}".encode(), "x")


def test_launches_that_are_missing_are_told() -> None:
    text = nsight.tables(RUN)
    cut = text[: text.rstrip().rfind("\n") + 1]
    assert any("1 kernels have no launch" in note for note in parse(cut.encode(), "x").notes)


EVENT = {"ph": "X", "cat": "kernel", "name": "k", "ts": 1.0, "dur": 1.0, "args": {"stream": 7, "grid": [1, 1, 1]}}


def test_a_page_keeps_so_many_events_and_no_more() -> None:
    data = gzip.compress(json.dumps({"traceEvents": [EVENT] * 200}).encode())
    assert len(parse(data, "x", Limits(events=200)).kernels) == 200
    with pytest.raises(BadFile, match="more than 199 events"):
        parse(data, "x", Limits(events=199))


def test_what_unpacks_beyond_the_limit_is_refused_while_it_streams() -> None:
    packer = zlib.compressobj(9, wbits=31)
    event = (json.dumps(EVENT) + ",").encode() * 1000
    packed = packer.compress(b'{"traceEvents": [') + b"".join(packer.compress(event) for _ in range(100))
    with pytest.raises(BadFile, match="unpacks to more than 1 MiB, the limit here"):
        parse(packed + packer.flush(), "x", Limits(unpacked_bytes=1 << 20))
    with pytest.raises(BadFile, match="more than 1 MiB"):
        parse(b"[" + event * 20, "x", Limits(unpacked_bytes=1 << 20))

"""Exports of Nsight Systems: one recorded run read from both tools says the same; damaged ones are refused."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import nsight
import pytest

from pipewave.errors import BadFile
from pipewave.traces import Report, explain_trace
from pipewave.traces.idle import Idle, idle
from pipewave.traces.reader import parse, read
from pipewave.traces.trace import Trace

ROOT = Path(__file__).parents[2]
RUN = ROOT / "data" / "measured" / "h100" / "traces" / "trace-hf-llama-2layers-decode-modules.json.gz"
SUMS = b'"Time (%)","Total Time (ns)","Instances","Avg (ns)","Name"\n40.1,1000,2,500.0,"kernel"\n'


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return nsight.sqlite(RUN, tmp_path_factory.mktemp("nsys") / "run.sqlite")


def idle_of(trace: Trace) -> Idle:
    found = idle(trace)
    assert found is not None
    return found


def test_an_export_holds_the_kernels_of_the_run(export: Path) -> None:
    ours, theirs = read(export), read(RUN)
    assert ours.gpu == theirs.gpu
    assert ours.gpu_us == pytest.approx(theirs.gpu_us, rel=1e-4)
    pairs = list(zip(ours.kernels, theirs.kernels, strict=True))
    assert all((a.name, a.grid, a.block) == (b.name, b.grid, b.block) for a, b in pairs if b.grid)
    assert all(a.arg("bytes") == b.arg("bytes") for a, b in pairs if b.name.startswith("Mem"))
    assert all([op.name for op in a.ops if op.dims] == [op.name for op in b.ops if op.dims] for a, b in pairs)
    assert all([op.dims for op in a.ops if op.dims] == [op.dims for op in b.ops if op.dims] for a, b in pairs)


def test_bytes_are_read_as_files_are(export: Path) -> None:
    assert parse(export.read_bytes(), str(export)) == read(export)


def test_waits_and_their_causes_are_the_same(export: Path) -> None:
    ours, theirs = idle_of(read(export)), idle_of(read(RUN))
    assert ours.span_us == pytest.approx(theirs.span_us, rel=1e-4)
    assert ours.causes == pytest.approx(theirs.causes, rel=0.01, abs=2.0)
    assert theirs.causes["cpu"] > 0.5 * theirs.idle_us  # eager decoding: the host cannot keep up
    assert theirs.causes["sync"] > 0


def products(report: Report) -> dict[tuple[int, int, int], tuple[int, float]]:
    calls = [entry for entry in report.entries if entry.family == "gemm"]
    sums: dict[tuple[int, int, int], tuple[int, float]] = {}
    for one in calls:
        key = (one.call["m"], one.call["n"], one.call["k"])
        count, us = sums.get(key, (0, 0.0))
        sums[key] = (count + one.count, us + one.total_measured_us)
    return sums


def test_products_are_read_from_ranges_as_from_operators(export: Path) -> None:
    """Types come from the kernels' names there."""
    ours, theirs = products(explain_trace(export)), products(explain_trace(RUN))
    assert ours.keys() == theirs.keys()
    assert len(ours) >= 5
    for key, (count, us) in theirs.items():
        assert ours[key] == (count, pytest.approx(us, rel=1e-3))


def test_layers_come_from_ranges_of_modules(export: Path) -> None:
    rows = explain_trace(export).to_dict()["by_layer"]
    assert [row["name"] for row in rows] == ["layer 0", "layer 1", "outside of layers"]
    assert rows[0]["calls"] == rows[1]["calls"] > 0


@pytest.mark.parametrize("launches", [True, False])
def test_tables_of_stats_hold_the_run(launches: bool) -> None:
    ours, theirs = parse(nsight.tables(RUN, launches=launches).encode(), "stats.csv"), read(RUN)
    assert ours.gpu == theirs.gpu
    assert len(ours.kernels) == len(theirs.kernels)
    assert ours.gpu_us == pytest.approx(theirs.gpu_us, rel=1e-4)
    causes = idle_of(ours).causes
    assert (causes["unknown"] < 0.1 * sum(causes.values())) == launches


def test_sums_are_refused_with_the_report_to_print() -> None:
    with pytest.raises(BadFile, match="cuda_gpu_trace"):
        parse(SUMS, "sums.csv")


def test_a_graph_as_a_whole_is_listed_with_its_remedy(export: Path, tmp_path: Path) -> None:
    copy = tmp_path / "graph.sqlite"
    copy.write_bytes(export.read_bytes())
    base = sqlite3.connect(copy)
    base.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId "
                 "INTEGER NOT NULL, contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER)")  # fmt: skip
    base.execute("INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE VALUES (1000, 51000, 0, 1, 7, 99)")
    base.commit()
    base.close()
    unknown = [row for row in explain_trace(copy).unknown if "cuda-graph-trace=node" in row.name]
    assert [row.total_measured_us for row in unknown] == [50.0]


def test_a_view_in_the_place_of_a_table_is_not_run(tmp_path: Path) -> None:
    path = tmp_path / "endless.sqlite"
    base = sqlite3.connect(path)
    base.execute("CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 "
                 "FROM n) SELECT x AS start, x AS end FROM n")  # fmt: skip
    base.commit()
    base.close()
    with pytest.raises(BadFile, match="no GPU kernels"):
        read(path)


@pytest.mark.parametrize("at", range(0, 20_000, 997))
def test_damaged_exports_are_refused_or_read(export: Path, at: int) -> None:
    data = bytearray(export.read_bytes())
    data[100 + at] ^= 0x55
    try:
        parse(bytes(data), "damaged.sqlite")
    except BadFile:
        pass

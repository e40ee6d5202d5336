"""Files to traces: formats, joins to operators, and typed errors for whatever is damaged or foreign."""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipewave.errors import BadFile, PipewaveError
from pipewave.traces import chrome, explain_trace
from pipewave.traces.reader import parse, read
from tests.sampled import examples

ROOT = Path(__file__).parents[1]
TRACES = ROOT.parent / "data" / "measured" / "h200" / "traces"
PREFILL = TRACES / "trace-Llama-3.1-8B-tp1-4layers-eager-prefill.json.gz"
NCU = ROOT / "data" / "traces" / "ncu-h200.csv"
DATA = PREFILL.read_bytes()
PLAIN = gzip.decompress(DATA)


def event(name: str, ts: float, dur: float, cat: str = "kernel", **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "tid": 1, "args": args}


def trace_of(*events: dict[str, Any]) -> bytes:
    return json.dumps({"deviceProperties": [{"name": "NVIDIA H200"}], "traceEvents": list(events)}).encode()


def test_plain_and_gzip_are_the_same_trace() -> None:
    assert parse(PLAIN, "x") == parse(DATA, "x") == parse(gzip.compress(PLAIN[:99]) + gzip.compress(PLAIN[99:]), "x")


def test_gpu_steps_and_durations_are_those_of_the_events() -> None:
    trace = read(PREFILL)
    events = json.loads(PLAIN)["traceEvents"]
    work = [e["dur"] for e in events if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    assert trace.gpu == "NVIDIA H200"
    assert trace.gpu_us == pytest.approx(sum(work))
    assert len(trace.kernels) == len(work)
    assert (trace.steps[0].requests, trace.steps[0].tokens) == (1, 2048)


def test_kernels_carry_the_operators_open_when_they_were_launched() -> None:
    trace = parse(
        trace_of(
            event("outer", 0, 100, "cpu_op", **{"External id": 1, "Input Dims": [[4, 8]], "Input type": ["float"]}),
            event("inner", 10, 20, "cpu_op", **{"External id": 2}),
            event("launch", 15, 1, "cuda_runtime", correlation=7),
            event("late launch", 50, 1, "cuda_runtime", correlation=8),
            event("k", 200, 5, correlation=7, grid=[3, 1, 1]),
            event("k2", 300, 5, correlation=8),
        ),
        "x",
    )
    first, second = trace.kernels
    assert [op.name for op in first.ops] == ["outer", "inner"]
    assert [op.name for op in second.ops] == ["outer"]
    assert first.ops[0].shape(0) == (4, 8)
    assert first.grid == (3, 1, 1)


def test_ncu_tables_wide_and_long() -> None:
    trace = read(NCU)
    assert trace.gpu == "NVIDIA H200"
    assert trace.protocol == "cold"
    assert len(trace.kernels) > 30
    long = (
        '==PROF== x\n"ID","Kernel Name","Grid Size","Metric Name","Metric Unit","Metric Value"\n'
        '"0","nvjet_sm90_tst_64x32_64x16_4x1_v_bz_TNT","(4, 24, 1)","Duration","us","18.5"\n'
    )
    kernel = parse(long.encode(), "x").kernels[0]
    assert (kernel.duration_us, kernel.grid) == (18.5, (4, 24, 1))


def test_units_of_ncu() -> None:
    table = '"ID","Kernel Name","Grid Size","gpu__time_duration.sum"\n"","","","{}"\n"0","k","(1, 1, 1)","1,500"\n'
    found = {unit: parse(table.format(unit).encode(), "x").kernels[0].duration_us for unit in ("ns", "us", "ms")}
    assert found == {"ns": pytest.approx(1.5), "us": 1500.0, "ms": 1.5e6}


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "byte 0"),
        (b"PNG", "byte 0"),
        (b"{}", "traceEvents"),
        (b"[]", "no GPU kernels"),
        (b'{"traceEvents": []}', "no GPU kernels"),
        (b'{"traceEvents": [{"ph": "X"', "truncated at byte 27"),
        (b'{"traceEvents": [}', "byte 17"),
        (b"[" * 100_000, "not valid JSON"),
        (DATA[:1000], "truncated: the gzip stream ends early at byte 1000"),
        (DATA[:500] + b"\0" * 64 + DATA[564:], "corrupted gzip"),
        (trace_of(event("k", 0, -1)), "lasts -1"),
        (trace_of(event("k", 10**400, 1)), "no finite 'ts'"),
        (b'"ID","Kernel Name"\n"0","k"\n', "gpu__time_duration.sum"),
    ],
)
def test_damage_is_a_bad_file_that_says_where(data: bytes, says: str) -> None:
    with pytest.raises(BadFile, match=says.replace("(", r"\(")):
        parse(data, "x")


@pytest.mark.parametrize("padding", [0, 1, 2, 3])
def test_where_a_file_is_cut_into_pieces_does_not_matter(padding: int, monkeypatch: pytest.MonkeyPatch) -> None:
    text = trace_of(event("é" * (50 + padding), 0, 5, correlation=1), event("k", 10, 12345.625, grid=[3, 1, 1]))
    whole = parse(text, "x")
    monkeypatch.setattr("pipewave.traces.reader.CHUNK", 7)
    assert parse(text, "x") == whole == parse(gzip.compress(text), "x")


def test_events_that_nobody_looks_at_are_not_kept() -> None:
    frames = [event(f"frame{i}", i, 1, "python_function") for i in range(50)]
    found = chrome.document(iter([trace_of(*frames, event("k", 0, 1))]), "x", chrome.thinned, 1000)
    assert [kept["name"] for kept in found["traceEvents"]] == ["k"]
    assert found["deviceProperties"] == [{"name": "NVIDIA H200"}]


def test_a_small_file_that_unpacks_to_gigabytes_is_refused_early() -> None:
    packer = zlib.compressobj(9, wbits=31)
    zeros = b" " * (1 << 20)
    bomb = packer.compress(b'{"traceEvents": [') + b"".join(packer.compress(zeros) for _ in range(99)) + packer.flush()
    with pytest.raises(BadFile, match="100 times its size"):
        parse(bomb, "x")


def test_a_single_value_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipewave.traces.chrome.LARGEST_VALUE", 1000)
    monkeypatch.setattr("pipewave.traces.reader.CHUNK", 100)
    with pytest.raises(BadFile, match="more than 1,000 characters"):
        parse(trace_of(event("k" * 10_000, 0, 1)), "x")


def test_a_missing_file_is_a_bad_file(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="cannot be read"):
        read(tmp_path / "none.json")


@given(st.integers(0, len(DATA) - 1))
@examples(30)
def test_no_truncated_gzip_is_taken_for_a_trace(length: int) -> None:
    with pytest.raises(BadFile):
        parse(DATA[:length], "x")


@given(st.integers(0, len(PLAIN.rstrip()) - 1))
@examples(20)
def test_truncation_is_told_near_the_byte_where_the_file_ends(length: int) -> None:
    with pytest.raises(BadFile) as caught:
        parse(PLAIN[:length], "x")
    if length > 16:
        assert " at byte " in caught.value.message or "traceEvents" in caught.value.message


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just(10**400),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=8,
)
FIELDS = st.fixed_dictionaries(
    {"ph": st.just("X"), "cat": st.sampled_from(["kernel", "cpu_op", "cuda_runtime", "user_annotation", "gpu_memcpy"])},
    optional={
        "name": VALUES | st.sampled_from(["aten::mm", "nvjet", "fused_moe_kernel", "_vllm_fa3_C::fwd", "FlashAttnFwdSm90"])
        | st.just("execute_context_99999999999999(99999999999999)_generation_1(1)"),
        "ts": VALUES | st.floats(0, 100),
        "dur": VALUES | st.floats(0, 100),
        "tid": VALUES,
        "args": VALUES
        | st.dictionaries(
            st.sampled_from(
                ["External id", "correlation", "Input Dims", "Input type", "Concrete Inputs", "grid", "bytes", "stream"]
            ),
            VALUES | st.integers(0, 3) | st.lists(st.lists(st.integers(0, 1 << 60), max_size=3), max_size=14),
        ),
    },
)  # fmt: skip


@given(st.lists(FIELDS, max_size=6) | VALUES)
@examples(150)
def test_random_documents_raise_only_typed_errors(events: Any) -> None:
    document = {"deviceProperties": [{"name": "NVIDIA H200"}], "traceEvents": events}
    try:
        explain_trace(parse(json.dumps(document).encode(), "x"))
    except PipewaveError:
        pass

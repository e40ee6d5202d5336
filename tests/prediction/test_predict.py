"""The Python face: laws of the design, tables in and out, typed errors."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pipewave as pw
from pipewave.calls.families import CLASSES, Call, from_dict
from pipewave.calls.operators import (
    AttentionModule,
    BatchedGemm,
    CausalConv1d,
    DeltaNet,
    HyperConnection,
    Mamba2,
    MegaMoe,
    MoeAllToAll,
)
from pipewave.errors import BadInput, MissingField, UnknownField, UnknownGPU, UnsupportedDtype
from pipewave.prediction.columns import calls_of

SIZES = st.integers(1, 1 << 15)
GPUS = st.sampled_from(["H200", "A100", "L40S", "B200", "RTX 4090", "H20", "GB300"])
PROTOCOLS = st.sampled_from(["cold", "serving", "graph", "profiler_warm"])


@st.composite
def any_call(draw: st.DrawFn) -> Call:
    """A well-formed call of any family."""
    kernel = draw(st.sampled_from(sorted(CLASSES)))
    lens = draw(st.lists(st.tuples(st.integers(1, 4096), st.integers(0, 8192)), min_size=1, max_size=6))
    q, kv = [a for a, _ in lens], [a + b for a, b in lens]
    match kernel:
        case "gemm":
            return pw.gemm(draw(SIZES), draw(SIZES), draw(SIZES))
        case "attention":
            group = draw(st.sampled_from([1, 4, 8]))
            return pw.attention(
                q, kv, 8 * group, 8, draw(st.sampled_from([64, 128])), window=draw(st.sampled_from([None, 128]))
            )
        case "mla":
            return pw.mla(q, kv, draw(st.sampled_from([1, 16, 128])), draw(st.sampled_from(["context", "generation"])))
        case "fused_moe":
            return pw.fused_moe(
                draw(SIZES), 64, draw(st.integers(1, 8)), 2048, 1024, part=draw(st.sampled_from(["all", "w13", "w2"]))
            )
        case "rmsnorm":
            return pw.rmsnorm(draw(SIZES), draw(SIZES), fused_add=draw(st.booleans()))
        case "silu_and_mul":
            return pw.silu_and_mul(draw(SIZES), draw(SIZES))
        case "elementwise":
            return pw.elementwise(draw(SIZES), draw(SIZES))
        case "delta_net":
            return DeltaNet(q, 8, draw(st.sampled_from([8, 16, 32])), kind=draw(st.sampled_from(["gdn", "kda"])))
        case "causal_conv1d":
            return CausalConv1d(q, draw(st.integers(64, 16_384)))
        case "mamba2":
            return Mamba2(q, draw(st.sampled_from([16, 64, 128])))
        case "attention_module":
            kind = draw(st.sampled_from(["mla", "dsa", "msa", "csa", "hca"]))
            cache = draw(st.sampled_from([None, "fp8"]))
            return AttentionModule(q, kv, draw(st.sampled_from([8, 16, 128])), kind, kv_dtype=cache)
        case "hyper_connection":
            return HyperConnection(draw(SIZES), 4096, part=draw(st.sampled_from(["pre", "post"])))
        case "moe_all_to_all":
            backend = draw(st.sampled_from(["deepep_ht", "deepep_ll", "nvlink_one_sided"]))
            return MoeAllToAll(draw(SIZES), 7168, 8, 256, draw(st.sampled_from([4, 8, 32])), backend=backend)
        case "mega_moe":
            return MegaMoe(draw(SIZES), 256, 8, 4096, 2048, 8, dtype="bf16")
        case "batched_gemm":
            return BatchedGemm(draw(st.integers(1, 128)), draw(SIZES), 512, 128)
    return CLASSES[kernel](draw(st.integers(1, 1 << 30)), draw(st.sampled_from([2, 4, 8])))  # type: ignore[call-arg]


@given(any_call(), GPUS, PROTOCOLS)
def test_every_answer_is_ordered_and_above_its_floor(call: Call, gpu: str, protocol: str) -> None:
    p = pw.predict(call, gpu, protocol=protocol)
    numbers = [p.latency_us, p.low_us, p.high_us, p.floor_us, p.ceiling_us]
    assert all(np.isfinite(numbers))
    assert 0 < p.floor_us <= p.low_us <= p.latency_us <= p.high_us
    assert p.ceiling_us >= p.floor_us


@given(st.lists(any_call(), min_size=1, max_size=12), GPUS, PROTOCOLS)
def test_many_at_once_are_the_same_as_one_by_one(calls: list[Call], gpu: str, protocol: str) -> None:
    together = pw.predict(calls, gpu, protocol=protocol)
    for call, answer in zip(calls, together, strict=True):
        alone = pw.predict(call, gpu, protocol=protocol)
        assert dataclasses.replace(alone, notes=()) == pytest.approx(
            dataclasses.replace(answer, notes=())
        ) or np.isclose(alone.latency_us, answer.latency_us, rtol=1e-3)  # nets sum in single precision


MAMBA = {"kernel": "mamba2", "q_lens": [2048, 100], "heads": 64, "head_dim": 64, "state_dim": 128, "groups": 8}
ROUTED = {"kernel": "fused_moe", "tokens": 16, "hidden": 2048, "inter": 768, "topk": 2, "experts": 8}
SHARED = [MAMBA | {"chunk": size} for size in (64, 256, 128)], [
    ROUTED | {"routing": [9, 1, 1, 1, 5, 5, 5, 5], "ep": ranks} for ranks in (1, 4, 2)]  # fmt: skip


@pytest.mark.parametrize("cases", SHARED)
def test_calls_of_one_batch_keep_sizes_of_their_own(cases: list[dict[str, Any]]) -> None:
    together = pw.predict(cases, "H200").latency_us
    assert together == pytest.approx([pw.predict(from_dict(case), "H200").latency_us for case in cases], rel=1e-5)


@given(
    any_call(), st.sampled_from(["H200", "L40S"]), st.sampled_from(["dram_gbps", "l2_gbps", "sms", "boost_clock_mhz"])
)
def test_a_larger_gpu_never_raises_the_floor(call: Call, name: str, field: str) -> None:
    small = pw.find(name)
    large = small.what_if(**{field: round(1.25 * getattr(small, field))})
    assert pw.predict(call, large).floor_us <= pw.predict(call, small).floor_us * (1 + 1e-9)


def test_tables_of_arrays_and_frames() -> None:
    m = np.array([1, 64, 4096])
    from_arrays = pw.predict({"kernel": "gemm", "m": m, "n": 4096, "k": 4096}, "H200")
    one_by_one = [pw.predict(pw.gemm(int(rows), 4096, 4096), "H200").latency_us for rows in m]
    assert np.allclose(from_arrays.latency_us, one_by_one, rtol=1e-5)
    assert from_arrays.to_dict()["bound"] == [answer.bound for answer in from_arrays]
    frame = pd.DataFrame({"kernel": "gemm", "m": m, "n": 4096, "k": 4096})
    assert np.allclose(pw.predict(frame, "H200").to_pandas()["latency_us"], one_by_one, rtol=1e-5)


@pytest.mark.parametrize(
    "table",
    [
        {"kernel": "gemm", "m": np.arange(1, 200), "n": 4096, "k": 512, "dtype": "fp8", "quantize": True},
        {"kernel": ["gemm"] * 3, "m": [1, 64, 4096], "n": [64] * 3, "k": 128, "tile": None, "stack": "sglang-0.5.14"},
        {"kernel": "rmsnorm", "rows": [1, 512], "dim": (64, 4096), "fused_add": [True, True]},
        {"kernel": "elementwise", "bytes_read": [1 << 20, 1 << 30], "bytes_written": 0},
        {"kernel": "all_reduce", "bytes": [1 << 10, 1 << 30], "world": 4},
        {"kernel": "gemm", "m": [8, 8], "n": 64, "k": 64, "dtype": ["bf16", "fp8"]},
        {"kernel": "gemm", "m": np.array([8.0, 16.0]), "n": 64, "k": 64},
    ],
)
def test_a_table_answers_as_its_rows_do(table: dict[str, object]) -> None:
    found = pw.predict(table, "H200", protocol="graph")
    rows = pw.predict(calls_of(table), "H200", protocol="graph")
    assert len(found) == len(rows)
    for name in ("latency_us", "low_us", "high_us", "floor_us", "ceiling_us"):
        assert np.allclose(getattr(found, name), getattr(rows, name), rtol=1e-5)
    assert [(a.bound, a.impl, a.stack, a.basis, a.notes) for a in found] == [
        (a.bound, a.impl, a.stack, a.basis, a.notes) for a in rows
    ]


@pytest.mark.parametrize(
    "m", [[8, True], [8, 2**31], [8, None], [8, 1.5], [8, "8"], np.array([8, 0]), np.array([1.0, 0.5])]
)
def test_rows_that_no_call_may_be_are_refused_in_arrays_too(m: object) -> None:
    with pytest.raises(BadInput, match="row 1"):
        pw.predict({"kernel": "gemm", "m": m, "n": 8, "k": 8}, "H200")


def test_a_gpu_that_a_case_names_is_the_one_it_is_answered_for() -> None:
    case = {"kernel": "gemm", "m": 64, "n": 4096, "k": 4096}
    alone = pw.predict(pw.gemm(64, 4096, 4096), "L40S").latency_us
    for asked in (case | {"gpu": "L40S"}, [case | {"gpu": "L40S"}], pd.DataFrame([case | {"gpu": "L40S"}])):
        assert pw.predict(asked, "H200")[0].latency_us == alone == pw.predict(asked)[0].latency_us
    for asked in (case | {"gpu": "NOPE"}, [case | {"gpu": "NOPE"}], pd.DataFrame([case | {"gpu": "NOPE"}])):
        with pytest.raises(UnknownGPU):
            pw.predict(asked, "H200")
    with pytest.raises(MissingField):
        pw.predict(case)


def test_rows_of_several_gpus_and_protocols_come_back_in_order() -> None:
    gpus, protocols, m = ["L40S", "H200", "L40S", None], ["graph", None, "cold", "graph"], [1, 64, 512, 4096]
    table = {"kernel": "gemm", "m": m, "n": 2048, "k": 2048, "gpu": gpus, "protocol": protocols}
    found = pw.predict(table, "B200")
    for i, answer in enumerate(found):
        one = pw.predict(pw.gemm(m[i], 2048, 2048), gpus[i] or "B200", protocol=protocols[i] or "cold")
        assert answer.latency_us == pytest.approx(one.latency_us, rel=1e-6)
        assert found.above_idle_j[i] > 0


@pytest.mark.parametrize("column", [{"protocol": ["graph", 5]}, {"gpu": ["H200", []]}])
def test_a_row_that_names_no_place_is_refused(column: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match="must be a name"):
        pw.predict({"kernel": "gemm", "m": [1, 2], "n": 64, "k": 64, **column}, "H200")


def test_a_name_missing_in_a_frame_is_that_of_the_call() -> None:
    named = {"gpu": pd.array(["H100", pd.NA], "string"), "stack": pd.array([pd.NA, pd.NA], "string")}
    found = pw.predict(pd.DataFrame({"kernel": "gemm", "m": [64, 64], "n": 512, "k": 512} | named), "H200")
    alone = [pw.predict(pw.gemm(64, 512, 512), gpu).latency_us for gpu in ("H100", "H200")]
    assert found.latency_us == pytest.approx(alone, rel=1e-6)


def test_a_frame_keeps_its_index_and_its_other_columns() -> None:
    frame = pd.DataFrame(
        {"kernel": "gemm", "m": [1, 64], "n": 512, "k": 512, "layer": ["a", "b"], "latency_us": [3.0, 4.0]}
    )
    frame.index = pd.Index(["x", "y"])
    found = pw.predict(frame, "H200").to_pandas()
    assert list(found.index) == ["x", "y"]
    assert list(found["layer"]) == ["a", "b"]
    assert list(found["latency_us_given"]) == [3.0, 4.0]
    with pytest.raises(UnknownField, match="did you mean dtype"):
        pw.predict(frame.assign(dtypes="fp8"), "H200")


@pytest.mark.parametrize("asked", [None, 5, "gemm", [1], [None], [{"kernel": "gemm"}], object()])
def test_what_is_no_call_is_refused_by_name(asked: Any) -> None:
    with pytest.raises(BadInput):
        pw.predict(asked, "H200")


@pytest.mark.parametrize("software", [{"stack": []}, {"impl": 3}, {"stack": ""}, {"protocol": []}])
def test_software_is_text(software: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        pw.predict(pw.gemm(1, 2, 3), "H200", **software)


def test_predictions_add_up() -> None:
    one, other = (pw.predict(pw.gemm(m, 4096, 4096), "H200") for m in (64, 4096))
    both = sum([one, other])
    assert isinstance(both, pw.Prediction)
    assert both.latency_us == pytest.approx(one.latency_us + other.latency_us)
    assert both.low_us <= both.latency_us <= both.high_us
    assert both.bound == other.bound
    assert json.loads(json.dumps(both.to_dict()))["notes"] == []


def test_a_bad_row_of_a_table_is_named() -> None:
    with pytest.raises(BadInput, match="row 1: m = 0"):
        pw.predict({"kernel": "gemm", "m": [4, 0], "n": 8, "k": 8}, "H200")
    with pytest.raises(BadInput, match="column 'n' has 1 rows"):
        pw.predict({"kernel": "gemm", "m": [4, 2], "n": [8], "k": 8}, "H200")


def test_a_case_of_the_contract_is_a_table_of_one_row() -> None:
    case = {"kernel": "attention", "heads": 32, "kv_heads": 8, "head_dim": 128} | {
        "q_lens": [1, 1],
        "kv_lens": [2048, 512],
    }
    alone = pw.predict(pw.attention([1, 1], [2048, 512], 32, 8), "H200").latency_us
    assert pw.predict(case, "H200").latency_us == pytest.approx([alone])
    ragged = pw.predict(case | {"q_lens": [[1, 1], [1]], "kv_lens": [[2048, 512], [64]]}, "H200")
    assert len(ragged) == 2 and ragged.latency_us[0] == pytest.approx(alone)
    fewer_heads = pw.predict(case | {"heads": [32, 16]}, "H200")
    assert len(fewer_heads) == 2 and fewer_heads.latency_us[0] == pytest.approx(alone)


def test_what_cannot_run_is_an_error() -> None:
    with pytest.raises(UnsupportedDtype, match="A100 cannot run dtype 'fp8'"):
        pw.predict(pw.gemm(8, 8, 8, dtype="fp8"), "A100")
    with pytest.raises(UnknownGPU, match="did you mean H200"):
        pw.predict(pw.gemm(8, 8, 8), "H201")
    with pytest.raises(BadInput, match="protocol"):
        pw.predict(pw.gemm(8, 8, 8), "H200", protocol="warm")


@pytest.mark.parametrize("gpu", ["L40S", "RTX 4090", "A100", "H200"])
def test_cold_weights_arrive_no_faster_than_dram_ever_delivered(gpu: str) -> None:
    """Cards of which only warm replays were measured must not promise their weights out of the L2."""
    one = pw.predict(pw.gemm(16, 4096, 4096), gpu)
    dram_us = 2 * 4096 * 4096 / (pw.find(gpu).dram_peak_gbps * 1e3)
    assert one.latency_us >= 1.1 * dram_us

"""Calls are well formed by construction; every bad value names its field."""

from __future__ import annotations

import io
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pipewave as pw
import pipewave.calls.families as calls
from pipewave.calls.fields import FieldsOf, rules
from pipewave.errors import BadInput, MissingField, PipewaveError, UnknownField, UnknownKernel
from pipewave.prediction.jsonl import answer_stream

JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.lists(st.integers(), max_size=3)
)


def test_defaults_are_those_of_the_contract() -> None:
    call = calls.from_dict({"kernel": "gemm", "m": 1, "n": 2, "k": 3})
    assert (call.dtype, call.quantize, call.tile, call.stack) == ("bf16", False, None, None)
    assert calls.attention([1], [9], 8, 2).causal


def test_fields_of_a_call_read_as_a_dict_of_them() -> None:
    call = calls.attention([1, 2], [9, 9], 8, 2)
    view = FieldsOf(call)
    assert dict(view) == {name: getattr(call, name) for name in rules(type(call))}
    assert (view["heads"], view.get("window", 7), view.get("no_such", 7), len(view)) == (8, None, 7, len(dict(view)))
    with pytest.raises(KeyError, match="no_such"):
        view["no_such"]


@pytest.mark.parametrize(
    ("case", "error", "field"),
    [
        ({"kernel": "gemm", "m": 0, "n": 1, "k": 1}, BadInput, "m"),
        ({"kernel": "gemm", "m": -4, "n": 1, "k": 1}, BadInput, "m"),
        ({"kernel": "gemm", "m": 10**12, "n": 1, "k": 1}, BadInput, "m"),
        ({"kernel": "gemm", "m": math.nan, "n": 1, "k": 1}, BadInput, "m"),
        ({"kernel": "gemm", "m": "8", "n": 1, "k": 1}, BadInput, "m"),
        ({"kernel": "gemm", "m": True, "n": 1, "k": 1}, BadInput, "m"),
        ({"kernel": "gemm", "m": 1, "n": 1}, MissingField, "k"),
        ({"kernel": "gemm", "m": 1, "n": 1, "k": 1, "dtpye": "bf16"}, UnknownField, "dtpye"),
        ({"kernel": "gemm", "m": 1, "n": 1, "k": 1, "dtype": "bf61"}, BadInput, "dtype"),
        ({"kernel": "gemm", "m": 1, "n": 1, "k": 1, "tile": [1, 2]}, BadInput, "tile"),
        ({"kernel": "gemmm"}, UnknownKernel, "kernel"),
        ({}, UnknownKernel, "kernel"),
        ({"kernel": "attention", "q_lens": [1, 2], "kv_lens": [2], "heads": 8, "kv_heads": 8, "head_dim": 64}, BadInput, "kv_lens"),
        ({"kernel": "attention", "q_lens": [3], "kv_lens": [2], "heads": 8, "kv_heads": 8, "head_dim": 64}, BadInput, "kv_lens"),
        ({"kernel": "attention", "q_lens": [], "kv_lens": [], "heads": 8, "kv_heads": 8, "head_dim": 64}, BadInput, "q_lens"),
        ({"kernel": "attention", "q_lens": [1], "kv_lens": [2], "heads": 8, "kv_heads": 3, "head_dim": 64}, BadInput, "heads"),
        ({"kernel": "fused_moe", "tokens": 4, "experts": 8, "topk": 9, "hidden": 64, "inter": 64}, BadInput, "topk"),
        ({"kernel": "fused_moe", "tokens": 4, "experts": 8, "topk": 2, "hidden": 64, "inter": 64, "ep": 3}, BadInput, "ep"),
        ({"kernel": "fused_moe", "tokens": 4, "experts": 8, "topk": 2, "hidden": 64, "inter": 64, "routing": "zipf"}, BadInput, "routing"),
        ({"kernel": "fused_moe", "tokens": 4, "experts": 4, "topk": 2, "hidden": 64, "inter": 64, "routing": [2, 2, 2, 1]}, BadInput, "routing"),
        ({"kernel": "fused_moe", "tokens": 4, "experts": 4, "topk": 2, "hidden": 64, "inter": 64, "ep": 2, "routing": [8, 1]}, BadInput, "routing"),
        ({"kernel": "all_reduce", "bytes": 8, "world": 1}, BadInput, "world"),
        ({"kernel": "all_reduce", "bytes": 8, "world": 6, "nodes": 4}, BadInput, "nodes"),
    ],
)  # fmt: skip
def test_bad_values_name_their_field(case: dict[str, object], error: type[PipewaveError], field: str) -> None:
    with pytest.raises(error) as caught:
        calls.from_dict(case)
    assert caught.value.field == field
    assert field in caught.value.message


@pytest.mark.slow
@given(
    st.sampled_from(sorted(calls.CLASSES)),
    st.dictionaries(
        st.sampled_from(["m", "n", "k", "q_lens", "rows", "dim", "bytes", "world", "tokens", "routing", "dtype"]), JUNK
    ),
)
def test_whatever_is_given_either_builds_or_raises_ours(kernel: str, fields: dict[str, object]) -> None:
    try:
        call = calls.from_dict({"kernel": kernel, **fields})
    except PipewaveError as error:
        assert error.message
    else:
        assert calls.from_dict(call.to_dict()) == call


def test_lengths_that_are_no_list_are_a_bad_value() -> None:
    with pytest.raises(BadInput, match="q_lens = 1: must be a list"):
        pw.attention(1, 2048, 32, 8)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="kv_lens"):
        pw.mla([1], "2048", 16, "generation")


@pytest.mark.parametrize(("said", "meant"), [("bfloat16", "bf16"), ("float16", "fp16"), ("float8_e4m3fn", "fp8")])
def test_types_go_by_the_names_of_frameworks_too(said: str, meant: str) -> None:
    assert pw.gemm(1, 2, 3, dtype=said) == pw.gemm(1, 2, 3, dtype=meant)
    line = json.dumps({"id": 1, "kernel": "gemm", "m": 8, "n": 512, "k": 512, "dtype": said})
    out = io.StringIO()
    answer_stream([line, line.replace(said, meant)], out, gpu="H200")
    one, other = out.getvalue().splitlines()
    assert one == other

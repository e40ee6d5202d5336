"""Quick ways to an answer are taken where they may be and nowhere else; answers add up, slice and join."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest

import pipewave as pw
from pipewave.calls.fields import required, rules
from pipewave.errors import BadInput, MissingField
from pipewave.gpus import find
from pipewave.kernels import family_of
from pipewave.nets.weights_metadata import LEVELS
from pipewave.prediction import jsonl, requests
from pipewave.prediction.answers import LATENCIES, Predictions
from pipewave.prediction.columns import calls_of, group_key, numeric_fields
from pipewave.prediction.jsonl import Counts, answer_lines, check_id

GEMM = {"kernel": "gemm", "m": 64, "n": 4096, "k": 4096, "dtype": "bf16"}


def _plain(*cases: dict[str, object]) -> bool:
    family = family_of("gemm")
    return jsonl._plainly_valid(family, group_key(family, GEMM), cases)


def test_whole_columns_pass_only_where_every_case_is_complete_and_known() -> None:
    more = {"id": "a", "gpu": "H200", "protocol": "cold"}
    assert _plain(GEMM, GEMM | more)
    assert not _plain(GEMM, {name: value for name, value in GEMM.items() if name != "k"})
    assert not _plain(GEMM, GEMM | {"colour": "red"})
    assert not _plain(GEMM, GEMM | {"m": "64"})
    assert not _plain(GEMM, GEMM | {"m": 64.0})
    assert not _plain(GEMM, GEMM | {"m": True})


@pytest.mark.parametrize("name", ["m", "n", "k"])
def test_sizes_pass_from_the_least_to_the_largest_allowed(name: str) -> None:
    rule = rules(family_of("gemm").call)[name]
    assert _plain(GEMM | {name: rule.low}, GEMM | {name: rule.high})
    assert not _plain(GEMM | {name: rule.low - 1})
    assert not _plain(GEMM | {name: rule.high + 1})


def test_a_family_with_fields_that_constrain_one_another_is_checked_case_by_case() -> None:
    family = family_of("attention")
    assert "check" in family.call.__dict__ or family.check_on
    case = {"kernel": "attention", "q_lens": [8], "kv_lens": [8], "heads": 8, "kv_heads": 8, "head_dim": 128}
    assert not jsonl._plainly_valid(family, group_key(family, {**case, "dtype": "bf16"}), [case])


def test_sums_keep_the_least_evidence_and_every_name_once() -> None:
    one = pw.predict(pw.gemm(64, 4096, 4096), "H200")
    weak = replace(one, basis="new_architecture", software=LEVELS[-1], impl="other", notes=("far",))
    whole = one + weak + weak
    assert (whole.basis, whole.software, whole.notes) == ("new_architecture", LEVELS[-1], (*one.notes, "far"))
    assert whole.impl == f"{one.impl} + other" and whole.stack == one.stack
    assert sum([one, one]).latency_us == pytest.approx(2 * one.latency_us)
    slow = replace(one, latency_us=10 * one.latency_us, bound="launch")
    assert (one + slow).bound == (slow + one).bound == "launch"
    with pytest.raises(TypeError):
        _ = 1 + one


def _predictions() -> Predictions:
    return pw.predict([pw.gemm(m, 4096, 4096) for m in (1, 64, 4096)], "H200")


def test_answers_slice_and_count_as_lists_do() -> None:
    found = _predictions()
    every = list(found)
    assert len(found) == len(every) == 3
    assert found[-1] == every[2] and list(found[1:]) == every[1:] and list(found[::-1]) == every[::-1]
    assert [one.latency_us for one in every] == found.latency_us.tolist()
    columns = found.to_dict()
    for name in (*LATENCIES, "bound", "basis", "impl", "stack", "notes", "software"):
        assert columns[name] == [getattr(one, name) for one in every], name


def test_parts_are_joined_at_their_numbers_with_their_own_sources() -> None:
    norms = [pw.rmsnorm(8, 4096), pw.rmsnorm(64, 4096)]
    here, there = _predictions(), pw.predict(norms, "H100")
    products = [pw.gemm(m, 4096, 4096).to_dict() | {"gpu": "H200"} for m in (1, 64, 4096)]
    others = [norm.to_dict() | {"gpu": "H100"} for norm in norms]
    whole = pw.predict([products[1], others[0], products[2], others[1], products[0]])
    assert [whole[i] for i in (4, 0, 2)] == list(here)
    assert [whole[i] for i in (1, 3)] == list(there)
    assert whole.work_j[[4, 0, 2]].tolist() == here.work_j.tolist()
    assert len(whole.sources) == len(here.sources) + len(there.sources)


def test_lines_are_counted_as_answers_or_failures() -> None:
    counts = Counts()
    lines = [json.dumps(GEMM | {"id": 7}), "{", json.dumps(GEMM | {"m": 0}), json.dumps({"kernel": "gemm"})]
    texts = list(answer_lines(lines, "H200", counts))
    assert (counts.answered, counts.failed) == (1, 3)
    assert json.loads(texts[0])["id"] == 7
    assert ["error" in json.loads(text) for text in texts] == [False, True, True, True]
    (nowhere,) = answer_lines([json.dumps(GEMM)], None, counts)
    assert json.loads(nowhere)["error"]["field"] == "gpu"
    for field in ("gpu", "protocol"):  # an empty name is no name left out
        (unnamed,) = answer_lines([json.dumps(GEMM | {field: ""})], "H200", counts)
        assert json.loads(unnamed)["error"]["field"] == field


@pytest.mark.parametrize(
    ("value", "good"),
    [("a", True), (3, True), (0.5, True), (None, True), (float("inf"), False), (float("nan"), False), ([1], False)],
)
def test_an_id_is_text_or_a_finite_number(value: object, good: bool) -> None:
    with nullcontext() if good else pytest.raises(BadInput, match="id: must be"):
        check_id({"id": value})


def test_a_place_is_a_gpu_and_a_protocol_that_are_known() -> None:
    assert requests.where("H200", None) == (find("H200"), "cold")
    assert requests.where("H200", "graph")[1] == "graph"
    with pytest.raises(MissingField, match="name a GPU"):
        requests.where(None, "graph")
    for wrong in ("grahp", 3, None):
        with pytest.raises(BadInput, match="must be one of"):
            requests.check_protocol(wrong)
    with pytest.raises(BadInput, match="did you mean graph"):
        requests.check_protocol("grap")


def test_lists_of_calls_name_places_and_mistakes_by_row() -> None:
    cases = [GEMM | {"gpu": "H100"}, GEMM, GEMM | {"gpu": "H100", "protocol": "graph"}, GEMM | {"gpu": "H100"}]
    found = requests.parts(cases, "H200", None)
    assert [(part.gpu.name, part.protocol, part.rows) for part in found] == [
        ("H100", "cold", [0, 3]), ("H200", "cold", [1]), ("H100", "graph", [2]),
    ]  # fmt: skip
    with pytest.raises(BadInput, match=r"calls\[1\]"):
        requests.parts([GEMM, GEMM | {"m": 0}], "H200", None)
    for wrong in ("gemm", b"gemm", 3, None):
        with pytest.raises(BadInput, match="must be a call, a list"):
            requests.parts(wrong, "H200", None)  # type: ignore[arg-type]


def test_columns_of_a_table_are_of_one_length_and_scalars_of_every_row() -> None:
    calls = calls_of({"kernel": "gemm", "m": [1, 2, 3], "n": np.array([64, 64, 128]), "k": 256})
    assert [(call.m, call.n, call.k) for call in calls] == [(1, 64, 256), (2, 64, 256), (3, 128, 256)]  # type: ignore[attr-defined]
    with pytest.raises(BadInput, match="column 'n' has 2 rows, others have 3"):
        calls_of({"kernel": "gemm", "m": [1, 2, 3], "n": [64, 64], "k": 256})
    (one,) = calls_of({"kernel": "attention", "q_lens": [4, 8], "kv_lens": [4, 8], "heads": 8, "kv_heads": 8,
                           "head_dim": 128})  # fmt: skip
    assert one.q_lens == (4, 8)  # type: ignore[attr-defined]
    assert [calls_of({**GEMM, "stack": [None, float("nan")]})[row].stack for row in (0, 1)] == [None, None]
    assert {"m", "n", "k"} == set(numeric_fields(family_of("gemm"))) & required(family_of("gemm").call)


def test_lines_that_only_together_are_json_are_errors_of_their_own() -> None:
    """Lines are read many at once; none of them may become a part of another."""
    lines = ['{"a": [{"x": 1}', '{"y": 2}]}', '{"c": 1}, {"d": 2}', '{"id": 7}', "[", "]", '"', "{}, 0"]
    counts = Counts()
    found = [json.loads(text) for text in answer_lines([line + "\n" for line in lines], "H200", counts)]
    assert [one["id"] for one in found] == [None, None, None, 7, None, None, None, None]
    assert all("error" in one for one in found)
    assert (counts.answered, counts.failed) == (0, len(lines))

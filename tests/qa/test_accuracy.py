"""Held-out accuracy: the folds are those of training, the cells are right, and drift is seen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import pipewave as pw
from corpus.cases import held_out
from pipewave.errors import BadFile
from pipewave.kernels import group_of, rows_of
from qa.accuracy import FIGURES as COMMITTED
from qa.accuracy import Figures, Key, Row, cases, drifts, family_name, figures, own_rows, read, score, write

KEY = Key("gemm", "H200", "bf16", "torch-2.11", "cublas", "cold")
FIGURES = Figures(100, 5.0, 4.0, -1.0, 90.0, 80.0, 0, 1.7, 0.3)


def test_groups_are_those_of_training() -> None:
    frame = pytest.importorskip("corpus.frame")
    groups = {name: rows.group for name, rows in rows_of().items()}
    for family in set(frame.GROUP_KEYS) & set(groups):
        assert groups[family] == frame.GROUP_KEYS[family]
    assert groups["all_reduce"] == frame.GROUP_KEYS["collectives"]


def test_a_group_holds_all_rows_of_a_weight_shape() -> None:
    groups = {group_of({"kernel": "gemm", "m": m, "n": 4096, "k": 14336}) for m in (1, 77, 8192)}
    assert groups == {"4096,14336"}
    windowless = {"kernel": "attention", "heads": 32, "kv_heads": 8, "head_dim": 128, "window": None}
    assert group_of(windowless) == "32,8,128,0"


@pytest.fixture(scope="module")
def own() -> list[Row]:
    return own_rows()


@pytest.mark.slow
def test_own_rows_are_held_out_and_of_many_families(own: list[Row]) -> None:
    rows = own
    assert len(rows) > 2000
    assert all(held_out(row["case"]) for row in rows)
    assert {"gemm", "attention", "fused_moe", "rmsnorm", "all_reduce"} <= {row["case"]["kernel"] for row in rows}


def test_a_known_configuration_is_a_case_of_its_own() -> None:
    row = {"case": {"kernel": "fused_moe", "tokens": 64}, "stack": "vllm-0.22.1", "impl": "triton", "protocol": "cold"}
    without, known = cases([row | {"latency_us": 90.0, "config": {"BLOCK_SIZE_M": 16}}])
    assert "config" not in without["case"]
    assert known["case"]["config"] == {"BLOCK_SIZE_M": 16}
    assert known["impl"] != without["impl"]


def test_attention_is_decode_when_every_request_brings_one_token() -> None:
    assert family_name({"kernel": "attention", "q_lens": [1, 1]}) == "attention decode"
    assert family_name({"kernel": "attention", "q_lens": [1, 9]}) == "attention prefill"


def test_figures_of_known_errors() -> None:
    answers = pw.predict([pw.gemm(m, 4096, 4096) for m in (64, 512, 4096, 8192)], "H200")
    measured = answers.latency_us / np.array([1.1, 0.9, 1.0, 1.2])
    found = figures(answers, measured)
    assert (found.rows, found.mape, found.median, found.bias) == (4, 10.0, 10.0, 5.0)
    inside = (answers.low_us <= measured) & (measured <= answers.high_us)
    assert found.coverage == 100 * inside.mean()
    assert found.below_floor == (measured < answers.floor_us).sum()


def test_figures_survive_writing(tmp_path: Path) -> None:
    write(tmp_path / "f.json", {"own": {KEY: FIGURES}})
    assert read(tmp_path / "f.json") == {"own": {KEY: FIGURES}}
    assert read(tmp_path / "absent.json") == {}
    (tmp_path / "f.json").write_text("{}")
    with pytest.raises(BadFile):
        read(tmp_path / "f.json")


def test_drift_counts_from_three_tenths_of_a_point() -> None:
    assert drifts({KEY: FIGURES}, {KEY: replace(FIGURES, mape=5.29, coverage=89.71)}) == []
    for moved in (replace(FIGURES, mape=5.31), replace(FIGURES, bias=-1.4), replace(FIGURES, rows=99)):
        assert len(drifts({KEY: FIGURES}, {KEY: moved})) == 1
    assert len(drifts({KEY: FIGURES}, {})) == len(drifts({}, {KEY: FIGURES})) == 1


@pytest.mark.slow
def test_published_figures_of_own_rows_still_hold(own: list[Row]) -> None:
    assert drifts(read(COMMITTED).get("own", {}), score(cases(own))) == []

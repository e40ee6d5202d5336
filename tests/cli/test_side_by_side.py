"""A kernel on several GPUs: those that cannot run it do not hide the others, and a note is given once."""

from __future__ import annotations

import json
import re

import pytest

from pipewave.cli import build
from pipewave.errors import BadInput, UnknownGPU, UnknownKernel, UnsupportedDtype
from pipewave.gpus import find, names
from pipewave.prediction.notes import compared
from tests.command_line import CliRunner, as_a_process

GEMM = ["predict", "gemm", "64", "4096", "4096", "--gpu"]


def test_a_gpu_without_the_type_stands_beside_the_answers_of_the_others() -> None:
    found = CliRunner().invoke(build(), [*GEMM, "A100,H200,L40S", "--dtype", "fp8", "--format", "json"])
    rows = json.loads(found.output)["predictions"]
    assert [row["gpu"] for row in rows] == ["A100", "H200", "L40S"]
    assert rows[0]["error"]["code"] == UnsupportedDtype.code
    assert all(row["latency_us"] > 0 for row in rows[1:])
    assert found.exit_code == 1


@pytest.mark.parametrize("form", ["table", "csv"])
def test_people_are_told_beside_the_table(form: str) -> None:
    found = CliRunner().invoke(build(), [*GEMM, "A100,H200", "--dtype", "fp8", "--format", form])
    assert "A100 cannot run dtype 'fp8'" in found.output
    assert "H200" in found.stdout and ("A100" in found.stdout) is (form == "table")
    assert found.exit_code == 1


def test_where_no_gpu_has_the_type_there_is_an_error() -> None:
    found = CliRunner().invoke(build(), [*GEMM, "A100,V100", "--dtype", "fp8"])
    assert isinstance(found.exception, UnsupportedDtype)


@pytest.mark.parametrize(("gpus", "names"), [("H200,", ["H200"]), (" H200 , H100", ["H200", "H100"])])
def test_a_comma_too_many_is_no_gpu(gpus: str, names: list[str]) -> None:
    found = CliRunner().invoke(build(), [*GEMM, gpus, "--format", "json"])
    assert [row["gpu"] for row in json.loads(found.output)["predictions"]] == names


@pytest.mark.parametrize("gpus", ["", ",", " , "])
def test_no_gpu_at_all_is_refused(gpus: str) -> None:
    assert isinstance(CliRunner().invoke(build(), [*GEMM, gpus]).exception, BadInput)


def test_what_is_said_of_several_gpus_is_said_once() -> None:
    rows, own, all_of = "rows of {} bf16 are of protocol graph: cold counts as unseen", "calibrated with 9 rows", "slow"
    notes = [
        ("B200", [rows.format("B200"), all_of]),
        ("GB200", [rows.format("GB200"), all_of, own]),
        ("H200", [all_of]),
    ]
    assert compared(notes) == [all_of, rows.format("B200, GB200"), f"GB200: {own}"]


@pytest.mark.parametrize(
    ("by_name", "by_order"),
    [
        ("gemm k=4096 m=64 n=512 --dtype fp8", "gemm 64 512 4096 --dtype fp8"),
        ("gemm M=64 n=512 k=4096 dtype=fp8 gpu=H100", "gemm 64 512 4096 --dtype fp8 --gpu H100"),
        ("gemm 64 512 4096 dtype=fp8", "gemm 64 512 4096 --dtype fp8"),
        ("attention q_lens=1*4 kv_lens=900*4 heads=32 kv_heads=8 head_dim=128", "attention 1*4 900*4 32 8 128"),
    ],
)
def test_sizes_may_be_given_by_name(by_name: str, by_order: str) -> None:
    named, ordered = (CliRunner().invoke(build(), ["predict", *words.split()]) for words in (by_name, by_order))
    assert named.exit_code == 0
    assert named.output == ordered.output


def test_a_size_without_its_name_among_named_ones_is_refused_by_its_field() -> None:
    found = CliRunner().invoke(build(), ["predict", "gemm", "m=64", "512", "4096"])
    assert isinstance(found.exception, BadInput) and found.exception.field == "m"


@pytest.mark.parametrize(
    ("words", "field", "told"),
    [
        ("m=64 n=512 kk=4096", "kk", "did you mean k?"),
        ("kk=4096", "kk", "did you mean k?"),
        ("m=64 n=512 k=4096 dtyp=fp8", "dtyp", "did you mean dtype?"),
        ("m=64 n=512", "k", "k is not given"),
        ("m=64 n=512 m=65 k=1", "m", "twice"),
        ("m=64 n=512 k=-1", "k", "must be an integer"),
        ("m=64 n=512 k=1 quantize=true", "quantize", "--quantize"),
    ],
)
def test_a_field_by_a_wrong_name_is_refused_by_that_name(words: str, field: str, told: str) -> None:
    with pytest.raises(BadInput, match=re.escape(told)) as refused:
        CliRunner().invoke(build(), ["predict", "gemm", *words.split()], catch_exceptions=False)
    assert refused.value.field == field


def test_all_gpus_are_compared_in_the_order_of_their_list() -> None:
    found = CliRunner().invoke(build(), ["predict", "gemm", "64", "64", "64", "--gpu", "all", "--format", "json"])
    assert [row["gpu"] for row in json.loads(found.stdout)["predictions"]] == [find(name).name for name in names()]


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_a_table_is_shown_where_letters_are_few(encoding: str) -> None:
    found = as_a_process("predict", "gemm", "64", "64", "64", encoding=encoding)
    assert (found.exit_code, found.stderr) == (0, "")
    assert "H200" in found.stdout


def test_an_unknown_kernel_is_told_the_nearest_one() -> None:
    with pytest.raises(UnknownKernel, match=r"unknown kernel 'gem': did you mean gemm\?"):
        CliRunner().invoke(build(), ["predict", "gem", "1", "2", "3"], catch_exceptions=False)


@pytest.mark.parametrize(("output", "steps"), [("0", False), ("2", True)])
def test_an_embedding_shows_no_decode_step(output: str, steps: bool) -> None:
    words = ["estimate", "--model", "Llama-3.1-8B", "--gpu", "H200", "--batch", "2", "--isl", "64", "--osl", output]
    shown = CliRunner().invoke(build(), words).output
    assert "first token" in shown
    assert ("a later token" in shown, "decode step" in shown) == (steps, steps)


def test_notes_of_one_gpu_stay_as_they_are() -> None:
    assert compared([("H200", ["rows of H200 bf16 are of protocol graph", "x"])]) == [
        "rows of H200 bf16 are of protocol graph",
        "x",
    ]


def test_where_one_gpu_is_asked_for_several_are_refused_as_such() -> None:
    with pytest.raises(UnknownGPU, match="one is asked for here"):
        find("H200,B200")

"""`pipewave tune inspect`: an untrusted file is read, bad words are named, nothing but arithmetic is evaluated."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("triton")

from pipewave.cli import build
from pipewave.errors import BadFile, BadInput, PipewaveError
from pipewave.tune.rank import kernel_of, rank
from pipewave.tune.source.inspect import arguments, expression_grid, load, understood
from tests.command_line import CliRunner

FILE = """
import triton
import triton.language as tl

@triton.autotune(configs=[triton.Config({"BLOCK": 128})], key=["n"])
@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) + tl.load(y + at, mask=at < n), mask=at < n)
    for i in range(tl.cdiv(n, BLOCK)):
        tl.load(x + i)
"""


@pytest.fixture
def kernel(tmp_path: Path) -> str:
    path = tmp_path / "theirs.py"
    path.write_text(FILE)
    return f"{path}:add"


def test_a_file_is_inspected_from_the_command_line(kernel: str) -> None:
    words = [
        "tune",
        "inspect",
        kernel,
        "--grid",
        "cdiv(n, BLOCK)",
        "--arg",
        "n=1000",
        "--config",
        "BLOCK=128",
        "--json",
    ]
    words += [word for name in "xy" for word in ("--arg", f"{name}=fp32[1000]")] + ["--arg", "out=fp32[1000]"]
    found = json.loads(CliRunner().invoke(build(), words).stdout)
    assert found["blocks"] == 8
    assert [(loop["turns"], loop["over"]) for loop in found["loops"]] == [(8.0, "range(tl.cdiv(n, BLOCK))")]
    assert found["bytes_moved"] == pytest.approx(8 * (3 * 128 * 4 + 8 * 4))
    assert found["bytes_least"] == 3 * 4000
    shown = CliRunner().invoke(build(), [word for word in words if word != "--json"])
    assert "range(tl.cdiv(n, BLOCK))" in shown.stdout


@pytest.mark.parametrize("grid", ["n +", "m", "__import__('os')", "(1).real", "n // 0", "[1]"])
def test_a_grid_is_arithmetic_over_arguments_and_nothing_else(grid: str, kernel: str) -> None:
    given = arguments(["n=4", *(f"{name}=fp32[4]" for name in ("x", "y", "out"))])
    with pytest.raises(BadInput, match="grid"):
        understood(load(kernel), grid, given, {"BLOCK": 16})


@pytest.mark.parametrize(("grid", "n"), [("cdiv(n, BLOCK)", 0), ("cdiv(n, BLOCK)", -200), ("0", 4), ("(-2, -2)", 4)])
def test_a_launch_of_no_block_is_refused(grid: str, n: int, kernel: str) -> None:
    given = arguments([f"n={n}", *(f"{name}=fp32[4]" for name in ("x", "y", "out"))])
    with pytest.raises(BadInput, match="a launch needs a block") as caught:
        understood(load(kernel), grid, given, {"BLOCK": 16})
    assert caught.value.field == "grid"
    described = kernel_of(kernel)
    if grid != "(-2, -2)":  # whose product is that of a grid
        with pytest.raises(BadInput, match="a launch needs a block"):
            rank(described, [(expression_grid(grid), given)], "B200")


def test_what_a_launch_needs_is_asked_for(kernel: str) -> None:
    with pytest.raises(BadInput, match=r"x, y, out"):
        understood(load(kernel), "triton.cdiv(n, BLOCK)", {"n": 4}, {"BLOCK": 16})


@pytest.mark.parametrize("word", ["M", "=4", "x=bf17[4]", "1=2", "x=bf16[-1,512]", "x=bf16[0,512]", "x=bf16[4"])
def test_bad_arguments_are_named(word: str) -> None:
    with pytest.raises(BadInput):
        arguments([word])


def test_files_that_are_none(tmp_path: Path, kernel: str) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("raise RuntimeError('no')")
    for named in ("x", "none.py:f", f"{broken}:f", kernel.replace(":add", ":sub")):
        with pytest.raises(PipewaveError):
            load(named)
    with pytest.raises(BadFile, match="RuntimeError"):
        load(f"{broken}:f")


def test_heuristics_are_worked_out_as_at_a_launch(tmp_path: Path) -> None:
    path = tmp_path / "theirs.py"
    path.write_text(
        FILE.replace(
            "@triton.jit", '@triton.heuristics({"BLOCK": lambda args: 64 if args["n"] > 500 else 16})\n@triton.jit'
        )
    )
    given = arguments(["n=1000", "x=fp32[1000]", "y=fp32[1000]", "out=fp32[1000]"])
    found = understood(load(f"{path}:add"), "16", given, {})
    assert [loop["turns"] for loop in found["loops"]] == [16.0]  # of 64 each

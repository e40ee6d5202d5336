"""What to time first, said without a GPU: binaries compiled here, ranked by physics, and its score on recordings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lab.any_kernel import spaces
from pipewave.cli import build
from pipewave.errors import BadInput
from pipewave.tune import rank as ranking
from pipewave.tune.rank import LOSSES, SPREAD
from pipewave.tune.user_kernels.device import Built
from studies import tune_rank
from tests.command_line import CliRunner

KERNEL = """
import triton, triton.language as tl

CONFIGS = [triton.Config({"BM": m, "BN": n, "BK": k}, num_warps=w, num_stages=s)
           for m, n, k, w, s in ((16, 32, 32, 4, 2), (128, 128, 64, 8, 3), (256, 256, 128, 8, 4))]

@triton.autotune(CONFIGS, key=["M", "N", "K"])
@triton.heuristics({"EVEN": lambda given: given["K"] % given["BK"] == 0})
@triton.jit
def matmul(a, b, c, M, N, K, EVEN: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    pid = tl.program_id(0)
    cols = tl.cdiv(N, BN)
    m = (pid // cols) * BM + tl.arange(0, BM)
    n = (pid % cols) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for k0 in range(0, K, BK):
        k = k0 + tl.arange(0, BK)
        acc += tl.dot(tl.load(a + m[:, None] * K + k[None, :]), tl.load(b + k[:, None] * N + n[None, :]))
    tl.store(c + m[:, None] * N + n[None, :], acc.to(tl.bfloat16))
"""


@pytest.mark.slow
def test_binaries_are_compiled_without_a_gpu_and_what_does_not_fit_comes_last(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    file = tmp_path / "mine.py"
    file.write_text(KERNEL)
    words = [f"{name}=4096" for name in "MNK"] + [f"{name}=bf16[4096,4096]" for name in "abc"]
    command = [sys.executable, "-m", "pipewave", "tune", "rank", f"{file}:matmul", "--gpu", "H200", "--json",
               "--grid", "cdiv(M, BM) * cdiv(N, BN)", *(part for word in words for part in ("--arg", word))]  # fmt: skip
    done = subprocess.run(command, env={**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)},
                          capture_output=True, text=True, timeout=300, check=False)  # fmt: skip
    rows = json.loads(done.stdout)["candidates"]
    assert [row["configuration"][:6] for row in rows] == ["BM=128", "BM=16 ", "BM=256"], done.stderr
    assert [bool(row["error"]) for row in rows] == [False, False, True]
    assert rows[0]["smem_bytes"] > rows[1]["smem_bytes"] > 0
    assert rows[0]["registers"] > 32
    assert rows[0]["low_us"] < rows[0]["us"] < rows[0]["high_us"]


@pytest.mark.slow
@pytest.mark.parametrize("folder", tune_rank.FOLDERS, ids=lambda folder: folder.name)
def test_the_first_eight_hold_one_near_the_best_at_nine_of_ten_recorded_launches(folder: Path) -> None:
    found = tune_rank.summary(tune_rank.scored(folder))
    assert found["8"]["within_5"] >= 0.9
    assert found["8"]["within_5"] > found["random"]["within_5"] > found["default"]["within_5"]
    assert found["spread"] == pytest.approx(SPREAD, abs=0.01)
    for count, (mean, most) in LOSSES.items():
        assert found[str(count)]["mean"] == pytest.approx(mean, rel=0.12)
        assert found[str(count)]["p90"] == pytest.approx(most, rel=0.16)


def test_candidates_come_by_physics_and_those_that_cannot_run_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Made-up reports of four configurations that count alike, at two launches of which one has four times the work."""
    reports = {1: (Built(1 << 15, 64), 0), 2: (Built(1 << 15, 64), 40), 3: (Built(1 << 20, 64), 0),
               4: (Built(error="does not compile"), 0)}  # fmt: skip
    configs: Any = [{"BM": at, "num_warps": 8} for at in (2, 4, 1, 3)]
    of: Any = SimpleNamespace(inner=None, configs=configs, heuristics={}, flags=(), trips=())
    monkeypatch.setattr(ranking, "complete", lambda *_: None)
    monkeypatch.setattr(ranking, "compiled", lambda of, named, config, capability: reports[config["BM"]])
    monkeypatch.setattr(ranking, "formula", lambda inner, grid, *_: SimpleNamespace(traced=(0, grid)))
    launches: Any = [((4096.0 * more, 64.0, 64.0, 1e6, 2e6, 1e5), {}) for more in (1, 4)]
    rows = ranking.rank(of, launches, "H200")
    assert [row["configuration"] for row in rows[:2]] == ["BM=1 num_warps=8", "BM=2 num_warps=8"]
    assert [row["stack_bytes"] for row in rows[:2]] == [0, 40] and rows[1]["us"] > 1.05 * rows[0]["us"]
    assert {row["error"] for row in rows[2:]} == {
        "needs 1048576 bytes of shared memory, an SM has 233472", "does not compile"
    }  # fmt: skip
    assert [bool(row["error"]) for row in rows] == [False, False, True, True]
    for row in rows[:2]:
        assert (row["low_us"], row["high_us"]) == pytest.approx((row["us"] * 0.7261, row["us"] * 1.3771), rel=1e-3)
        assert (row["registers"], row["smem_bytes"], row["blocks_per_sm"]) == (64, 1 << 15, 4)
    one, four = (ranking.rank(of, [launch], "H200")[0]["us"] for launch in launches)
    assert rows[0]["us"] == pytest.approx((one * four) ** 0.5) and four > 2.5 * one


@pytest.mark.parametrize("words", [["--shapes", "x.json", "--arg", "M=3"], ["--shapes", "x.json", "--grid", "M"], []])
def test_one_launch_or_a_file_of_several_is_ranked(words: list[str]) -> None:
    found = CliRunner().invoke(build(), ["tune", "rank", "x.py:mine", "--gpu", "H200", *words])
    assert isinstance(found.exception, BadInput) and found.exception.field == "grid"


def test_binaries_are_of_nvidia_alone() -> None:
    with pytest.raises(BadInput, match="MI300X"):
        ranking.rank(SimpleNamespace(), [], "MI300X")  # type: ignore[arg-type]


def test_arguments_are_specialised_as_triton_does() -> None:
    tensor = SimpleNamespace(data_ptr=int, element_size=lambda: 1, of="fp8")
    plain = SimpleNamespace(data_ptr=int, element_size=lambda: 2)
    given = {"a": tensor, "b": plain, "M": 48, "N": 50, "one": 1, "far": 1 << 31, "low": -(1 << 31), "lower": -(1 << 31) - 1, "flag": True, "scale": 0.5,
             "word": "ieee", "none": None, "BM": 32}  # fmt: skip
    signature, constants, attributes = ranking._signature(
        SimpleNamespace(arg_names=tuple(given), constants=("BM",)), given
    )  # type: ignore[arg-type]
    assert signature == {"a": "*fp8e4nv", "b": "*bf16", "M": "i32", "N": "i32", "one": "constexpr", "far": "i64",
                         "low": "i32", "lower": "i64", "flag": "u1", "scale": "fp32", "word": "constexpr", "none": "constexpr",
                         "BM": "constexpr"}  # fmt: skip
    assert constants == {"one": 1, "word": "ieee", "none": None, "BM": 32}
    assert {place for (place,) in attributes} == {0, 1, 2, 5, 6}, "tensors, and whole numbers that 16 divides"


@pytest.mark.parametrize(
    ("said", "wanted"), [("Function x: REG:40 STACK:16 SHARED:0", (40, 16)), ("no such function", (32, 0))]
)
def test_registers_and_stack_are_read_of_what_the_tool_says(
    said: str, wanted: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "triton", SimpleNamespace(__file__=str(tmp_path / "triton.py")))  # type: ignore[arg-type]
    assert ranking.resources(b"cubin") == (32, 0)  # there is no tool
    tool = tmp_path / "backends" / "nvidia" / "bin" / "cuobjdump"
    tool.parent.mkdir(parents=True)
    tool.write_text(f'#!/bin/sh\ntest "$1" = -res-usage && grep -q cubin "$2" && echo "{said}"\n')
    tool.chmod(0o755)
    assert ranking.resources(b"cubin") == wanted


@pytest.mark.parametrize(("count", "known"), [(0, 1), (1, 1), (2, 2), (3, 2), (7, 4), (8, 8), (100, 8)])
def test_a_loss_is_that_of_no_more_than_were_timed(count: int, known: int) -> None:
    assert ranking.loss_of(count) == LOSSES[known]


def test_the_loss_of_timing_few_is_that_of_the_best_of_them() -> None:
    runs = (((1.0,), (2.0,), (3.0,)),)
    space = spaces.Space({}, ({"n": 1},), ({}, {}, {}), runs, np.ones((1, 3, 6)), np.ones(3, np.int64),
                         np.array([0]), (True,))  # fmt: skip
    ranked = np.array([[0.3, 0.2, 0.1]])
    assert [tune_rank.lost(space, ranked, count)[0] for count in (1, 2, 3)] == [2.0, 1.0, 0.0]

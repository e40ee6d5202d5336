"""Files that engines look up: the names that their wheels ship, contents that are right at every number of tokens."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pipewave.cli import build
from pipewave.errors import BadInput
from pipewave.models import load
from pipewave.tune.engine.lookups import Lookup, file_name, lookups, path_of
from pipewave.tune.engine.profiling import ANCHORS, counts, profile, write_all
from pipewave.tune.law.anchors import peaks_of
from tests.command_line import CliRunner

DENSE = {"vllm": "N={},K={},device_name={},dtype=fp8_w8a8,block_shape=[128,128].json",
         "sglang": "N={},K={},device_name={},dtype=fp8_w8a8,block_shape=[128, 128].json"}  # fmt: skip
ROOTS = {name: Path(os.environ.get("PIPEWAVE_ENGINES", "")) / name for name in ("vllm", "sglang")}
FILES = {"vllm": "model_executor/layers/fused_moe/fused_moe.py",
         "sglang": "srt/layers/moe/moe_runner/triton_utils/fused_moe_triton_config.py"}  # fmt: skip
DEFAULT = {
    "BLOCK_SIZE_M": 64,
    "BLOCK_SIZE_N": 128,
    "BLOCK_SIZE_K": 128,
    "GROUP_SIZE_M": 32,
    "num_warps": 4,
    "num_stages": 3,
}


class MadeUp:
    """An engine's kernel whose time is its padded rows, tiles and trips; the default is among the slow ones."""

    def __init__(self) -> None:
        self.peaks, self.env = peaks_of("NVIDIA H200"), {"gpu": "NVIDIA H200", "triton": "3.6.0"}

    def default(self, of: Lookup, m: int) -> dict[str, int]:
        return DEFAULT

    def us(self, of: Lookup, m: int, c: Any) -> float:
        one = counts(of, np.array([m]), [c])[0, 0]
        waves = np.ceil(one[0] / 132)
        return float(
            3 + waves * one[1] * (0.05 + c["BLOCK_SIZE_M"] * c["BLOCK_SIZE_N"] * c["BLOCK_SIZE_K"] / 4e6) + one[3] / 4e6
        )

    def time(self, of: Lookup, m: int, configs: Sequence[Any]) -> list[float]:
        return [self.us(of, m, c) for c in configs]


def test_names_are_those_that_the_wheels_ship() -> None:
    for engine, template in DENSE.items():
        for n, k in ((2112, 7168), (3072, 1536), (24576, 1536)):
            assert file_name(Lookup(engine, "block_fp8", n, k, "fp8_block"), "NVIDIA H200") == template.format(
                n, k, "NVIDIA_H200"
            )
    assert (
        file_name(Lookup("vllm", "moe", 768, 2048, "bf16", 128, 8), "NVIDIA H200")
        == "E=128,N=768,device_name=NVIDIA_H200.json"
    )
    assert file_name(Lookup("vllm", "moe", 256, 7168, "fp8_block", 256, 8), "NVIDIA H100 80GB HBM3") == (
        "E=256,N=256,device_name=NVIDIA_H100_80GB_HBM3,dtype=fp8_w8a8,block_shape=[128,128].json"
    )
    nvl = Lookup("vllm", "moe", 768, 2048, "bf16", 128, 8)
    assert "device_name=NVIDIA_H200.json" in file_name(nvl, "NVIDIA H200 NVL")
    sglang = Lookup("sglang", "moe", 256, 7168, "fp8_block", 257, 9)
    assert path_of(sglang, "NVIDIA H200", "3.5.1").parts[2:] == (
        "configs",
        "triton_3_5_1",
        "E=257,N=256,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128, 128].json",
    )
    assert file_name(sglang, "NVIDIA H200", down=True).endswith("block_shape=[128, 128]_down.json")


def test_every_kernel_of_a_model_is_found() -> None:
    wanted = lookups(load("deepseek-v3"), 8, "vllm")
    assert {(of.n, of.k) for of in wanted if of.kind == "block_fp8"} >= {
        (2112, 7168),
        (3072, 1536),
        (7168, 2048),
        (4608, 7168),
    }
    (experts,) = [of for of in wanted if of.kind == "moe"]
    assert (experts.e, experts.n, experts.top_k, experts.dtype) == (256, 256, 8, "fp8_block")
    shared = [of.e for of in lookups(load("deepseek-v3"), 8, "sglang") if of.kind == "moe"]
    assert shared == [256, 257]
    with pytest.raises(BadInput, match="vllm, sglang"):
        lookups(load("deepseek-v3"), 8, "trtllm")


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_the_engines_own_function_finds_the_file(engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = engine_lookup(engine, tmp_path, monkeypatch)
    of = Lookup(engine, "moe", 768, 2048, "fp8_block", 128, 8)
    rows = write_all([of], MadeUp(), tmp_path / "out", most=512)
    assert rows[0]["files"]
    found = find(128, 768, "fp8_w8a8", 128, 128)
    assert found is not None
    assert set(found[1]) == set(DEFAULT)
    assert all(isinstance(key, int) for key in found)


def engine_lookup(engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`get_moe_configs` as the installed engine has it, with its two functions alone: nothing else is imported."""
    spec = importlib.util.find_spec(engine)
    root = Path(spec.submodule_search_locations[0]) if spec and spec.submodule_search_locations else ROOTS[engine]
    if not (root / FILES[engine]).is_file():
        pytest.skip(f"{engine} is not installed, nor unpacked in PIPEWAVE_ENGINES")
    tree = ast.parse((root / FILES[engine]).read_text())
    kept = [
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name in ("get_config_file_name", "get_moe_configs")
    ]
    for node in kept:
        node.decorator_list = []
    silent = SimpleNamespace(**dict.fromkeys(("info", "info_once", "warning", "warning_once"), lambda *a, **k: None))
    out = tmp_path / "out" / engine / "moe"
    monkeypatch.setenv("SGLANG_MOE_CONFIG_DIR", str(out))
    names = {"os": os, "json": json, "logger": silent, "triton": SimpleNamespace(__version__="3.6.0"), "Any": Any,
             "Optional": __import__("typing").Optional, "Dict": dict, "__file__": str(tmp_path / "x.py"),
             "envs": SimpleNamespace(VLLM_BATCH_INVARIANT=False, VLLM_TUNED_CONFIG_FOLDER=str(out)),
             "get_device_name": lambda: "NVIDIA H200", "_is_hip": False,
             "get_global_server_args": lambda: SimpleNamespace(enable_deterministic_inference=False),
             "current_platform": SimpleNamespace(get_device_name=lambda: "NVIDIA H200")}  # fmt: skip
    exec(compile(ast.Module(kept, []), engine, "exec"), names)
    return names["get_moe_configs"]


@pytest.mark.parametrize("kind", ["block_fp8", pytest.param("moe", marks=pytest.mark.slow)])
def test_the_file_is_never_slower_than_the_default_and_mostly_faster(kind: str) -> None:
    of = Lookup("vllm", kind, 768, 2048, "fp8_block", *((128, 8) if kind == "moe" else ()))
    timer = MadeUp()
    made = profile(of, timer, 4096)
    gain = np.divide(*made.timed_us())
    assert gain.min() >= 0.98
    assert gain.mean() > 1.05
    keys = [int(key) for key in made.body if key.isdigit()]
    assert min(keys) == 1
    lost = []
    for m in (3, 20, 100, 300, 777, 3000):  # never measured: what the engine would look up
        config = made.body[str(min(keys, key=lambda key: abs(key - m)))]
        best = min(timer.us(of, m, c) for c in made.configs)
        lost.append(timer.us(of, m, config) / best - 1)
    assert float(np.mean(lost)) < 0.06


@pytest.mark.parametrize("seed", range(4))
def test_no_law_of_a_kernel_without_one_makes_it_slower_than_the_default(seed: int) -> None:
    """Times that follow no law: whatever is predicted, the default stays where it was measured to be faster."""

    class Lawless(MadeUp):
        def us(self, of: Lookup, m: int, c: Any) -> float:
            rng = np.random.default_rng([seed, m, *c.values()])
            return float(20.0 * np.exp(rng.normal(0.0 if c == DEFAULT else 0.2, 0.3)))

    of = Lookup("vllm", "block_fp8", 768, 2048, "fp8_block")
    made = profile(of, Lawless(), 4096)
    assert np.divide(*made.timed_us()).min() >= 0.98


def test_a_kernel_that_does_not_run_costs_the_others_nothing(tmp_path: Path) -> None:
    class Broken(MadeUp):
        def default(self, of: Lookup, m: int) -> dict[str, int]:
            if of.n == 1:
                raise RuntimeError("no kernel image")
            return DEFAULT

    rows = write_all([Lookup("vllm", "block_fp8", n, 512, "fp8_block") for n in (1, 256)], Broken(), tmp_path, most=64)
    assert "no kernel image" in rows[0]["failed"]
    assert Path(rows[1]["files"][0]).is_file()
    assert rows[1]["worst"] <= 0.02


def test_the_command_lists_files_without_a_gpu() -> None:
    app = build()
    answer = CliRunner().invoke(
        app, ["tune", "engine", "vllm", "--model", "deepseek-v3", "--tp", "8", "--list", "--json"]
    )
    assert answer.exit_code == 0, answer.output
    names = [row["file"] for row in json.loads(answer.stdout)["files"]]
    assert DENSE["vllm"].format(2112, 7168, "NVIDIA_H200") in names
    assert len(ANCHORS) == len(set(ANCHORS))


@pytest.mark.slow
def test_an_engine_that_prints_spoils_no_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Printing(MadeUp):
        def __init__(self, engine: str) -> None:
            sys.stdout.write(f"{engine} says hello\n")
            super().__init__()

    monkeypatch.setattr("pipewave.cli.tune.need_gpu", lambda *_: None)
    monkeypatch.setattr("pipewave.tune.engine.gpu.GpuTimer", Printing)
    app = build()
    words = ["tune", "engine", "vllm", "--model", "Qwen3-30B-A3B", "--most", "64", "--out", str(tmp_path), "--json"]
    answer = CliRunner().invoke(app, words)
    assert answer.exit_code == 0, answer.output
    (row,) = json.loads(answer.stdout)["files"]
    assert np.divide(row["default_us"], row["us"]) == pytest.approx(row["gain"])
    assert "says hello" in answer.stderr

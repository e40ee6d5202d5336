"""What other simulators take: step times as a function, and LLMServingSim's profiles in its own columns."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import numpy as np
import pytest
import yaml

import pipewave as pw
from pipewave.errors import BadInput, CannotShard
from pipewave.export import aiconfigurator
from pipewave.export.llmservingsim import UNEQUAL, export
from pipewave.export.vidur import LayerTimes
from pipewave.gpus import find
from pipewave.models import load

CORPUS = Path(os.environ.get("PIPEWAVE_DATA", "../shared/data")) / "llmservingsim" / "perf"
KEYS = {"dense": ["layer", "tokens"], "per_sequence": ["layer", "sequences"],
        "attention": ["prefill_chunk", "kv_prefill", "n_decode", "kv_decode"], "moe": ["tokens", "activated_experts"]}  # fmt: skip


def test_steps_add_up_to_the_estimate_of_a_static_batch() -> None:
    """`python lab/simpy_run.py` does this inside SimPy."""
    step = pw.step_time("Llama-3.1-8B", "H200")
    took = step([512] * 8, [512] * 8) + sum(step([1] * 8, [512 + token] * 8) for token in range(1, 64))
    asked = pw.estimate("Llama-3.1-8B", "H200", batch=8, input_len=512, output_len=64)
    assert 1e3 * took == pytest.approx(asked.e2e_ms, rel=0.02)


def test_caches_of_one_page_share_an_answer() -> None:
    step, exact = pw.step_time("Llama-3.1-8B", "H200"), pw.step_time("Llama-3.1-8B", "H200", quantum=1)
    assert step([1], [1009]) == step([1], [1024]) == exact([1], [1024])
    assert exact([1], [1009]) <= exact([1], [1024])


@pytest.mark.parametrize(("q_lens", "kv_lens"), [([1], [1, 2]), ([], []), ([8], [4])])
def test_a_step_that_cannot_be_is_refused(q_lens: list[int], kv_lens: list[int]) -> None:
    with pytest.raises(BadInput):
        pw.step_time("Llama-3.1-8B", "H200", quantum=1)(q_lens, kv_lens)


def test_parts_of_a_layer_are_those_that_vidur_adds_up() -> None:
    """`python lab/vidur_run.py` runs Vidur's simulator on them."""
    times = LayerTimes(load("Llama-3.1-8B"), find("H100"), 2)
    mixed, prompt, decodes = times.of((64, 1, 1), (64, 900, 900)), times.of((64,), (64,)), times.of((1, 1), (900, 900))
    assert mixed["attention_prefill"] == prompt["attention_prefill"]
    assert mixed["attention_decode"] == decodes["attention_decode"]
    assert "attention_prefill" not in decodes
    assert mixed["all_reduce"] > 0


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("perf")
    export(load("Llama-3.1-8B"), find("RTX PRO 6000 Server"), folder, tps=(1, 2))
    return folder / "RTXPRO6000Server" / "Llama-3.1-8B" / "bf16"


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_profile_has_the_layout_that_is_read(profile: Path) -> None:
    """`python lab/llmservingsim_run.py` has its own reader take it."""
    fit = yaml.safe_load((profile / "meta.yaml").read_text())["skew_fit"]
    assert fit["enabled"]
    assert {tp: each["alpha_default"] for tp, each in fit["per_tp"].items()} == {1: UNEQUAL, 2: UNEQUAL}
    for tp, name in ((tp, name) for tp in (1, 2) for name in ("dense", "per_sequence", "attention")):
        rows = table(profile / f"tp{tp}" / f"{name}.csv")
        assert [*rows[0]] == [*KEYS[name], "time_us"]
        assert all(float(row["time_us"]) > 0 for row in rows)
        assert len({tuple(row[key] for key in KEYS[name]) for row in rows}) == len(rows)
    assert not (profile / "tp1" / "moe.csv").exists()


def test_routed_experts_have_a_table(tmp_path: Path) -> None:
    files = export(load("Qwen3-30B-A3B"), find("H200"), tmp_path)
    rows = table(next(path for path in files if path.name == "moe.csv"))
    assert [*rows[0]] == [*KEYS["moe"], "time_us"]
    by = {(int(row["tokens"]), int(row["activated_experts"])): float(row["time_us"]) for row in rows}
    assert by[64, 128] > by[64, 8]  # more weights to read
    assert all(active <= 8 * tokens for tokens, active in by)


def test_what_it_cannot_describe_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="equal layers"):
        export(load("DeepSeek-V3"), find("H200"), tmp_path)
    with pytest.raises(CannotShard):
        export(load("Llama-3.1-8B"), find("H200"), tmp_path, tps=(3,))


@pytest.mark.skipif(not CORPUS.exists(), reason="needs the public corpus")
def test_the_share_of_unequal_caches_is_the_mean_of_published_fits() -> None:
    metas = [yaml.safe_load(path.read_text()) for path in CORPUS.rglob("meta.yaml")]
    fits = [each["alpha_default"] for meta in metas for each in (meta["skew_fit"].get("per_tp") or {}).values()]
    assert len(fits) >= 6
    assert pytest.approx(np.mean(fits), abs=5e-4) == UNEQUAL


@pytest.mark.skipif(not CORPUS.exists(), reason="needs the public corpus")
@pytest.mark.parametrize(("name", "most"), [("dense", 0.2), ("per_sequence", 0.2), ("attention", 0.2)])
def test_profiles_are_near_the_published_ones(profile: Path, name: str, most: float) -> None:
    """RTX PRO 6000, vLLM 0.19. Nets learn from rows of this corpus, so this tests the format and its units."""
    import pyarrow.parquet as pq

    source = CORPUS / "RTXPRO6000" / "meta-llama" / "Llama-3.1-8B" / "bf16" / "tp1" / f"{name}.parquet"
    real = {tuple(str(row[key]) for key in KEYS[name]): row["time_us"] for row in pq.read_table(source).to_pylist()}
    rows = {tuple(row[key] for key in KEYS[name]): float(row["time_us"]) for row in table(profile / "tp1" / f"{name}.csv")}  # fmt: skip
    both = rows.keys() & real.keys()
    assert len(both) >= 40
    assert np.mean([abs(rows[key] / real[key] - 1) for key in both]) <= most


def test_tables_of_aiconfigurator_hold_the_models_shapes(tmp_path: Path) -> None:
    """`python lab/aiconfigurator_run.py` has its own program read them."""
    import pyarrow.parquet as pq

    files = {
        path.stem: path for path in aiconfigurator.export(load("Llama-3.1-8B"), find("L40S"), tmp_path, tps=(1, 2))
    }
    gemm = pq.read_table(files["gemm_perf"]).to_pylist()
    assert {(row["n"], row["k"]) for row in gemm} >= {(28672, 4096), (4096, 14336), (14336, 4096), (4096, 7168)}
    one = next(row for row in gemm if (row["m"], row["n"], row["k"]) == (128, 28672, 4096))
    assert 1e3 * one["latency"] == pytest.approx(
        pw.predict(pw.gemm(128, 28672, 4096), "L40S", protocol="serving").latency_us
    )
    assert {row["num_heads"] for row in pq.read_table(files["context_attention_perf"]).to_pylist()} == {32, 16}
    assert yaml.safe_load((tmp_path / "l40s.yaml").read_text())["gpu"]["mem_bw"] == 1e9 * find("L40S").dram_gbps


@pytest.mark.skipif(not CORPUS.exists(), reason="needs the public corpus")
def test_columns_are_those_of_published_tables(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    source = CORPUS.parents[1] / "aiconfigurator" / "h200_sxm"
    files = {path.stem: path for path in aiconfigurator.export(load("Llama-3.1-8B"), find("L40S"), tmp_path)}
    for kind, name in (("gemm", "gemm_perf"), ("attention", "context_attention_perf"), ("attention", "generation_attention_perf")):  # fmt: skip
        theirs = pq.read_schema(source / kind / "vllm" / "0.24.0" / f"{name}.parquet")
        assert pq.read_schema(files[name]).names == theirs.names

"""The paper's features and targets against every row its authors released."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import paper

pd = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")

TOLERANCE = 1e-9
GEMM = {"m": "M", "n": "N", "k": "K"}
TILE = {"tile_m": "tile_M", "tile_n": "tile_N", "tile_k": "tile_K", "ctas": "cta_count", "split_k": "is_split_k"}
MOE = {"tokens": "M", "experts": "E", "topk": "topk", "hidden": "H", "inter": "N"}

CASES = [
    ("gemm_fp8", GEMM, "dataset/gemm_fp8_*.parquet", 25_228),
    ("gemm_fp8", GEMM, "worst_cases/gemm_fp8__*.parquet", 100),
    ("gemm", GEMM | TILE, "worst_cases/*gemm_[_w]*.parquet", 600),
    ("rmsnorm", {"rows": "seq", "dim": "dim"}, "worst_cases/rmsnorm__*.parquet", 300),
    ("silu_and_mul", {"rows": "seq", "input_dim": "dim"}, "worst_cases/siluandmul__*.parquet", 300),
]


def tables(corpus: Path, pattern: str) -> Any:
    paths = sorted((corpus / "pipeweave").glob(pattern))
    return pd.concat([pd.read_parquet(path) for path in paths], ignore_index=True)


def by_gpu(table: Any) -> Iterator[tuple[paper.Hardware, Any]]:
    for name, part in table.groupby("hardware"):
        yield paper.find(name), part


def worst(found: np.ndarray, published: Any) -> float:
    return float(np.max(np.abs(found / np.asarray(published, dtype=np.float64) - 1)))


@pytest.mark.parametrize(("kernel", "columns", "pattern", "rows"), CASES)
def test_features_and_target_are_those_released(
    corpus: Path, kernel: str, columns: dict[str, str], pattern: str, rows: int
) -> None:
    table = tables(corpus, pattern)
    assert len(table) == rows
    for hw, part in by_gpu(table):
        found = paper.features(kernel, hw, **{ours: part[theirs].to_numpy() for ours, theirs in columns.items()})
        for name in paper.KERNELS[kernel].order:
            assert worst(found[name], part[name]) <= TOLERANCE, (hw.name, name)
        perf = paper.overall_perf(kernel, hw, found, part["avg_duration"].to_numpy())
        assert worst(perf, part["overall_perf"]) <= TOLERANCE, hw.name


def test_attention_features_and_target_are_those_released(corpus: Path) -> None:
    table = tables(corpus, "worst_cases/*attn_*.parquet")
    assert len(table) == 400
    assert set(table["attention_type"]) == {"fa2_ragged", "fa2_paged", "fa3_paged"}
    for row in table.to_dict("records"):
        found = paper.features(
            "attention",
            row["hardware"],
            q_lens=json.loads(row["q_lengths"]),
            kv_lens=json.loads(row["kv_lengths"]),
            heads=row["nh"],
            kv_heads=row["nkv"],
            head_dim=row["hd"],
            impl=row["attention_type"],
        )
        for name in paper.KERNELS["attention"].order:
            assert worst(found[name], row[name]) <= TOLERANCE, (row, name)
        perf = paper.overall_perf("attention", row["hardware"], found, row["avg_duration"])
        assert worst(perf, row["overall_perf"]) <= TOLERANCE


def test_overall_perf_of_every_moe_row(corpus: Path) -> None:
    table = tables(corpus, "quantile_kernel_reports/moe.parquet")
    assert len(table) == 61_991  # 33,264 and repeated subsets of them
    for hw, part in by_gpu(table):
        found = paper.features("fused_moe", hw, **{ours: part[theirs].to_numpy() for ours, theirs in MOE.items()})
        perf = paper.overall_perf("fused_moe", hw, found, part["avg_duration"].to_numpy())
        assert worst(perf, part["overall_perf"]) <= TOLERANCE, hw.name


def test_hardware_is_the_published_table(corpus: Path) -> None:
    ours = {
        "numSms": "sms",
        "smFreq": "clock_mhz",
        "memBandwidth": "dram_gbps",
        "l2CacheBandwidth": "l2_gbps",
        "sharedMemoryBandwidth": "smem_bytes_per_clk_per_sm",
        "sharedMemorySize": "smem_kb_per_sm",
        "tcBf16": "tensor_bf16_ops_per_clk_per_sm",
        "tcFp8": "tensor_fp8_ops_per_clk_per_sm",
        "FmaFp32": "fma_ops_per_clk_per_sm",
        "xuFp32": "xu_ops_per_clk_per_sm",
        "architecture": "architecture",
    }
    paths = list((corpus / "pipeweave" / "hardware").glob("*.json"))
    assert len(paths) == 11
    for path in paths:
        published = json.loads(path.read_text())
        hw = paper.find(published["name"])
        assert {theirs: getattr(hw, name) for theirs, name in ours.items()} == {
            theirs: published.get(theirs) for theirs in ours
        }


def test_the_test_can_fail(corpus: Path) -> None:
    """A clock one per cent off must show in the cycles, or the comparisons above say nothing."""
    table = tables(corpus, "dataset/gemm_fp8_test.parquet")
    hw, part = next(by_gpu(table))
    slow = replace(hw, clock_mhz=hw.clock_mhz * 0.99)
    found = paper.features("gemm_fp8", slow, **{ours: part[theirs].to_numpy() for ours, theirs in GEMM.items()})
    assert worst(found["global_cycle"], part["global_cycle"]) > 0.009

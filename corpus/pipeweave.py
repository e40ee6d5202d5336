"""The PipeWeave artifact: block-scaled fp8 GEMM (vLLM 0.11) and one pass of Triton fused MoE (SGLang 0.5.4), in us.

Durations are means of profiler kernel times without launch gap. Its worst-case lists are biased samples and stay out.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from corpus.frame import Table

NAME = "pipeweave"
# The other runs of the report hold subsets of the same measurements.
COMPLETE_MOE_RUN = "20260223_203659"


def gemm_fp8(file: Path, _: Path) -> pd.DataFrame:
    """Released train and test rows (`impl` is the same kernel; no shape is in both)."""
    rows = pd.read_parquet(file).rename(columns={"M": "m", "N": "n", "K": "k"})
    software = {"framework": "vllm", "version": "0.11.0", "impl": "cutlass_block_scaled_mm", "dtype": "fp8_block"}
    return _timed(rows.assign(**software))


def moe(file: Path, _: Path) -> pd.DataFrame:
    """First grouped GEMM (w13) alone, default Triton configuration; N is one expert's width, the output is 2N wide."""
    names = {"M": "tokens", "H": "hidden", "N": "inter", "E": "experts"}
    rows = pd.read_parquet(file).rename(columns=names)
    rows = rows[rows["run"] == COMPLETE_MOE_RUN]
    return _timed(rows.assign(framework="sglang", version="0.5.4", impl="triton", part="w13", dtype="bf16"))


def _timed(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.assign(raw_gpu=rows["hardware"], protocol="profiler_warm", latency_us=rows["avg_duration"])


TABLES = (
    Table(NAME, "gemm", (f"{NAME}/dataset/gemm_fp8_*.parquet",), gemm_fp8),
    Table(NAME, "fused_moe", (f"{NAME}/quantile_kernel_reports/moe.parquet",), moe),
)

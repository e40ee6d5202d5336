"""Vidur: fp16 projections, RMSNorm and SiLU-and-mul of one layer of eight models (Kineto kernel times, ms).

Times are quantised to 1 us, so `noise` is at least half a microsecond of the latency.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from corpus.frame import Table, stacked

NAME = "vidur"
QUANTUM_US = 1.0
PATTERN = (f"{NAME}/profiling/compute/*/*/*/mlp.parquet",)


def timed(rows: pd.DataFrame, op: str, shape: Mapping[str, object]) -> pd.DataFrame:
    """Rows of one operation: `shape` columns, median latency and relative standard deviation."""
    stats = {name: rows[f"time_stats.{op}.{name}"] for name in ("mean", "median", "std")}
    spread = np.hypot(stats["std"], QUANTUM_US * 1e-3 / 2) / stats["mean"]
    common = {"framework": "sarathi", "version": "2024.11", "protocol": "profiler_warm", "dtype": "fp16"}
    return pd.DataFrame({**shape, **common, "latency_us": stats["median"] * 1e3, "noise": spread}, index=rows.index)


def _with_gpu(file: Path, frames: list[pd.DataFrame], impl: str) -> pd.DataFrame:
    return stacked(frames).assign(raw_gpu=file.parts[-4], impl=impl)


def gemm(file: Path, _: Path) -> pd.DataFrame:
    """QKV, output, up (gate and up together) and down projections."""
    rows = pd.read_parquet(file)
    tp, hidden, wide = rows["num_tensor_parallel_workers"], rows["n_embd"], rows["n_expanded_embd"]
    qkv = hidden // rows["n_head"] * (rows["n_head"] + 2 * rows["n_kv_head"])
    up = wide * (1 + rows["use_gated_mlp"].astype(int))
    weights = {"attn_pre_proj": (qkv // tp, hidden), "attn_post_proj": (hidden, hidden // tp)}
    weights |= {"mlp_up_proj": (up // tp, hidden), "mlp_down_proj": (hidden, wide // tp)}
    frames = [timed(rows, op, {"m": rows["num_tokens"], "n": n, "k": k}) for op, (n, k) in weights.items()]
    return _with_gpu(file, frames, "cublas")


def rmsnorm(file: Path, _: Path) -> pd.DataFrame:
    """The two norms of a layer, neither fused with an addition; phi-2 has LayerNorm and is left out."""
    rows = pd.read_parquet(file)
    if file.parts[-2] == "phi-2":
        rows = rows[:0]
    shape = {"rows": rows["num_tokens"], "dim": rows["n_embd"]}
    norms = [op for op in ("input_layernorm", "post_attention_layernorm") if f"time_stats.{op}.mean" in rows]
    return _with_gpu(file, [timed(rows, op, shape) for op in norms], "sarathi_rms_norm")


def silu_and_mul(file: Path, _: Path) -> pd.DataFrame:
    """Gated models only; `dim` is this rank's output width."""
    rows = pd.read_parquet(file)
    rows = rows[rows["use_gated_mlp"]]
    dim = rows["n_expanded_embd"] // rows["num_tensor_parallel_workers"]
    frame = timed(rows, "mlp_act", {"rows": rows["num_tokens"], "dim": dim})
    return _with_gpu(file, [frame], "sarathi_silu_and_mul")


def _table(family: str, read: Callable[[Path, Path], pd.DataFrame]) -> Table:
    return Table(NAME, family, PATTERN, read)


TABLES = (_table("gemm", gemm), _table("rmsnorm", rmsnorm), _table("silu_and_mul", silu_and_mul))

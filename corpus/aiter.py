"""AITER's tuned tables (MIT, ROCm/aiter): the fastest kernel of each shape of GEMM and fused MoE on AMD's Instinct.

They are selected minima: what a call can take there, not what a framework's default takes. `us` of a shape is taken
over all kernels that the tables list for it; `spread` is how much slower the slowest listed one is, the nearest thing
to a measure of what is lost when another kernel runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from corpus.sources import data_dir
from pipewave.gpus import GPU

# gfx number and compute units → GPU; of the parts that have rows, the one that is sold under a datasheet. Rows of the
# MI308X are read as an MI300X with its 80 compute units and its clock; memory is the same.
MI308X: Mapping[str, float] = {"sms": 80, "boost_clock_mhz": 1420}
PARTS: Mapping[tuple[str, int], tuple[str, Mapping[str, float]]] = {
    ("gfx942", 304): ("MI300X", {}),
    ("gfx942", 80): ("MI300X", MI308X),
    ("gfx950", 256): ("MI355X", {}),
}
WEIGHT_BYTES = {"bf16": 2.0, "fp8": 1.0, "fp8_block": 1.0, "int8": 1.0, "int4": 0.5, "mxfp4": 0.5}
KERNELS = ("gemm", "fused_moe")
LONGEST_US = 1e7
MOST_ROWS = 12  # of one product, or of one set of experts: some files list nearly every m


def tables(folder: Path | None = None) -> dict[str, pd.DataFrame]:
    """Fastest times by kernel of the contract."""
    return dict(zip(KERNELS, (gemms(folder), experts(folder)), strict=True))


def gemms(folder: Path | None = None) -> pd.DataFrame:
    """Columns gfx, cu_num, m, n, k, dtype, us (fastest), spread, in no order; rows without a time are dropped."""
    raw = pd.read_parquet(data_dir(folder) / "aiter_amd" / "gemm.parquet")
    found = pd.DataFrame(
        {"gfx": raw.gfx, "dtype": [_product(*row) for row in zip(raw.file, raw.q_dtype_w, strict=True)]}
    )
    for name, column in {"cu_num": "cu_num", "m": "M", "n": "N", "k": "K", "us": "us"}.items():
        found[name] = pd.to_numeric(raw[column], errors="coerce")
    return _fastest(found, ["gfx", "cu_num", "dtype", "m", "n", "k"])


def experts(folder: Path | None = None) -> pd.DataFrame:
    """Columns gfx, cu_num, tokens, hidden, inter, experts, topk, dtype, us, spread of gated experts without a bias."""
    raw = pd.read_parquet(data_dir(folder) / "aiter_amd" / "fmoe.parquet")
    types = zip(raw.q_dtype_a, raw.q_dtype_w, raw.q_type, strict=True)
    found = pd.DataFrame({"dtype": [_grouped(*map(str, row)) for row in types]})
    names = {"cu_num": "cu_num", "tokens": "token", "hidden": "model_dim", "inter": "inter_dim"}
    for name, column in (names | {"experts": "expert", "topk": "topk", "us": "us", "gated": "use_g1u1"}).items():
        found[name] = pd.to_numeric(raw[column], errors="coerce")
    usual = found.cu_num.map({256: "gfx950", 304: "gfx942", 80: "gfx942"})
    found["gfx"] = raw.gfx.where(raw.gfx.notna(), usual)
    found = found[found.gated == 1].drop(columns="gated")
    return _fastest(found, ["gfx", "cu_num", "dtype", "tokens", "hidden", "inter", "experts", "topk"])


def _fastest(rows: pd.DataFrame, shape: list[str]) -> pd.DataFrame:
    """The fastest time of each shape, and the slowest listed one's ratio to it."""
    usable = rows[(rows.us > 0) & (rows.us < LONGEST_US)].dropna(subset=shape)
    grouped = usable.groupby(shape).us.agg(["min", "max", "size"]).reset_index()
    spread = np.where(grouped["size"] > 1, grouped["max"] / grouped["min"], np.nan)
    return grouped.rename(columns={"min": "us"}).assign(spread=spread).drop(columns=["max", "size"])


def _product(file: str, weights: Any) -> str | None:
    """The type of a GEMM by the name of its table."""
    name = Path(file).name
    if "gdn" in name or "batched" in name:
        return None
    if "a4w4" in name:
        return "mxfp4"
    if "blockscale" in name:
        return "fp8_block"
    if "a8w8" in name:
        return "int8" if "int8" in str(weights) else "fp8"
    return "bf16" if "bf16" in name else None


def _grouped(inputs: str, weights: str, scaling: str) -> str | None:
    """The type of a fused MoE: of its weights, and of the grain of their scales."""
    if "float4" in weights:
        return "mxfp4"
    if "int4" in weights:
        return "int4"
    if "float8" in weights:
        return {"QuantType.per_1x128": "fp8_block", "QuantType.per_1x32": None}.get(scaling, "fp8")
    return "bf16" if "bfloat16" in weights and "bfloat16" in inputs else None


def possible(rows: pd.DataFrame, gpu: GPU) -> pd.DataFrame:
    """Rows that the part's types and rates allow: some tables hold copies of a smaller shape's time, or 1 µs.

    Weights are counted once for every expert that uniform routing is expected to reach.
    """
    runs = rows[[gpu.supports(dtype) for dtype in rows.dtype]]
    peak = np.array([gpu.peak_flops(dtype, at="boost") for dtype in runs.dtype])
    flops, weights = _work(runs)
    seconds = 1e-6 * runs.us
    read = weights * runs.dtype.map(WEIGHT_BYTES)
    return runs[(flops <= peak * seconds) & (read <= 1e9 * gpu.dram_peak_gbps * seconds)]


def _work(rows: pd.DataFrame) -> tuple[pd.Series, pd.Series]:
    """FLOPs, and weights read from memory."""
    if "m" in rows:
        return 2.0 * rows.m * rows.n * rows.k, rows.n * rows.k
    one, chosen = 3.0 * rows.hidden * rows.inter, rows.tokens * rows.topk
    reached = rows.experts * -np.expm1(rows.tokens * np.log1p(-rows.topk / rows.experts))
    return 2.0 * chosen * one, reached * one


def thinned(rows: pd.DataFrame, of: list[str], by: str) -> pd.DataFrame:
    """At most MOST_ROWS rows of each kernel that `of` names, spread evenly over the logarithm of column `by`."""
    kept = []
    for _, some in rows.groupby(of):
        some = some.sort_values(by)
        if len(some) > MOST_ROWS:
            wanted = np.linspace(np.log(some[by].iloc[0]), np.log(some[by].iloc[-1]), MOST_ROWS)
            some = some.iloc[np.unique(np.abs(np.log(some[by].to_numpy())[:, None] - wanted).argmin(0))]
        kept.append(some)
    return pd.concat(kept, ignore_index=True)


def chosen(kernel: str, table: pd.DataFrame, gfx: str, units: int, gpu: GPU) -> Iterator[dict[str, Any]]:
    """Calls of one part with their fastest time in µs: sizes, `dtype` and `us`."""
    of, by = (["dtype", "n", "k"], "m") if kernel == "gemm" else (["dtype", "hidden", "inter", "experts"], "tokens")
    mine = table[(table.gfx == gfx) & (table.cu_num == units)]
    mine = possible(mine, gpu)
    for row in thinned(mine, of, by).to_dict("records") if len(mine) else ():
        yield {k: v if k in ("dtype", "us") else int(v) for k, v in row.items() if k not in ("gfx", "cu_num", "spread")}


def listed(given: Mapping[str, pd.DataFrame]) -> list[dict[str, Any]]:
    """How much slower the slowest listed kernel of a shape is than the fastest, where several are listed, by kernel."""
    several = {kernel: table.dropna(subset=["spread"]) for kernel, table in given.items()}
    return [
        {
            "kernel": kernel,
            "gfx": gfx,
            "dtype": dtype,
            "shapes": len(some),
            "median ratio": round(float(some.spread.median()), 3),
        }
        for kernel, table in several.items()
        for (gfx, dtype), some in table.groupby(["gfx", "dtype"])
    ]

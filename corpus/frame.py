"""The columns every source delivers, and the finishing touches that give them their types.

Sizes are in elements unless the name says bytes, names are those of the public contract. Attention and MLA rows are
uniform batches: `batch` requests of `q_len` new tokens and `kv_len` keys (new ones included).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pipewave.errors import UnknownGPU
from pipewave.gpus import find

SHAPES: dict[str, tuple[str, ...]] = {
    "gemm": ("m", "n", "k", "quantize", "sm_clock_mhz"),
    "attention": (
        *("batch", "q_len", "kv_len", "heads", "kv_heads", "head_dim", "window"),
        *("kv_dtype", "causal", "sinks", "phase"),
    ),
    "mla": ("batch", "q_len", "kv_len", "heads", "phase", "kv_dtype"),
    "fused_moe": ("tokens", "hidden", "inter", "topk", "experts", "tp", "ep", "routing", "gated", "part"),
    "rmsnorm": ("rows", "dim", "fused_add"),
    "silu_and_mul": ("rows", "dim"),
    "quantize": ("rows", "dim"),
    "collectives": ("op", "bytes", "world", "nodes", "fabric", "kernel_source"),
}
FAMILIES = tuple(SHAPES)
COMMON = (
    "framework",
    "version",
    "stack",
    "impl",
    "protocol",
    "dtype",
    "latency_us",
    "noise",
    "group",
    "flagged",
    "partial",
)

# Whole groups are held out: rows of one group are near-duplicates of one another.
GROUP_KEYS: dict[str, tuple[str, ...]] = {
    "gemm": ("n", "k"),
    "attention": ("heads", "kv_heads", "head_dim", "window"),
    "mla": ("heads",),
    "fused_moe": ("hidden", "inter", "topk", "experts"),
    "rmsnorm": ("dim",),
    "silu_and_mul": ("dim",),
    "quantize": ("dim",),
    "collectives": ("bytes",),
}
MEASURED = ("latency_us", "noise", "sm_clock_mhz")
FLAGS = {
    "quantize": False,
    "causal": True,
    "sinks": False,
    "fused_add": False,
    "gated": True,
    "flagged": False,
    "partial": False,
}
DEFAULTS: dict[str, Any] = FLAGS | {"window": 0, "tp": 1, "ep": 1, "nodes": 1, "noise": np.nan, "sm_clock_mhz": 0.0}
DEFAULTS |= {"part": "all", "routing": "random", "fabric": "node", "phase": "prefill"}
DTYPES = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "sq": "int8", "int4_wo": "int4", "fp8_static": "fp8"}
DTYPES |= {"w4a16_mxfp4": "mxfp4", "w4a8_mxfp4_mxfp8": "mxfp4_mxfp8", "w4afp8": "int4_fp8"}
DTYPES |= {"w4a16_mxfp4_cutlass": "mxfp4", "w4a16_mxfp4_humming": "mxfp4"}  # named with their kernel


@dataclass(frozen=True, slots=True)
class Table:
    """One family's rows in one source: which files hold them and how one file is read.

    `read(file, data_dir)` returns the family's shape columns, `raw_gpu`, `framework`, `version`, `impl`, `protocol`,
    `dtype` and `latency_us`; `finish` supplies the rest.
    """

    source: str
    family: str
    patterns: tuple[str, ...]
    read: Callable[[Path, Path], pd.DataFrame]
    own: bool = False  # lies in this repository, not in the data folder

    def files(self, data_dir: Path) -> list[Path]:
        """The files that exist, in a fixed order."""
        base = repository() if self.own else data_dir
        return sorted(file for pattern in self.patterns for file in base.glob(pattern))


def repository() -> Path:
    """The root of this checkout."""
    return Path(__file__).resolve().parents[1]


def finish(rows: pd.DataFrame, family: str, source: str) -> pd.DataFrame:
    """Fill defaults, build `stack` and `group`, drop rows without a positive latency, and set compact types."""
    rows = rows[np.isfinite(rows["latency_us"]) & (rows["latency_us"] > 0)].reset_index(drop=True)
    columns = ("raw_gpu", *COMMON, *SHAPES[family])
    filled = {name: rows[name] if name in rows else DEFAULTS.get(name) for name in columns}
    filled["stack"] = rows["framework"].astype(str) + "-" + rows["version"].astype(str)
    filled["group"] = group_key(rows.assign(**{k: v for k, v in filled.items() if k in GROUP_KEYS[family]}), family)
    return compact(pd.DataFrame(filled, index=rows.index).assign(source=source))


def group_key(rows: pd.DataFrame, family: str) -> pd.Series:
    """One string per row, for example `4096,14336`; equal strings are held out together."""
    names = GROUP_KEYS[family]
    unique = rows[list(names)].drop_duplicates()
    unique["group"] = [",".join(str(int(value)) for value in values) for values in unique.to_numpy()]
    return rows[list(names)].merge(unique, on=list(names), how="left")["group"].set_axis(rows.index)


def compact(rows: pd.DataFrame) -> pd.DataFrame:
    """Text as categories and whole numbers as int64, so that millions of rows fit."""
    kinds = {name: "category" for name, kind in rows.dtypes.items() if not pd.api.types.is_numeric_dtype(kind)}
    kinds |= {name: "int64" for name, kind in rows.dtypes.items() if kind == "float64" and name not in MEASURED}
    kinds |= {name: "bool" for name in FLAGS if name in rows}
    return rows.astype(kinds)


def stacked(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Rows of all frames, with their categories united."""
    text = {name for frame in frames for name in frame if isinstance(frame[name].dtype, pd.CategoricalDtype)}
    plain = [frame.astype({name: "object" for name in text if name in frame}) for frame in frames]
    return pd.concat(plain, ignore_index=True).astype(dict.fromkeys(text, "category"))


@cache
def gpu_name(raw: str) -> str:
    """Registry name of a GPU folder or CUDA device name; `raw` itself when the registry does not know it."""
    try:
        return find(raw).name
    except UnknownGPU:
        return raw

"""The published recipe on other people's rows: attention, RMSNorm and SiLU-and-multiply of the public corpus.

The paper's own tables of these families were never released. GEMM in bf16 stays out: its features need the tile and
grid that the vendor chose, and no public row tells them.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import corpus
import paper
from paper.demand import Features
from paper.training.rows import Rows, Split
from pipewave import gpus

MAX_ROWS = 800  # of each GPU and phase: one attention call costs milliseconds
SEED = 0
TEST_FOLDS = (0, 1)
FOLDS = 10
PUBLISHED_HEAD_DIMS = (64, 128)
ORIGIN = {
    "attention": "AIConfigurator's vLLM rows (Apache-2.0): bf16, CUDA-graph replays, newest version of each GPU",
    "rmsnorm": "Vidur's rows (MIT): sarathi's fp16 kernel on A100, A40 and H100, profiler, warm L2",
    "silu_and_mul": "Vidur's rows (MIT): fp16 on A100, A40 and H100, profiler, warm L2",
}
ROWWISE = {"rmsnorm": ("dim", 1), "silu_and_mul": ("input_dim", 2)}


def split(kernel: str, data: Path) -> Split:
    """A fifth of the groups (head layouts, widths) held out on every GPU."""
    table = _attention(data) if kernel == "attention" else _rowwise(kernel, data)
    fold = table["group"].astype(str).map(lambda group: zlib.crc32(group.encode()) % FOLDS).to_numpy()
    rows = _rows(kernel, table)
    test = np.isin(fold, TEST_FOLDS)
    return Split(rows.where(~test), rows.where(test))


def _attention(data: Path) -> pd.DataFrame:
    """vLLM's bf16 rows without window or sinks; prefill and decode share one network, as published."""
    table = corpus.training_rows("attention", data)
    plain = (table["window"] == 0) & ~table["sinks"] & (table["dtype"] == "bf16") & (table["kv_dtype"] == "bf16")
    ours = (table["framework"] == "vllm") & table["phase"].isin(["prefill", "decode"])
    ours &= table["head_dim"].isin(PUBLISHED_HEAD_DIMS)
    return _sample(table[plain & ours], ["gpu", "phase"])


def _rowwise(kernel: str, data: Path) -> pd.DataFrame:
    table = corpus.training_rows(kernel, data)
    return _sample(table[table["source"] == "vidur"], ["gpu"])


def _sample(table: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    shuffled = table.sample(frac=1, random_state=SEED)
    return shuffled.groupby(by, observed=True).head(MAX_ROWS).sort_values("gpu").reset_index(drop=True)


def _rows(kernel: str, table: pd.DataFrame) -> Rows:
    parts = [_of_one_gpu(kernel, str(name), part) for name, part in table.groupby("gpu", observed=True, sort=True)]
    found = {name: np.concatenate([features[name] for features, _ in parts]) for name in paper.KERNELS[kernel].order}
    return Rows(
        kernel=kernel,
        gpu=table["gpu"].astype(str).to_numpy(dtype=np.str_),
        shape={},
        features=found,
        latency_us=table["latency_us"].to_numpy(dtype=np.float64),
        perf=np.concatenate([perf for _, perf in parts]),
    )


def _of_one_gpu(kernel: str, name: str, part: pd.DataFrame) -> tuple[Features, Any]:
    hw = paper.hardware_of(gpus.find(name))
    if kernel == "attention":
        found = _stack(paper.features(kernel, hw, **call) for call in _calls(part))
    else:
        width, factor = ROWWISE[kernel]
        found = paper.features(kernel, hw, rows=part["rows"].to_numpy(), **{width: factor * part["dim"].to_numpy()})
    return found, paper.overall_perf(kernel, hw, found, part["latency_us"].to_numpy())


def _calls(part: pd.DataFrame) -> Iterable[dict[str, Any]]:
    """Uniform batches as the ragged lists that the features take."""
    for row in part.to_dict("records"):
        lists = {"q_lens": [row["q_len"]] * row["batch"], "kv_lens": [row["kv_len"]] * row["batch"]}
        yield lists | {name: row[name] for name in ("heads", "kv_heads", "head_dim")}


def _stack(calls: Iterable[Features]) -> Features:
    found = list(calls)
    return {name: np.array([float(one[name]) for one in found]) for name in found[0]}

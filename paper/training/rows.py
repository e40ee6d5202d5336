"""The published rows as arrays: shapes, GPU, latency and the paper's features, by our own formulas."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

import paper
from paper import HARDWARE
from paper.demand import Array

SEEN = ("A100", "A40", "L20", "RTX 6000 Ada", "H20", "H800")
MOE_RUN = "20260223_203659"  # the other runs of that file repeat subsets of the same measurements
SEED = 42
SHARE_HELD_OUT = 0.2
FP8_COLUMNS = {"m": "M", "n": "N", "k": "K"}
MOE_COLUMNS = {"tokens": "M", "experts": "E", "topk": "topk", "hidden": "H", "inter": "N"}


@dataclass(frozen=True, slots=True)
class Rows:
    """Measured calls of one kernel family; every array has one entry per row."""

    kernel: str
    gpu: NDArray[np.str_]
    shape: dict[str, NDArray[np.int64]]
    features: dict[str, Array]
    latency_us: Array
    perf: Array

    def __len__(self) -> int:
        return len(self.gpu)

    def where(self, keep: NDArray[np.bool_]) -> Rows:
        """The rows where `keep` is true."""
        return replace(
            self,
            gpu=self.gpu[keep],
            shape={name: column[keep] for name, column in self.shape.items()},
            features={name: column[keep] for name, column in self.features.items()},
            latency_us=self.latency_us[keep],
            perf=self.perf[keep],
        )

    def on(self, gpus: tuple[str, ...]) -> Rows:
        """The rows of these GPUs."""
        return self.where(np.isin(self.gpu, gpus))

    def hardware(self, field: str) -> Array:
        """One field of each row's hardware vector."""
        return np.array([getattr(HARDWARE[name], field) for name in self.gpu.tolist()], dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Split:
    """Rows to learn from and rows to be scored on."""

    train: Rows
    test: Rows


def fp8_split(data: Path) -> Split:
    """The published FP8 files: train on H20 and H800, test other shapes on these two, H100 and H200."""
    folder = data / "pipeweave" / "dataset"
    return Split(*(_rows("gemm_fp8", folder / f"gemm_fp8_{part}.parquet", FP8_COLUMNS) for part in ("train", "test")))


def moe_rows(data: Path) -> Rows:
    """All 33,264 published w13 rows: 3,024 shapes on eleven GPUs."""
    path = data / "pipeweave" / "quantile_kernel_reports" / "moe.parquet"
    return _rows("fused_moe", path, MOE_COLUMNS, run=MOE_RUN)


def split_by_shape(rows: Rows, by: tuple[str, ...], seed: int = SEED) -> Split:
    """Hold out a fifth of the distinct values of the columns `by`, on every GPU."""
    table = np.stack([rows.shape[name] for name in by], axis=1)
    distinct, group = np.unique(table, axis=0, return_inverse=True)
    order = np.random.default_rng(seed).permutation(len(distinct))
    held_out = order[: round(SHARE_HELD_OUT * len(distinct))]
    is_test = np.isin(group.ravel(), held_out)
    return Split(rows.where(~is_test), rows.where(is_test))


def _rows(kernel: str, path: Path, columns: dict[str, str], run: str | None = None) -> Rows:
    table = pd.read_parquet(path)
    if run is not None:
        table = table[table["run"] == run]
    parts = [_of_one_gpu(kernel, str(name), part, columns) for name, part in table.groupby("hardware")]
    return Rows(
        kernel=kernel,
        gpu=np.concatenate([part.gpu for part in parts]),
        shape={name: np.concatenate([part.shape[name] for part in parts]) for name in columns},
        features={name: np.concatenate([part.features[name] for part in parts]) for name in parts[0].features},
        latency_us=np.concatenate([part.latency_us for part in parts]),
        perf=np.concatenate([part.perf for part in parts]),
    )


def _of_one_gpu(kernel: str, full_name: str, table: pd.DataFrame, columns: dict[str, str]) -> Rows:
    hw = paper.find(full_name)
    shape = {name: table[column].to_numpy() for name, column in columns.items()}
    found = paper.features(kernel, hw, **shape)
    latency_us = table["avg_duration"].to_numpy()
    perf = paper.overall_perf(kernel, hw, found, latency_us)
    return Rows(kernel, np.full(len(table), hw.name), shape, found, latency_us, perf)

"""The paper's random forests for collectives: one per GPU and primitive, (bytes, workers) -> mean time.

The paper trains on all rows and holds nothing out. Here a fifth of the message sizes is held out (on every number of
workers) to score it, and the forest on all rows is exported as what it is: one step function of the size per worker
count.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.ensemble import RandomForestRegressor

from paper.collectives import Steps
from paper.demand import Array
from paper.training.rows import SEED

SETTINGS = {"n_estimators": 100, "max_depth": 20, "min_samples_split": 5, "min_samples_leaf": 2, "random_state": SEED}
SMALL_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class Messages:
    """Measured messages of one primitive on one GPU."""

    gpu: str
    primitive: str
    size_bytes: Array
    workers: NDArray[np.int64]
    latency_us: Array

    @property
    def inputs(self) -> Array:
        """Columns as the forest sees them."""
        return np.stack([self.size_bytes, self.workers], axis=1)

    def where(self, keep: NDArray[np.bool_]) -> Messages:
        """The messages where `keep` is true."""
        return Messages(self.gpu, self.primitive, self.size_bytes[keep], self.workers[keep], self.latency_us[keep])


def messages(data: Path) -> list[Messages]:
    """Every published table, with the mean time as the paper uses it."""
    paths = sorted((data / "pipeweave" / "dataset" / "collective").glob("*/*.parquet"))
    return [_read(path) for path in paths]


def _read(path: Path) -> Messages:
    table = pd.read_parquet(path)
    mean_ms = table[f"time_stats.{path.stem}.mean"].to_numpy()
    size, workers = table["size"].to_numpy(dtype=np.float64), table["num_workers"].to_numpy()
    return Messages(path.parent.name.replace("_", " "), path.stem, size, workers, mean_ms * 1e3)


def fit(known: Messages) -> RandomForestRegressor:
    """The published settings."""
    return RandomForestRegressor(**SETTINGS).fit(known.inputs, known.latency_us)


def held_out(known: Messages) -> NDArray[np.bool_]:
    """A fifth of the sizes, the same on every run and for every number of workers."""
    return np.array([zlib.crc32(str(int(size)).encode()) % 5 == 0 for size in known.size_bytes.tolist()])


def score(known: Messages) -> dict[str, float]:
    """MAPE in percent on sizes not trained on: all, below 1 MiB, and from there."""
    out = held_out(known)
    asked = known.where(out)
    error = np.abs(fit(known.where(~out)).predict(asked.inputs) / asked.latency_us - 1)
    small = asked.size_bytes < SMALL_BYTES
    parts = {"all": error, "below 1 MiB": error[small], "from 1 MiB": error[~small]}
    scores = {name: round(100 * float(part.mean()), 2) for name, part in parts.items()}
    return scores | {"rows": len(error), "rows below 1 MiB": int(small.sum())}


def steps(forest: RandomForestRegressor, workers: int) -> Steps:
    """The forest at one number of workers, exactly: its answer between any two thresholds on the size is constant."""
    trees = [estimator.tree_ for estimator in forest.estimators_]
    edges = np.unique(np.concatenate([tree.threshold[tree.feature == 0] for tree in trees]))
    # sklearn compares float32 sizes with these thresholds, so the next float32 below says the same.
    edges = np.unique(_float32_below(edges))
    inside = np.concatenate([edges, [edges[-1] * 2]])  # "<= edge" goes left, so each edge answers for its interval
    value = forest.predict(np.stack([inside, np.full(len(inside), float(workers))], axis=1))
    changes = np.flatnonzero(np.diff(value))
    return Steps(edges[changes].astype(np.float32), value[np.append(changes, len(value) - 1)].astype(np.float32))


def _float32_below(values: Array) -> Array:
    rounded = values.astype(np.float32)
    return np.where(rounded > values, np.nextafter(rounded, np.float32(0)), rounded).astype(np.float64)

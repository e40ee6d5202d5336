"""From a table of the corpus and a net's features to `Rows`.

The seam to a family: `train/nets/<net>.py` offers `rows(data_dir) -> DataFrame` (contract columns, see
`train.corpus.frame`) and `features(frame) -> (features by name, base_us)`, both aligned with the frame.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pipewave.gpus import find
from train.rows import Column, Rows
from train.splits import fold

OLDER = 0.5  # weight of versions that held-out tables do not count: many, and run less and less
COLUMNS = ("gpu", "stack", "framework", "impl", "dtype", "protocol", "phase", "kv_dtype", "part", "op", "source")


def pack(
    frame: pd.DataFrame,
    features: Mapping[str, NDArray[np.float64]],
    base_us: NDArray[np.float64],
    weight: NDArray[np.float64] | None = None,
) -> Rows:
    """Rows of a net. `weight` defaults to `balanced(frame)`. ValueError for NaN features or times."""
    groups, group = np.unique(frame["group"].astype(str).to_numpy(), return_inverse=True)
    folds = np.array([fold(name) for name in groups])
    rows = Rows(
        features=np.stack([features[name] for name in features], axis=1).astype(np.float32),
        names=tuple(features),
        base_us=np.asarray(base_us, np.float64),
        latency_us=frame["latency_us"].to_numpy(np.float64),
        weight=balanced(frame) if weight is None else weight,
        group=group.astype(np.int64),
        fold=folds[group],
        columns=_columns(frame),
    )
    rows.check()
    return rows


def balanced(frame: pd.DataFrame) -> NDArray[np.float64]:
    """Each GPU × protocol × dtype × stack counts by the square root of its rows, older versions half.

    Noisy rows (where known) count less.
    """
    series = ["gpu", "protocol", "dtype", "stack"]
    size = frame.groupby(series, observed=True)["latency_us"].transform("size").to_numpy()
    older = np.where(frame["counted"].to_numpy(bool), 1.0, OLDER) if "counted" in frame else 1.0
    noise = frame["noise"].fillna(0.02).clip(0.02, 1.0).to_numpy(np.float64)
    weight = older / np.sqrt(size) / (1.0 + noise / 0.05)
    return np.asarray(weight / weight.mean(), np.float64)


def _columns(frame: pd.DataFrame) -> dict[str, Column]:
    present = [name for name in COLUMNS if name in frame]
    columns = {name: Column.of(frame[name].astype(str).to_numpy()) for name in present}
    specs = {gpu: find(gpu) for gpu in frame["gpu"].unique()}
    family = frame["gpu"].map({gpu: spec.architecture for gpu, spec in specs.items()})
    capability = frame["gpu"].map({gpu: str(spec.compute_capability) for gpu, spec in specs.items()})
    texts = {"family": family, "capability": capability}
    if "counted" in frame:  # whether held-out tables score a row
        texts["counted"] = frame["counted"].map({True: "yes", False: "no"})
    return columns | {name: Column.of(text.astype(str).to_numpy()) for name, text in texts.items()}

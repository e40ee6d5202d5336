"""A net's cleaned rows as one Parquet file: all that training needs of the corpus, a few bytes a row.

Features are worked out of it where the net is trained. Columns of lists (lengths of ragged batches) or of settings
(Triton configurations) are kept as JSON.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

JSON = "json:"  # before the name of such a column
UNUSED = ("raw_gpu", "device", "power", "power_limit", "latency", "kernel_source")


def save(frame: pd.DataFrame, path: Path) -> None:
    """Write a frame, times in single precision."""
    kept = frame.drop(columns=[name for name in UNUSED if name in frame and name != "op"]).reset_index(drop=True)
    for name in kept:
        if kept[name].dtype == object and kept[name].map(lambda value: isinstance(value, list | tuple)).any():
            text = kept[name].map(lambda value: json.dumps(value) if isinstance(value, list | tuple) else None)
            kept = kept.drop(columns=name).assign(**{JSON + name: text})
        elif kept[name].dtype == np.float64:
            kept[name] = kept[name].astype(np.float32)
    path.parent.mkdir(parents=True, exist_ok=True)
    kept.to_parquet(path, compression="zstd", index=False)


def load(path: Path) -> pd.DataFrame:
    """What `save` wrote."""
    frame = pd.read_parquet(path)
    for name in [name for name in frame if str(name).startswith(JSON)]:
        values = [_tuples(json.loads(text)) if isinstance(text, str) else None for text in frame[name]]
        found = pd.Series(values, index=frame.index, dtype=object)
        frame = frame.drop(columns=name).assign(**{str(name).removeprefix(JSON): found})
    for name in frame.select_dtypes(np.float32):
        frame[name] = frame[name].astype(np.float64)
    return frame


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value

"""Rows and features of the net `gemm`: every measured matrix product whose type the contract names."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pipewave.calls import Gemm
from pipewave.fields import rules
from pipewave.gpus import find
from pipewave.kernels.base import Context
from pipewave.kernels.gemm import analyse
from train import corpus

CONTEXT = ("gpu", "dtype", "protocol", "stack", "impl", "quantize")
# Eager modules of few models, repeated for each of them and rounded: enough to learn the GPU and its protocol.
COARSE = ("llmservingsim", "vidur")
COARSE_ROWS = 3_000


def rows(data_dir: Path | str | None = None) -> pd.DataFrame:
    """The newest version of each framework, coarse sources capped, in the order of `corpus.load`."""
    frame = corpus.newest(corpus.load("gemm", data_dir))
    frame = frame[frame["dtype"].isin(rules(Gemm)["dtype"].choices)]
    coarse = frame["source"].isin(COARSE)
    kept = frame[coarse].groupby(["source", "gpu"], observed=True).sample(COARSE_ROWS, random_state=0, replace=True)
    return pd.concat([frame[~coarse], kept[~kept.index.duplicated()]]).sort_index().reset_index(drop=True)


def features(frame: pd.DataFrame) -> tuple[dict[str, NDArray[np.float64]], NDArray[np.float64]]:
    """Features by name and the base estimate in µs, aligned with `frame`."""
    columns: dict[str, NDArray[np.float64]] = {}
    base_us = np.empty(len(frame))
    for key, index in frame.groupby(list(CONTEXT), observed=True).indices.items():
        gpu, dtype, protocol, stack, impl, quantize = key
        ctx = Context(find(gpu), dtype, protocol, stack, impl, (("quantize", bool(quantize)), ("tile", None)))
        numbers = {name: frame[name].to_numpy(np.float64)[index] for name in ("m", "n", "k")}
        analysis = analyse(numbers | {"ctas": np.zeros(len(index))}, ctx)
        base_us[index] = analysis.base_s * 1e6
        for name, values in analysis.features.items():
            columns.setdefault(name, np.empty(len(frame)))[index] = values
    return columns, base_us

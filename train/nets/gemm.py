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
from train.pack import pack
from train.rows import Rows

CONTEXT = ("gpu", "dtype", "protocol", "stack", "impl", "quantize")
# Eager modules of a few models, repeated and rounded: enough to learn the GPU and its protocol.
COARSE = ("llmservingsim", "vidur")
COARSE_ROWS = 3_000


def rows(data_dir: str | Path | None = None) -> pd.DataFrame:
    """The newest version of each framework, coarse sources capped, our own rows whatever clock they ran at."""
    frame = corpus.load("gemm", data_dir)
    # A long product lowers the clock by itself, so a lowered clock is no reason to doubt a row.
    frame = corpus.newest(frame.assign(flagged=frame["flagged"] & (frame["source"] != "h200")))
    frame = frame[frame["dtype"].isin(rules(Gemm)["dtype"].choices)]
    shuffled = frame.sample(frac=1.0, random_state=0)
    rank = shuffled.groupby(["source", "gpu"], observed=True).cumcount().reindex(frame.index)
    return frame[~frame["source"].isin(COARSE) | (rank < COARSE_ROWS)].reset_index(drop=True)


def features(frame: pd.DataFrame) -> tuple[dict[str, NDArray[np.float64]], NDArray[np.float64]]:
    """Features by name and the base estimate in µs, aligned with `frame`."""
    columns: dict[str, NDArray[np.float64]] = {}
    base_us = np.empty(len(frame))
    numbers = {name: frame[name].to_numpy(np.float64) for name in ("m", "n", "k")}
    for key, index in frame.groupby(list(CONTEXT), observed=True).indices.items():
        gpu, dtype, protocol, stack, impl, quantize = key
        options = (("quantize", bool(quantize)), ("tile", None))
        ctx = Context(find(str(gpu)), str(dtype), str(protocol), str(stack), str(impl), options)
        analysis = analyse({name: values[index] for name, values in numbers.items()}, ctx)
        base_us[index] = analysis.base_s * 1e6
        for name, values in analysis.features.items():
            columns.setdefault(name, np.empty(len(frame)))[index] = values
    return columns, base_us


def build(data_dir: str | Path | None = None) -> Rows:
    """What `train.fit` learns from."""
    frame = rows(data_dir)
    return pack(frame, *features(frame))

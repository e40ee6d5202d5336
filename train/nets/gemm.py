"""Rows and features of the nets `gemm` (16-bit), `gemm_fp8`, `gemm_block` and `gemm_fp4`.

Held-out tables count at most 20,000 rows a GPU and type of the newest versions (`corpus.newest`). Training takes as
many of every version besides (`corpus.versions`); a column `counted` tells them apart.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pipewave.gpus import find
from pipewave.kernels.base import Context
from pipewave.kernels.gemm.family import FAMILY, NET_OF
from train import corpus

NETS = tuple(dict.fromkeys(NET_OF.values()))
CONTEXT = ("gpu", "dtype", "protocol", "stack", "impl", "quantize")
SHAPE = ("m", "n", "k")
# Eager modules of a few models, repeated and rounded: enough to learn the GPU and its protocol.
COARSE = ("llmservingsim", "vidur")
COARSE_ROWS = 3_000
EACH = 5_000  # rows of a version on a GPU

Floats = NDArray[np.float64]


def rows(net: str, data_dir: str | Path | None = None) -> pd.DataFrame:
    """Rows of a net's types of every version; `counted` marks those that held-out tables count."""
    frame = corpus.load("gemm", data_dir)
    frame = frame[frame["dtype"].map(NET_OF).eq(net) & ~_unusable(frame)]
    usable = frame.assign(flagged=frame["partial"])
    counted = corpus.newest(usable.reset_index(names="row"))["row"]
    drawn = corpus.versions(usable[~usable["source"].isin(COARSE)], max_rows=EACH).index
    counts, own = frame.index.isin(counted), corpus.is_own(frame)
    return frame.assign(counted=counts)[counts | own | frame.index.isin(drawn)].reset_index(drop=True)


def _unusable(frame: pd.DataFrame) -> pd.Series:
    """Flagged rows but for our own, which are flagged for a clock that long products lower by themselves."""
    coarse = frame["source"].isin(COARSE)
    surplus = coarse & (frame.sample(frac=1.0, random_state=0).groupby("gpu", observed=True).cumcount() >= COARSE_ROWS)
    return (frame["flagged"] & ~frame["partial"] & ~corpus.is_own(frame)) | surplus


def features(frame: pd.DataFrame) -> tuple[dict[str, Floats], Floats]:
    """Features by name and the base estimate in µs, aligned with `frame`."""
    columns: dict[str, Floats] = {}
    base_us = np.empty(len(frame))
    sizes = {name: frame[name].to_numpy(np.float64) for name in (*SHAPE, "sm_clock_mhz")}
    for key, index in frame.groupby(list(CONTEXT), observed=True).indices.items():
        gpu, dtype, protocol, stack, impl, quantize = key
        options = (("quantize", bool(quantize)), ("tile", None))
        ctx = Context(find(str(gpu)), str(dtype), str(protocol), str(stack), str(impl), options)
        analysis = FAMILY.analyse({name: values[index] for name, values in sizes.items()}, ctx)
        base_us[index] = analysis.base_s * 1e6
        for name, values in analysis.features.items():
            columns.setdefault(name, np.empty(len(frame)))[index] = values
    return columns, base_us

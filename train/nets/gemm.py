"""Rows and features of the nets `gemm` (16-bit), `gemm_fp8`, `gemm_block` and `gemm_fp4`.

Held-out tables count at most 20,000 rows a GPU and type (`corpus.newest`). Training may use every row of the versions
that count, and with `older=True` those of earlier versions too; a column `counted` tells them apart.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pipewave.gpus import find
from pipewave.kernels.base import Context
from pipewave.kernels.gemm.analyse import NET_OF, analyse
from train import corpus
from train.pack import pack
from train.rows import Rows

NETS = tuple(dict.fromkeys(NET_OF.values()))
CONTEXT = ("gpu", "dtype", "protocol", "stack", "impl", "quantize")
SHAPE = ("m", "n", "k")
# Eager modules of a few models, repeated and rounded: enough to learn the GPU and its protocol.
COARSE = ("llmservingsim", "vidur")
COARSE_ROWS = 3_000
# Nothing below 103 µs whatever the size: timed with the host in the way, like the versions that the rules name.
EAGER = {"gpu": "RTX PRO 6000 Server", "stack": "vllm-0.19.0", "dtype": "fp8_block"}
KEPT_BITS = 0xFFFFF000  # 12 bits of a feature's mantissa: 0.02 %, and the file is half as long

Floats = NDArray[np.float64]


def rows(net: str, data_dir: str | Path | None = None, *, older: bool = False) -> pd.DataFrame:
    """Every usable row of a net's types; `counted` marks those that held-out tables count."""
    frame = corpus.load("gemm", data_dir)
    frame = frame[frame["dtype"].map(NET_OF).eq(net) & ~_unusable(frame)]
    counted = corpus.newest(frame.reset_index(names="row").assign(flagged=False))["row"]
    pool = frame if older else frame.loc[corpus.newest(frame.reset_index(names="row"), max_rows=len(frame))["row"]]
    pool = pool.assign(counted=pool.index.isin(counted))
    return pool[pool["counted"] | ~pool["source"].isin(COARSE)].reset_index(drop=True)


def _unusable(frame: pd.DataFrame) -> pd.Series:
    """Flagged rows but for our own, which are flagged for a clock that long products lower by themselves."""
    eager = pd.concat([frame[name].eq(value) for name, value in EAGER.items()], axis=1).all(axis=1)
    coarse = frame["source"].isin(COARSE)
    surplus = coarse & (frame.sample(frac=1.0, random_state=0).groupby("gpu", observed=True).cumcount() >= COARSE_ROWS)
    return (frame["flagged"] & (frame["source"] != "h200")) | eager | surplus


def features(frame: pd.DataFrame) -> tuple[dict[str, Floats], Floats]:
    """Features by name and the base estimate in µs, aligned with `frame`."""
    columns: dict[str, Floats] = {}
    base_us = np.empty(len(frame))
    sizes = {name: frame[name].to_numpy(np.float64) for name in (*SHAPE, "sm_clock_mhz")}
    for key, index in frame.groupby(list(CONTEXT), observed=True).indices.items():
        gpu, dtype, protocol, stack, impl, quantize = key
        options = (("quantize", bool(quantize)), ("tile", None))
        ctx = Context(find(str(gpu)), str(dtype), str(protocol), str(stack), str(impl), options)
        analysis = analyse({name: values[index] for name, values in sizes.items()}, ctx)
        base_us[index] = analysis.base_s * 1e6
        for name, values in analysis.features.items():
            columns.setdefault(name, np.empty(len(frame)))[index] = values
    return columns, base_us


def build(net: str, data_dir: str | Path | None = None, *, older: bool = False) -> Rows:
    """What `train.fit` learns from, with the column `counted` (yes or no)."""
    frame = rows(net, data_dir, older=older)
    packed = pack(frame, *features(frame))
    short = (packed.features.view(np.uint32) & np.uint32(KEPT_BITS)).view(np.float32)
    return replace(packed, features=short)

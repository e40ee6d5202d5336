"""Rows and features of the fused-MoE net."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pipewave.gpus import find
from pipewave.kernels.base import Context
from pipewave.kernels.fused_moe import analyse
from train import corpus
from train.pack import pack
from train.rows import Rows

SIZES = ("tokens", "experts", "topk", "hidden", "inter", "gated", "tp", "ep")
SHARED = ("gpu", "dtype", "protocol", "stack", "impl", "routing", "part")
# The contract has one name for a weight type; what meets it shows in the implementation.
ACTIVATIONS = {"mxfp4_mxfp8": ("mxfp4", ":mxfp8"), "int4_fp8": ("int4", ":w4afp8")}


def rows(data_dir: str | Path | None = None) -> pd.DataFrame:
    """The newest unflagged rows under the contract's names."""
    frame = corpus.training_rows("fused_moe", data_dir)
    names = frame["dtype"].astype(str)
    suffix = names.map({old: tail for old, (_, tail) in ACTIVATIONS.items()}).fillna("")
    return frame.assign(
        dtype=names.replace({old: new for old, (new, _) in ACTIVATIONS.items()}),
        impl=frame["impl"].astype(str) + suffix,
    )


def features(frame: pd.DataFrame) -> tuple[dict[str, NDArray[np.float64]], NDArray[np.float64]]:
    """Features by name and the base estimate in µs, aligned with the frame."""
    base = np.empty(len(frame))
    out: dict[str, NDArray[np.float64]] = {}
    for key, index in frame.groupby(list(SHARED), observed=True).indices.items():
        gpu, dtype, protocol, stack, impl, routing, part = map(str, key)
        ctx = Context(find(gpu), dtype, protocol, stack, impl, (("routing", routing), ("part", part)))
        sizes = {name: frame[name].to_numpy(np.float64)[index] for name in SIZES}
        found = analyse(sizes, ctx)
        base[index] = found.base_s * 1e6
        for name, values in found.features.items():
            out.setdefault(name, np.empty(len(frame)))[index] = values
    return out, base


def build(data_dir: str | Path | None = None) -> Rows:
    """What `train.fit` learns from."""
    frame = rows(data_dir)
    return pack(frame, *features(frame))

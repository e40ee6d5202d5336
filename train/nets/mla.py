"""Rows and features of the nets `mla_context` and `mla_generation`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pipewave.gpus import find
from pipewave.kernels.attention.mla import CONTEXT, GENERATION, analyse_requests
from pipewave.kernels.attention.tasks import uniform
from pipewave.kernels.base import Context
from pipewave.software.stacks import framework, version
from train import corpus
from train.nets import attention

__all__ = ["NETS", "card", "features", "rows"]

NETS = (CONTEXT, GENERATION)
KEYS = ("gpu", "dtype", "protocol", "stack", "impl", "kv_dtype", "phase")
DIMS = (("kv_lora_rank", 512), ("rope_dim", 64))
# Timed without a CUDA graph: 110 to 500 µs of host time whatever the size.
EAGER = ("vllm-0.14.0",)
EACH = 1_500  # rows of a version on a GPU, of each phase and types

Floats = NDArray[np.float64]


def card(net: str, known: dict[str, Any]) -> dict[str, Any]:
    """What attention's card says, and who answers for vLLM, of which no rows are: who works on prompts as it does,
    with expanded K and V (SGLang's kernels do not, and take three times as long).
    """
    said = attention.card(net, known)
    expands = {
        protocol: max((name for name in names if framework(name) == "trtllm"), key=version, default="")
        for protocol, names in known["stacks"].items()
    }
    usual = {protocol: name for protocol, name in expands.items() if name and net == CONTEXT}
    return said | {"default_stack": known["default_stack"] | usual}


def rows(net: str, data_dir: Path | str | None = None) -> pd.DataFrame:
    """Rows of every version that ran in a graph; `counted` are those of the newest of each framework."""
    every = corpus.load("mla", data_dir)
    newest = corpus.newest(every.reset_index(names="row"))["row"]
    drawn = corpus.versions(every, max_rows=EACH).index
    frame = every.assign(counted=every.index.isin(newest))[every.index.isin(newest) | every.index.isin(drawn)]
    phase = net.removeprefix("mla_")
    return usable(frame[frame["phase"] == phase]).reset_index(drop=True)


def usable(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows that ran in a graph, in the groups that are held out together."""
    frame = frame[~frame["stack"].isin(EAGER)]
    return frame.assign(group=group(frame))


def group(frame: pd.DataFrame) -> pd.Series:
    """What is held out together: eight head counts are too few, so a head count at a batch size."""
    return frame["heads"].astype(str) + "," + frame["batch"].astype(str)


def features(_net: str, frame: pd.DataFrame) -> tuple[dict[str, Floats], Floats]:
    """Features by name and the base estimate in µs, aligned with `frame`."""
    columns: dict[str, Floats] = {}
    base_us = np.empty(len(frame))
    for key, index in frame.groupby(list(KEYS), observed=True).indices.items():
        gpu, dtype, protocol, stack, impl, kv_dtype, phase = key
        options = (("kv_dtype", kv_dtype), ("phase", phase), *DIMS)
        part = frame.iloc[index]
        requests = uniform(*(part[name].to_numpy(np.float64) for name in ("q_len", "kv_len", "batch")))
        heads = {"heads": part["heads"].to_numpy(np.float64)}
        analysis = analyse_requests(requests, heads, Context(find(gpu), dtype, protocol, stack, impl, options))
        base_us[index] = analysis.base_s * 1e6
        for name, values in analysis.features.items():
            columns.setdefault(name, np.empty(len(frame)))[index] = values
    return columns, base_us

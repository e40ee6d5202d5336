"""Rows and features of dispatch and combine (`moe_all_to_all`) and of the two fused with experts (`mega_moe`)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from corpus import operators
from pipewave.gpus import find
from pipewave.kernels import family_of
from pipewave.kernels.operators import ALL_TO_ALL, MEGA
from train.net import Net, balanced_names, grouped, spread

MOST = 2_000
NAMES = {"num_tokens": "tokens", "num_token": "tokens", "hidden_size": "hidden", "inter_size": "inter"}
NAMES |= {"num_topk": "topk", "num_experts": "experts", "ep_size": "ep", "moe_ep_size": "ep", "node_num": "nodes"}
TYPES = {"default": "bf16", "bfloat16": "bf16", "fp4": "nvfp4", "nvfp4": "nvfp4", "fp8": "fp8"}
BACKENDS = {f"{engine}{name}": name for engine in ("", "trtllm_") for name in ("deepep_ht", "deepep_ll")}
SIDES = {"NVLinkOneSided": "nvlink_one_sided", "NVLinkTwoSided": "nvlink_two_sided"}
# vLLM dispatches in 290 us from 16 to 512 tokens (TensorRT-LLM with the same library in 70): host time.
HOST_BOUND = ("vllm", "deepep_ht", "dispatch", 512)
EXCHANGES = ("moe_a2a", "wideep_deepep_normal", "wideep_deepep_ll", "trtllm_alltoall")  # tables
MEGA_TABLE = "dsv4_megamoe_module"


def rows(net: str, data_dir: Path | str | None = None) -> pd.DataFrame:
    """All versions of the net's tables."""
    if net == MEGA:
        return _mega(data_dir)
    a2a, normal, low, trtllm = (operators.table(name, data_dir).rename(columns=NAMES) for name in EXCHANGES)
    parts = [_a2a(a2a), *_deepep(normal, "deepep_ht"), *_deepep(low, "deepep_ll"), _trtllm(trtllm)]
    frame = pd.concat(parts, ignore_index=True)
    return operators.capped(frame.assign(group=balanced_names(grouped(frame, "hidden", "topk", "experts", "ep"))), MOST)


def _a2a(frame: pd.DataFrame) -> pd.DataFrame:
    """DeepEP called by vLLM and TensorRT-LLM; µs. Its version 2 varies fourfold between equal sizes: left out."""
    frame = frame[frame["comm_backend"].isin(list(BACKENDS))].reset_index(drop=True)
    backend, dtype = frame["comm_backend"].map(BACKENDS), frame["comm_dtype"].map(TYPES)
    frame = frame.assign(direction=frame["phase"], backend=backend, dtype=dtype, latency_us=frame["latency"])
    framework, mine, way, most = HOST_BOUND
    named = (frame["framework"] == framework) & (frame["backend"] == mine) & (frame["direction"] == way)
    return _finished(frame[~(named & (frame["tokens"] <= most))])


def _deepep(frame: pd.DataFrame, backend: str) -> Iterator[pd.DataFrame]:
    """The library's own benchmark: dispatch of 8-bit tokens, combine of 16-bit results; hosts of 8 cards (GB200: 4)."""
    cards = frame["gpu"].map({gpu: find(gpu).gpus_per_node for gpu in frame["gpu"].unique()})
    for direction, dtype in (("dispatch", "fp8"), ("combine", "bf16")):
        took = frame.get(f"{direction}_avg_t_us")
        if took is None:
            took = frame[f"{direction}_transmit_us"] + frame[f"{direction}_notify_us"]
        said = {"direction": direction, "backend": backend, "dtype": dtype, "latency_us": took}
        sms = frame.get(f"{direction}_sms", 0)
        yield _finished(frame.assign(ep=frame["nodes"] * cards, sms=sms, **said))


def _trtllm(frame: pd.DataFrame) -> pd.DataFrame:
    """NVLink exchange; results return in 16 bits unless the operation says low precision."""
    way = frame["op_name"].str.removeprefix("alltoall_")
    frame = frame.assign(way=way)[way != "prepare"].reset_index(drop=True)
    back, low = frame["way"].str.startswith("combine"), frame["way"].str.endswith("low_precision")
    dtype = frame["moe_dtype"].map(TYPES).mask(back, "bf16").mask(low, "nvfp4")
    backend, direction = frame["kernel_source"].map(SIDES), np.where(back, "combine", "dispatch")
    return _finished(frame.assign(direction=direction, backend=backend, dtype=dtype, nodes=1, sms=0))


def _finished(frame: pd.DataFrame) -> pd.DataFrame:
    known = ["gpu", "stack", "framework", "protocol", "source", "noise", "dtype", "latency_us", "direction", "backend"]
    sizes = frame[["tokens", "hidden", "topk", "experts", "ep", "nodes", "sms"]].astype(np.int64)
    runs = [find(gpu).supports(dtype) for gpu, dtype in zip(frame["gpu"], frame["dtype"], strict=True)]
    kept = pd.concat([frame[known], sizes], axis=1).assign(impl=frame["backend"], phase=frame["direction"])
    return kept[(kept["latency_us"] > 0) & np.array(runs)]  # a payload of a type that the GPU lacks is only moved


def _mega(data_dir: Path | str | None) -> pd.DataFrame:
    """Balanced and power-law routing; that sampled from a trace has no stored histogram and is left out."""
    frame = operators.table(MEGA_TABLE, data_dir).rename(columns=NAMES)
    frame = frame[~frame["distribution"].str.contains("sampled")].reset_index(drop=True)
    frame = frame.assign(routing=frame["distribution"], dtype="mxfp4", nodes=1)
    return frame.assign(group=grouped(frame, "hidden", "ep", "tokens"))


NETS = {name: Net(rows, family_of(name), (*EXCHANGES, MEGA_TABLE), spread) for name in (ALL_TO_ALL, MEGA)}

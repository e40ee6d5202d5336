"""Rows and features of delta nets (`gdn_*`, `kda_*`) and of the short convolution before them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from corpus import operators
from pipewave.kernels import family_of
from pipewave.kernels.recurrent import CONV
from train.net import Net, balanced_names, grouped, spread

MOST = 1_500  # rows of a GPU, stack and kernel
GROUPS = {"gdn": ("k_heads", "v_heads"), "kda": ("v_heads", "batch")}  # one model of four shards is no group of its own
# 1.1 ms for 1,024 requests of 32 heads on an H100 and 2.07 ms on an A100: more than DRAM gives if states were fp32.
OLD_COLLECTOR = ("trtllm-1.3.0rc20", "sglang-0.5.10")
CONV_ROWS = ("gdn", "kda", "mamba2")


def rows(net: str, data_dir: Path | str | None = None) -> pd.DataFrame:
    """All versions of the net's kernels."""
    if net == CONV:
        return _conv(data_dir)
    kind, part = net.split("_")
    frame = _named(operators.table(kind, data_dir))
    frame = frame[
        ~frame["impl"].str.startswith("causal_conv1d") & ((frame["phase"] == "context") == (part == "context"))
    ]
    states = np.where(frame["stack"].isin(OLD_COLLECTOR), "bf16", "fp32")
    frame = frame.assign(kind=kind, state_dtype=states)
    return operators.capped(frame.assign(group=balanced_names(grouped(frame, *GROUPS[kind]))), MOST)


def _named(frame: pd.DataFrame) -> pd.DataFrame:
    names = {"batch_size": "batch", "seq_len": "q_len", "num_k_heads": "k_heads", "num_v_heads": "v_heads"}
    return frame.rename(columns=names)


def _conv(data_dir: Path | str | None) -> pd.DataFrame:
    parts = [_named(operators.table(name, data_dir)).assign(table=name) for name in CONV_ROWS]
    frame = pd.concat(parts, ignore_index=True)
    frame = frame[frame["impl"].str.startswith("causal_conv1d")].reset_index(drop=True)
    branches = np.where(frame["impl"].str.endswith("_qkv3"), 3, 1)
    frame = frame.assign(channels=channels(frame), width=frame["d_conv"], branches=branches)
    return operators.capped(frame.assign(group=balanced_names(frame["channels"])), MOST)


def channels(frame: pd.DataFrame) -> pd.Series:
    """Queries, keys and values (delta nets) or x, B and C (Mamba 2).

    Rows of delta nets from TensorRT-LLM and SGLang 0.5.10 take as long with 12,288 channels as with 6,144: 16.2 TB/s
    would be needed for all, five times what an H100 has. With the queries' alone they run at the rate of the same
    kernel's rows of Mamba 2, so that is what they had.
    """
    keys = frame["k_heads"] * frame["head_k_dim"]
    delta = np.where(frame["stack"].isin(OLD_COLLECTOR), keys, 2 * keys + frame["v_heads"] * frame["head_v_dim"])
    scan = frame["nheads"] * frame["head_dim"] + 2 * frame["n_groups"] * frame["d_state"]
    return pd.Series(np.where(frame["table"] == "mamba2", scan, delta), index=frame.index).astype(np.int64)


NETS = {
    net: Net(rows, family_of(name), CONV_ROWS, spread) for name in ("delta_net", CONV) for net in family_of(name).nets
}

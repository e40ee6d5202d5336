"""Rows and features of hyper-connections and of batched products."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from corpus import operators
from pipewave.kernels import family_of
from pipewave.kernels.operators import BATCHED, HYPER
from train.net import Net, grouped, spread

MOST = 1_000
# A row times the connections of attention and of the experts, as its `num_sites` says: 65,536 tokens of 4,096 move
# 4.8 GB in `post`, which takes 3.26 ms on an H100, twice what its DRAM needs.
SITES = 2.0
LATENT, HEAD = 512, 128  # of DeepSeek's MLA: into the latent space before attention, out of it after


def rows(net: str, data_dir: Path | str | None = None) -> pd.DataFrame:
    """All versions of the net's table."""
    frame = _hyper(data_dir) if net == HYPER else _batched(data_dir)
    return operators.capped(frame, MOST)


def _hyper(data_dir: Path | str | None) -> pd.DataFrame:
    """One connection a call."""
    names = {"num_tokens": "tokens", "hidden_size": "hidden", "hc_mult": "mult", "op_name": "part"}
    frame = operators.table("mhc_module", data_dir).rename(columns=names)
    frame = frame.assign(latency_us=frame["latency_us"] / SITES, sinkhorn_iters=20)
    return frame.assign(group=grouped(frame, "hidden", "tokens"))


def _batched(data_dir: Path | str | None) -> pd.DataFrame:
    frame = operators.table("mla_bmm", data_dir).rename(columns={"num_heads": "batch", "num_tokens": "m"})
    before = frame["op_name"] == "mla_gen_pre"
    n, k = np.where(before, LATENT, HEAD), np.where(before, HEAD, LATENT)
    frame = frame.assign(n=n, k=k, dtype=operators.typed(frame, "bmm_dtype"), part=frame["op_name"])
    return frame.assign(group=grouped(frame, "batch", "n"))


NETS = {name: Net(rows, family_of(name), ("mhc_module", "mla_bmm"), spread) for name in (HYPER, BATCHED)}

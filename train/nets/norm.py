"""Rows and features of the nets `rmsnorm` and `silu_and_mul`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import corpus
from pipewave.kernels import family_of
from train.net import Net, both_halves

SARATHI_ROWS = 2_000  # a GPU: eager layers of eight models, rounded to 1 µs, many of equal shape


def rows(net: str, data_dir: Path | str | None = None) -> pd.DataFrame:
    """The newest version of each framework, the coarse old kernels capped."""
    frame = corpus.training_rows(net, data_dir)
    old = frame["framework"] == "sarathi"
    kept = frame[old].groupby("gpu", observed=True).sample(SARATHI_ROWS, random_state=0)
    return both_halves(pd.concat([frame[~old], kept]).reset_index(drop=True))


def weight(frame: pd.DataFrame, balanced: np.ndarray) -> np.ndarray:
    """Old kernels count a fifth: what runs today is learned from few rows."""
    return np.asarray(np.where(frame["framework"] == "sarathi", 0.2, 1.0) * balanced)


def card(_: str, card: dict[str, Any]) -> dict[str, Any]:
    """Under protocols without rows, vLLM's kernels and not the oldest ones stand in."""
    newest = max(stack for stacks in card["stacks"].values() for stack in stacks if stack.startswith("vllm"))
    return {"default_stack": {"cold": newest, "graph": newest} | card["default_stack"]}


NETS = {name: Net(rows, family_of(name), weight=weight, card=card) for name in ("rmsnorm", "silu_and_mul")}

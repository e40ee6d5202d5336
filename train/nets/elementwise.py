"""Rows and features of the net `elementwise`: static fp8 quantisation, rotary embedding and cache writes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import corpus
from pipewave.calls.dtypes import ACTIVATION_BYTES
from pipewave.kernels import family_of
from pipewave.measure.row_files import rows as measured
from train.net import Net, both_halves

FAMILY = family_of("elementwise")

QUANTIZE_ROWS = 6_000  # of six GPUs: a smooth function of two sizes
FP32 = 4.0
LAYOUT = ("heads", "kv_heads", "head_dim", "dim")
BYTES = ("bytes_read", "bytes_written", "weight_bytes")
OUTCOME = ("protocol", "stack", "impl", "latency_us", "min_us", "max_us")
INDEX = 8.0  # bytes of a position or slot


def rows(_: str, data_dir: Path | str | None = None) -> pd.DataFrame:
    """Quantisation by one kernel (SGLang's is a chain of PyTorch operations), our rope and kv_write rows.

    What has no rows of its own is taken for quantisation or a gated activation, unnamed.
    """
    frame = corpus.training_rows("quantize", data_dir)
    frame = frame[frame["framework"] != "sglang"].sample(QUANTIZE_ROWS, random_state=0)
    elements = frame["rows"] * frame["dim"]
    sizes = dict(zip(BYTES, (ACTIVATION_BYTES * elements, 1.0 * elements, FP32 + 0.0 * elements), strict=True))
    frame = frame.assign(op="quantize", dtype="bf16", **sizes)
    parts = [frame, frame.assign(op=PLAIN), *(own(op) for op in SIZES if any(corpus.own_files(op)))]
    return both_halves(pd.concat([part.astype({"op": "object"}) for part in parts], ignore_index=True))


def own(op: str) -> pd.DataFrame:
    """Our rows of one operation, with the bytes a layer's call would name."""
    files = list(corpus.own_files(op))
    taken = ((row, {"gpu": gpu, "source": source}) for source, gpu, file in files for row in measured(file))
    frame = pd.DataFrame([row["case"] | where | {name: row[name] for name in OUTCOME} for row, where in taken])
    sizes: dict[str, Any] = dict(zip(BYTES, SIZES[op](frame), strict=True))
    layout = frame[[name for name in LAYOUT if name in frame]].astype(str).agg(",".join, axis=1)
    noise = (frame["max_us"] - frame["min_us"]) / frame["latency_us"] / 2
    framework = frame["stack"].str.partition("-")[0]
    sizes |= {"group": layout, "noise": noise, "framework": framework}
    return frame.assign(op=OPS.get(op, op), **sizes)


def rope_bytes(frame: pd.DataFrame) -> tuple[pd.Series, ...]:
    """Queries and keys in and out, cosines and sines from a table."""
    size = ACTIVATION_BYTES * frame["rows"] * (frame["heads"] + frame["kv_heads"]) * frame["head_dim"]
    return size, size, ACTIVATION_BYTES * frame["rows"] * frame["head_dim"]


def kv_write_bytes(frame: pd.DataFrame) -> tuple[pd.Series, ...]:
    """Keys and values and a slot number in, keys and values out."""
    size = 2 * ACTIVATION_BYTES * frame["rows"] * frame["kv_heads"] * frame["head_dim"]
    return size + INDEX * frame["rows"], size, 0.0 * size


def activation_bytes(frame: pd.DataFrame) -> tuple[pd.Series, ...]:
    """Two values in, one out."""
    size = ACTIVATION_BYTES * frame["rows"] * frame["dim"]
    return 2 * size, size, 0.0 * size


SIZES: dict[str, Callable[[pd.DataFrame], tuple[pd.Series, ...]]] = {
    "rope": rope_bytes,
    "kv_write": kv_write_bytes,
    "silu_and_mul": activation_bytes,
}
PLAIN = "elementwise"
OPS = {"silu_and_mul": PLAIN}


def weight(frame: pd.DataFrame, balanced: np.ndarray) -> np.ndarray:
    """Kernels of a layer count more than quantisation, which products contain already."""
    return np.asarray(np.where(frame["op"] == "quantize", 0.3, 1.0) * balanced)


def card(_: str, card: dict[str, Any]) -> dict[str, Any]:
    """Under protocols without rows, the newest vLLM stands in."""
    newest = max(stack for stacks in card["stacks"].values() for stack in stacks if stack.startswith("vllm"))
    return {"default_stack": {"cold": newest, "profiler_warm": newest} | card["default_stack"]}


NETS = {"elementwise": Net(rows, FAMILY, ("scale_matrix",), weight, card)}

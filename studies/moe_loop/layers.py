"""Measured layers of the loop beside their predicted ceilings. Numpy only."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import pipewave as pw
from pipewave.physics.demand import Array

PARTS = {  # of a layer, by what kernels' names hold; the first that fits
    "activation": ("act_and_mul",),
    "sort": ("align", "count", "place"),
    "sum": ("reduce_kernel", "moe_sum", "total", "elementwise"),  # the last writes zeros that are added to
    "products": ("fused_moe_kernel", "up", "down"),
}


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer; times in µs, each the sum of a way's kernels.

    `default`, `file`: vLLM with its default configuration, and with its own tuned file where it ships one; `tuned`:
    its kernel with our tuner's choice; `ours`: our layer, by `few` on the path for few tokens; `other`: by the path
    not taken, where it was timed. `default_parts`, `our_parts`: µs by PARTS. `hit`: experts that got a token. `error`:
    of ours, relative; to float64 if `exact`, else to vLLM's result.
    """

    model: str
    tp: int
    m: int
    e: int
    top_k: int
    hidden: int
    inter: int
    skew: int
    ceiling: float
    predicted: float
    default: float
    file: float | None
    tuned: float
    ours: float
    other: float | None
    default_parts: dict[str, float]
    our_parts: dict[str, float]
    hit: int
    few: bool
    error: float
    exact: bool

    @property
    def served(self) -> float:
        """vLLM as it runs by itself."""
        return self.default if self.file is None else self.file

    @property
    def oracle(self) -> float:
        """The better of our two paths."""
        return self.ours if self.other is None else min(self.ours, self.other)

    @property
    def flagged(self) -> bool:
        """Whether vLLM's own configuration lies above the ceiling."""
        return self.served > self.ceiling


def read(path: Path) -> list[dict[str, Any]]:
    """Rows of a `loop.jsonl`, packed or plain, that were measured."""
    text = gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text()
    rows = [json.loads(line) for line in text.splitlines()]
    return [row for row in rows if "failed" not in row]


def join(rows: Sequence[dict[str, Any]], gpu: str = "H200") -> list[Layer]:
    """Predict the ceiling of every layer and join."""
    found = pw.predict([call(row) for row in rows], gpu)
    return [_layer(row, float(found.ceiling_us[i]), float(found.latency_us[i])) for i, row in enumerate(rows)]


def call(row: Mapping[str, Any]) -> Any:
    """The call a layer is, with the routing that was drawn."""
    s = row["shape"]
    return pw.fused_moe(tokens=s["m"], experts=s["e"], topk=s["top_k"], hidden=s["hidden"], inter=s["inter"],
                        routing=tuple(row["counts"]))  # fmt: skip


def _layer(row: Mapping[str, Any], ceiling: float, predicted: float) -> Layer:
    shape = {name: value for name, value in row["shape"].items() if name != "seed"}
    us = {name: way["us"] for name, way in row["ways"].items()}
    mine, other = ("ours_few", "ours_sorted") if row["few"] else ("ours_sorted", "ours_few")
    return Layer(**shape, ceiling=ceiling, predicted=predicted, default=us["vllm_default"], file=us.get("vllm_file"),
                 tuned=us["vllm_tuned"], ours=us[mine], other=us.get(other),
                 default_parts=parts(row["ways"]["vllm_default"]), our_parts=parts(row["ways"][mine]),
                 hit=sum(count > 0 for count in row["counts"]), few=row["few"],
                 error=row["errors"][mine], exact=row["exact"])  # fmt: skip


def parts(way: Mapping[str, Any]) -> dict[str, float]:
    """µs of a way's kernels by what they do."""
    found = dict.fromkeys(PARTS, 0.0)
    for name, us in way["kernels"]:
        found[next(part for part, words in PARTS.items() if any(word in name for word in words))] += us
    return found


def column(of: Sequence[Layer], take: str | Callable[[Layer], float]) -> Array:
    """A number of each layer, by its name or by a function."""
    get = (lambda layer: getattr(layer, take)) if isinstance(take, str) else take
    return np.array([get(layer) for layer in of], float)

"""What the nets of norms, streaming kernels and collectives share: rows and features by net, twins of 16-bit types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pipewave.gpus import find
from pipewave.kernels.base import Context, Family

Features = tuple[dict[str, NDArray[np.float64]], NDArray[np.float64]]
MODULES = ("norm", "elementwise", "collective", "recurrent", "attention_module", "expert_exchange", "layer_parts")
HALVES = ("bf16", "fp16")


@dataclass(frozen=True, slots=True)
class Small:
    """A net that shares its module with others: `module` offers rows, features, weight and card, given the net's name.

    Its plans are `train/plans/<net>.net.json` and `<net>.ceiling.json`. Nets of one `one_width` share a
    half-width where other software answers (`train.software`).
    """

    module: str
    one_width: str = ""


def nets() -> dict[str, Small]:
    """All small nets by name."""
    return {name: net for module in MODULES for name, net in import_module(f"train.nets.{module}").NETS.items()}


def both_halves(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows of one 16-bit type also as the other: kernels that only move data do not distinguish them."""
    half = frame["dtype"].isin(HALVES)
    twins = frame[half].assign(dtype=frame.loc[half, "dtype"].map(dict(zip(HALVES, HALVES[::-1], strict=True))))
    return pd.concat([frame.astype({"dtype": "object"}), twins.astype({"dtype": "object"})], ignore_index=True)


def analysed(family: Family, frame: pd.DataFrame, columns: Sequence[str]) -> Features:
    """What the family makes of these rows: features by name, base estimate in µs."""
    options = [*family.options, *(["variant"] if family.variant else [])]
    names = ["gpu", "dtype", "protocol", "stack", "impl", *options]
    found: dict[str, NDArray[np.float64]] = {}
    base_us = np.empty(len(frame))
    groups: Mapping[Any, Any] = frame.groupby(names, observed=True).indices
    for (gpu, dtype, protocol, stack, impl, *rest), index in groups.items():
        ctx = Context(find(gpu), dtype, protocol, stack, impl, tuple(zip(options, rest, strict=True)))
        analysis = family.analyse({name: frame[name].to_numpy(np.float64)[index] for name in columns}, ctx)
        base_us[index] = analysis.base_s * 1e6
        for name, values in analysis.features.items():
            found.setdefault(name, np.empty(len(frame)))[index] = values
    return found, base_us

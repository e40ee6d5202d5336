"""What the nets of newer operators share: requests that are all alike, and weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pipewave.calls.fields import defaults
from pipewave.gpus import find
from pipewave.kernels.attention.tasks import Requests, uniform
from pipewave.kernels.base import Analysis, Columns, Context, Family
from pipewave.physics.demand import floor_s
from pipewave.prediction.columns import numeric_fields
from train.splits import FOLDS, HELD_OUT, SCORED, fold

Features = tuple[dict[str, NDArray[np.float64]], NDArray[np.float64]]
NO_REQUESTS = uniform(*(np.ones(1) for _ in range(3)))
Index = NDArray[np.intp]
Analyse = Callable[[Requests, Columns, Context], Analysis]


def analyses(family: Family, analyse: Analyse, frame: pd.DataFrame) -> Iterator[tuple[Index, Context, Analysis]]:
    """Rows that share a context, the context, and what the family makes of them.

    Rows are of `batch` requests with `q_len` new tokens and `kv_len` keys each.
    """
    usual = defaults(family.call)
    keys = ["gpu", "dtype", "protocol", "stack", "impl", *(name for name in family.options if name in frame)]
    for (gpu, dtype, protocol, stack, impl, *rest), index in frame.groupby(keys, observed=True).indices.items():
        said = dict(zip(keys[5:], rest, strict=True))
        options = tuple((name, said.get(name, usual.get(name))) for name in family.options)
        part, ctx = frame.iloc[index], Context(find(gpu), dtype, protocol, stack, impl, options)
        columns = {name: _column(part, name, usual.get(name) or 0) for name in numeric_fields(family)}
        yield index, ctx, analyse(_requests(part), columns, ctx)


def batches(family: Family, analyse: Analyse, frame: pd.DataFrame) -> Features:
    """Features by name and the base estimate in µs, aligned with `frame`."""
    found: dict[str, NDArray[np.float64]] = {}
    base_us = np.empty(len(frame))
    for index, _, analysis in analyses(family, analyse, frame):
        base_us[index] = analysis.base_s * 1e6
        for name, values in analysis.features.items():
            found.setdefault(name, np.full(len(frame), np.nan))[index] = values
    return found, base_us


def plain(family: Family, frame: pd.DataFrame) -> Features:
    """The same of a family whose calls hold numbers only."""
    return batches(family, lambda _, columns, ctx: family.analyse(columns, ctx), frame)


def floors_us(family: Family, analyse: Analyse, frame: pd.DataFrame) -> NDArray[np.float64]:
    """Physical lower bound of each row, µs."""
    least = np.empty(len(frame))
    for index, ctx, analysis in analyses(family, analyse, frame):
        least[index] = floor_s(analysis.demand.seconds(ctx.gpu, ctx.dtype)) * 1e6
    return least


def _requests(part: pd.DataFrame) -> Requests:
    if "q_len" not in part:
        return NO_REQUESTS
    keys = part["kv_len"] if "kv_len" in part else part["q_len"]
    return uniform(*(column.to_numpy(np.float64) for column in (part["q_len"], keys, part["batch"])))


def _column(part: pd.DataFrame, name: str, otherwise: float) -> NDArray[np.float64]:
    return part[name].fillna(0).to_numpy(np.float64) if name in part else np.full(len(part), float(otherwise))


def balanced_names(groups: pd.Series) -> pd.Series:
    """The groups under names whose folds hold out some of them each: with a dozen groups, hashes leave folds empty."""
    names = sorted(groups.astype(str).unique())
    best = max(range(200), key=lambda salt: _evenness([fold(_salted(name, salt)) for name in names]))
    return groups.astype(str).map({name: _salted(name, best) for name in names})


def _salted(name: str, salt: int) -> str:
    return f"{name};{salt}"


def _evenness(folds: list[int]) -> tuple[bool, int]:
    """Whether the fold that shipped weights are scored on holds any, and groups in the emptiest scored fold."""
    counts = Counter(folds)
    filled = sum(min(counts[number], len(folds) // FOLDS + 1) for number in SCORED)
    return counts[HELD_OUT] > 0, filled


def spread(frame: pd.DataFrame, _balanced: NDArray[np.float64]) -> NDArray[np.float64]:
    """Each GPU × stack × kernel counts by the square root of its rows."""
    size = frame.groupby(["gpu", "stack", "impl"], observed=True)["latency_us"].transform("size").to_numpy()
    weight = 1.0 / np.sqrt(size)
    return np.asarray(weight / weight.mean(), np.float64)

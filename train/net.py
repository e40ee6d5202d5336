"""What a net learns from: where its rows come from, how they are analysed, what each counts; from frame to `Rows`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from corpus.select import FOLDS, HELD_OUT, fold
from pipewave.calls.fields import defaults
from pipewave.gpus import find
from pipewave.kernels.attention.tasks import Requests, requests_of
from pipewave.kernels.base import Analysis, Columns, Context, Family
from pipewave.prediction.columns import numeric_fields, ragged
from train.rows import Column, Floats, Rows
from train.splits import SCORED

MODULES = ("gemm", "attention", "mla", "fused_moe", "norm", "elementwise", "collective", "recurrent",
           "attention_module", "expert_exchange", "layer_parts")  # fmt: skip
HALVES = ("bf16", "fp16")
OLDER = 0.5  # weight of versions that held-out tables do not count: many, and run less and less
COLUMNS = ("gpu", "stack", "framework", "impl", "dtype", "protocol", "phase", "kv_dtype", "part", "op", "source")
Features = tuple[dict[str, Floats], Floats]  # by name, and the base estimate in µs
Analyse = Callable[[Columns, Context], Analysis]


def as_variant(net: str, frame: pd.DataFrame) -> pd.DataFrame:
    """A frame of a family that has several nets, its rows asked of this one."""
    return frame.assign(variant=net)


def spread(frame: pd.DataFrame, _balanced: Floats) -> Floats:
    """Each GPU × stack × kernel counts by the square root of its rows."""
    size = frame.groupby(["gpu", "stack", "impl"], observed=True)["latency_us"].transform("size").to_numpy()
    weight = 1.0 / np.sqrt(size)
    return np.asarray(weight / weight.mean(), np.float64)


@dataclass(frozen=True, slots=True)
class Net:
    """How the rows of a net are made, given its name.

    `rows`: its frame in contract columns (`corpus.frame`), of a corpus folder. `family`: whose physics gives features,
    of the frame as `prepared`, where it needs more than `family.analyse` by `analyse`.
    `tables`: public tables that they come from. `weight`: of a frame and its balanced weights. `card`: what the card
    says beyond the software that its rows show. `usual`: rows that default implementations are taken from. `packed`:
    rows of a frame, features and base estimate, where these need more than `pack`. `plans`: whose plans it shares.
    Nets of one `one_width` share a half-width where other software answers (`train.software`).
    """

    rows: Callable[[str, Path | str | None], pd.DataFrame]
    family: Family
    tables: tuple[str, ...] = ()
    weight: Callable[[pd.DataFrame, Floats], Floats] = lambda _frame, balanced: balanced
    card: Callable[[str, dict[str, Any]], dict[str, Any]] = lambda _net, _known: {}
    usual: Callable[[Rows], NDArray[np.bool_]] | None = None
    packed: Callable[[pd.DataFrame, dict[str, Floats], Floats], Rows] | None = None
    plans: str = ""
    one_width: str = ""
    prepared: Callable[[str, pd.DataFrame], pd.DataFrame] = lambda _net, frame: frame
    analyse: Analyse | None = None

    def features(self, name: str, frame: pd.DataFrame) -> Features:
        """Features by name and the base estimate in µs, aligned with `frame`."""
        return features_of(self.family, self.prepared(name, frame), self.analyse)


@cache
def nets() -> dict[str, Net]:
    """All nets by name, the large ones first."""
    return {name: net for module in MODULES for name, net in import_module(f"train.nets.{module}").NETS.items()}


def both_halves(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows of one 16-bit type also as the other: kernels that only move data do not distinguish them."""
    half = frame["dtype"].isin(HALVES)
    twins = frame[half].assign(dtype=frame.loc[half, "dtype"].map(dict(zip(HALVES, HALVES[::-1], strict=True))))
    return pd.concat([frame.astype({"dtype": "object"}), twins.astype({"dtype": "object"})], ignore_index=True)


def grouped(frame: pd.DataFrame, *names: str) -> pd.Series:
    """What is held out together: these columns as text."""
    return frame[list(names)].astype(str).agg(",".join, axis=1)


def balanced_names(groups: pd.Series) -> pd.Series:
    """The groups under names whose folds hold out some of them each: with a dozen groups, hashes leave folds empty."""
    names = sorted(groups.astype(str).unique())
    best = max(range(200), key=lambda salt: _evenness([fold(f"{name};{salt}") for name in names]))
    return groups.astype(str).map({name: f"{name};{best}" for name in names})


def _evenness(folds: list[int]) -> tuple[bool, int]:
    """Whether the fold that shipped weights are scored on holds any, and groups in the emptiest scored fold."""
    counts = Counter(folds)
    filled = sum(min(counts[number], len(folds) // FOLDS + 1) for number in SCORED)
    return counts[HELD_OUT] > 0, filled


def analyses(
    family: Family, frame: pd.DataFrame, analyse: Analyse | None = None
) -> Iterator[tuple[NDArray[np.intp], Context, Analysis]]:
    """Places of rows that share a context, the context, and what the family makes of them.

    What a frame lacks has its default. Rows of families with requests are of `batch` requests with `q_len` new tokens
    and `kv_len` keys each, or of those whose lengths column `lens` lists.
    """
    usual, listed = defaults(family.call), frame["lens"].notna() if "lens" in frame else None
    names = [*family.options, *(["variant"] if "variant" in frame else [])]
    keys = ["gpu", "dtype", "protocol", "stack", "impl", *(name for name in names if name in frame)]
    by = [*keys, *([] if listed is None else [listed])]
    for key, index in frame.groupby(by, observed=True).indices.items():
        said = {name: getattr(value, "item", lambda value=value: value)() for name, value in zip(by, key, strict=True)
                if isinstance(name, str)}  # fmt: skip
        options = tuple((name, said.get(name, usual.get(name))) for name in names)
        part = frame.iloc[index]
        ctx = Context(find(said["gpu"]), said["dtype"], said["protocol"], said["stack"], said["impl"], options)
        columns = {name: _column(part, name, usual.get(name) or 0) for name in numeric_fields(family)}
        requests = [_requests(part)] if family.ragged else []
        yield index, ctx, analyse(columns, ctx) if analyse else family.analyse(columns, ctx, *requests)


def features_of(family: Family, frame: pd.DataFrame, analyse: Analyse | None = None) -> Features:
    """Features by name and the base estimate in µs, aligned with `frame`."""
    found: dict[str, Floats] = {}
    base_us = np.empty(len(frame))
    for index, _, analysis in analyses(family, frame, analyse):
        base_us[index] = analysis.base_s * 1e6
        for name, values in analysis.features.items():
            found.setdefault(name, np.full(len(frame), np.nan))[index] = values
    return found, base_us


def _requests(part: pd.DataFrame) -> Requests:
    if "lens" in part and part["lens"].notna().all():
        q_lens, kv_lens = zip(*part["lens"], strict=True)
        return requests_of({"q_lens": ragged(q_lens), "kv_lens": ragged(kv_lens)})
    keys = part["kv_len"] if "kv_len" in part else part["q_len"]
    return uniform(*(column.to_numpy(np.float64) for column in (part["q_len"], keys, part["batch"])))


def uniform(q: Floats, kv: Floats, batch: Floats) -> Requests:
    """Calls whose requests are all alike: `batch` of them, `q` new tokens and `kv` keys each."""
    return Requests(q, kv, batch, float(batch[0]) if len(batch) == 1 else batch, np.arange(len(q)), None)


def _column(part: pd.DataFrame, name: str, otherwise: float) -> Floats:
    return part[name].fillna(0).to_numpy(np.float64) if name in part else np.full(len(part), float(otherwise))


def pack(frame: pd.DataFrame, features: Mapping[str, Floats], base_us: Floats, weight: Floats | None = None) -> Rows:
    """Rows of a net. `weight` defaults to `balanced(frame)`. ValueError for NaN features or times."""
    groups, group = np.unique(frame["group"].astype(str).to_numpy(), return_inverse=True)
    folds = np.array([fold(name) for name in groups])
    rows = Rows(
        features=np.stack([features[name] for name in features], axis=1).astype(np.float32),
        names=tuple(features),
        base_us=np.asarray(base_us, np.float64),
        latency_us=frame["latency_us"].to_numpy(np.float64),
        weight=balanced(frame) if weight is None else weight,
        group=group.astype(np.int64),
        fold=folds[group],
        columns=_columns(frame),
    )
    rows.check()
    return rows


def balanced(frame: pd.DataFrame) -> Floats:
    """Each GPU × protocol × dtype × stack counts by the square root of its rows, older versions half.

    Noisy rows (where known) count less.
    """
    series = ["gpu", "protocol", "dtype", "stack"]
    size = frame.groupby(series, observed=True)["latency_us"].transform("size").to_numpy()
    older = np.where(frame["counted"].to_numpy(bool), 1.0, OLDER) if "counted" in frame else 1.0
    noise = frame["noise"].fillna(0.02).clip(0.02, 1.0).to_numpy(np.float64)
    weight = older / np.sqrt(size) / (1.0 + noise / 0.05)
    return np.asarray(weight / weight.mean(), np.float64)


def _columns(frame: pd.DataFrame) -> dict[str, Column]:
    texts = {name: frame[name] for name in COLUMNS if name in frame}
    specs = {gpu: find(gpu) for gpu in frame["gpu"].unique()}
    texts["family"] = frame["gpu"].map({gpu: spec.architecture for gpu, spec in specs.items()})
    texts["capability"] = frame["gpu"].map({gpu: str(spec.compute_capability) for gpu, spec in specs.items()})
    if "counted" in frame:  # whether held-out tables score a row
        texts["counted"] = frame["counted"].map({True: "yes", False: "no"})
    return {name: Column.of(text.astype(str).to_numpy()) for name, text in texts.items()}

"""NVIDIA AIConfigurator: tables of newer operators, one frame a family in the columns of its call.

Read as a whole and without the cache (1.4 million rows take seconds). Host-bound series and slips of collection go by
`operator_rules.json`; all versions are kept. Requests are uniform: `batch` of `q_len` new tokens and `kv_len` keys.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from corpus import aiconfigurator
from corpus.frame import DTYPES, gpu_name
from corpus.rules import matching
from corpus.sources import data_dir

RULES = Path(__file__).with_name("operator_rules.json")
# What tells repeats of a call apart, and not calls.
OUTCOME = ("gpu", "raw_gpu", "device", "latency", "latency_us", "power", "power_limit", "noise")


def table(name: str, data: Path | str | None = None) -> pd.DataFrame:
    """All files of one table, cleaned, with the columns that every net's rows have."""
    folder = data_dir(data)
    files = sorted(folder.glob(f"{aiconfigurator.NAME}/*/*/*/*/{name}_perf.parquet"))
    if not files:
        raise FileNotFoundError(f"no table {name} under {folder}: set PIPEWAVE_DATA or pass the corpus folder")
    frames = [cleaned(_raw(file, folder), name, file.parts[-5]) for file in files]
    rows = pd.concat([frame for frame in frames if len(frame)], ignore_index=True)
    names = {raw: gpu_name(str(raw)) for raw in rows["raw_gpu"].unique()}
    common = {"gpu": rows["raw_gpu"].map(names), "stack": rows["framework"] + "-" + rows["version"]}
    rows = rows.assign(**common, source=aiconfigurator.NAME, noise=np.nan, flagged=False, dtype="bf16")
    for rule in _rules():
        if rule["table"] == name and rule["action"] == "twin":
            rows = rows[~slower_than_twin(rows, rule)].reset_index(drop=True)
    return rows


def slower_than_twin(rows: pd.DataFrame, rule: dict[str, Any]) -> np.ndarray:
    """Rows of a card that take `factor` times what the same call takes on the same chip with less memory bandwidth."""
    same = [name for name in rows if name not in OUTCOME]
    mine = (rows["gpu"] == rule["gpu_name"]) & rows["framework"].isin(rule["fw"])
    other = rows.loc[rows["gpu"] == rule["twin"], [*same, "latency"]].drop_duplicates(same)
    twin = rows[same].merge(other, on=same, how="left")["latency"].to_numpy()
    return np.asarray(mine.to_numpy() & (rows["latency"].to_numpy() > rule["factor"] * twin))


def _raw(file: Path, folder: Path) -> pd.DataFrame:
    rows = pd.read_parquet(file)
    if "latency" not in rows:
        rows = rows.assign(latency=np.nan)
    written, rows = file.parts[-2], aiconfigurator.cleaned(rows, file, folder)
    return rows.assign(version=written)


@cache
def _rules() -> tuple[dict[str, Any], ...]:
    return tuple(json.loads(RULES.read_text(encoding="utf-8"))["rules"])


def cleaned(rows: pd.DataFrame, name: str, gpu: str) -> pd.DataFrame:
    """The rows that this repository's rules leave of one file."""
    for rule in _rules():
        framework = rows["framework"].iloc[0] if len(rows) else ""
        named = rule["table"] == name and gpu in rule.get("gpu", [gpu])
        if rule["action"] in ACTIONS and named and framework in rule.get("fw", [framework]):
            rows = rows[~ACTIONS[rule["action"]](rows, rule)].reset_index(drop=True)
    return rows


def _nothing(rows: pd.DataFrame, _rule: dict[str, Any]) -> np.ndarray:
    return np.asarray(rows["latency"] <= 0)


def host_bound(rows: pd.DataFrame, rule: dict[str, Any]) -> np.ndarray:
    """Rows whose time is about the host's: flat in the prompt's length at the same batch, or no longer than that.

    In a batch of a series, host time is that of the shortest prompt where the next one takes as long; in the series at
    a depth, the median of its batches.
    """
    series, batch = [*rule["by"], "step"], [*rule["by"], "step", "batch_size"]
    flat = _flat(rows, batch, rule["flat"])
    here = rows[batch].merge(flat, on=batch, how="left")["host"].fillna(0.0)
    usual = flat.groupby(series)["host"].median().reset_index()
    there = rows[series].merge(usual, on=series, how="left")["host"].fillna(flat["host"].median())
    return np.asarray(rows["latency"].to_numpy() < rule["factor"] * np.maximum(here, there).to_numpy())


def _flat(rows: pd.DataFrame, batch: list[str], most: float) -> pd.DataFrame:
    """`host` of each batch whose two shortest prompts take as long, but for a factor `most`."""
    ordered = rows.sort_values("isl")
    place = ordered.groupby(batch).cumcount()
    first, second = (ordered.loc[place == at, [*batch, "latency"]] for at in (0, 1))
    both = first.merge(second, on=batch, suffixes=("", "_next"))
    flat = both[both["latency_next"] < most * both["latency"]]
    return flat.rename(columns={"latency": "host"}).drop(columns="latency_next")


def _deep(rows: pd.DataFrame, rule: dict[str, Any]) -> np.ndarray:
    """Short prompts over deep caches: the host's time grows with requests there, so few flat batches show it."""
    return np.asarray((rows["step"] > rule["step"]) & (rows["isl"] < rule["isl"]))


def _sized(rows: pd.DataFrame, rule: dict[str, Any]) -> np.ndarray:
    """Matching rows whose tokens in all are within the bounds."""
    return np.asarray(matching(rows, rule) & (rows["batch_size"] * rows["isl"]).between(*rule["tokens"]).to_numpy())


ACTIONS: dict[str, Callable[[pd.DataFrame, dict[str, Any]], np.ndarray]] = {
    "drop": matching,
    "positive": _nothing,
    "host": host_bound,
    "deep": _deep,
    "sized": _sized,
}


def typed(rows: pd.DataFrame, column: str) -> pd.Series:
    """A column of the tables' type names in the contract's words."""
    return rows[column].replace(DTYPES | {"fp8_e4m3": "fp8"})


def capped(rows: pd.DataFrame, most: int, seed: int = 0) -> pd.DataFrame:
    """At most `most` rows of each GPU × stack × type, drawn without replacement."""
    keys = [rows[name] for name in ("gpu", "stack", "dtype", "kv_dtype", "impl") if name in rows]
    shuffled = rows.sample(frac=1.0, random_state=seed)
    place = shuffled.groupby([key.loc[shuffled.index] for key in keys], observed=True).cumcount()
    return shuffled[place < most].sort_index().reset_index(drop=True)

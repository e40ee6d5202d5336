"""Series of rows that are physically impossible (`drop`) or measured differently (`flag`).

CLEAN_RULES.json of the corpus, and our own beside this file in the same form, each with its evidence. Ours may bound a
rule: `below_us` drops only what is faster, where the host hid the GPU's time, `above_flop` only larger products,
`slower_than` only those that reach neither a rate of tensor cores nor one of DRAM. What a
rule that `clears` leaves of a flagged series is `partial`: good for training, not for the tables of newest versions.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

OWN = Path(__file__).with_name("rules.json")


@cache
def _document(data_dir: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((data_dir / "CLEAN_RULES.json").read_text(encoding="utf-8"))
    return document | {"rules": [*document["rules"], *json.loads(OWN.read_text(encoding="utf-8"))]}


def apply(rows: pd.DataFrame, data_dir: Path, *, table: str, gpu: str, framework: str, version: str) -> pd.DataFrame:
    """Rows of one raw file without the dropped ones; `flagged` marks those that must be modelled apart,

    `partial` those among them that a rule of ours clears.
    """
    flagged, dropped, cleared = (np.zeros(len(rows), bool) for _ in range(3))
    for rule in concerning(data_dir, table, gpu, framework, version):
        meant = matching(rows, rule)
        if rule["action"] == "drop":
            dropped |= meant & _bounded(rule, rows)
            cleared |= meant & rule.get("clears", False)
        else:
            flagged |= meant
    return rows.assign(flagged=flagged, partial=flagged & cleared)[~dropped]


def dropped(rows: pd.DataFrame, rule: dict[str, Any]) -> int:
    """How many rows of a raw file one rule drops."""
    return int((matching(rows, rule) & _bounded(rule, rows)).sum()) if rule["action"] == "drop" else 0


def _bounded(rule: dict[str, Any], rows: pd.DataFrame) -> np.ndarray:
    """Rows within the bounds of a rule."""
    within = rows["latency"].to_numpy() * 1e3 < rule.get("below_us", np.inf)
    if "above_flop" in rule:
        within &= _flop(rows) > rule["above_flop"]
    if rates := rule.get("slower_than"):
        us, weights = rows["latency"].to_numpy() * 1e3, rows["n"].to_numpy(float) * rows["k"].to_numpy()
        within &= (_flop(rows) < rates["flop_per_us"] * us) & (weights < rates["bytes_per_us"] * us)
    return np.asarray(within)


def _flop(rows: pd.DataFrame) -> np.ndarray:
    return np.asarray(2.0 * rows["m"].to_numpy(float) * rows["n"].to_numpy() * rows["k"].to_numpy())


def concerning(data_dir: Path, table: str, gpu: str, framework: str, version: str) -> list[dict[str, Any]]:
    """The rules that a raw file is read with."""
    rules = _document(data_dir)["rules"]
    return [rule for rule in rules if _concerns(rule, table, gpu, framework, version)]


def nongated_shapes(data_dir: Path) -> frozenset[tuple[int, ...]]:
    """(hidden, inter, topk, experts) of the MoE models whose experts have two matrices instead of three."""
    return frozenset(tuple(shape) for shape in _document(data_dir)["moe_nongated_shapes"]["shapes"])


def _concerns(rule: dict[str, Any], table: str, gpu: str, framework: str, version: str) -> bool:
    wanted = rule["table"] == table and rule.get("fw", framework) == framework
    return wanted and gpu in rule.get("gpu", [gpu]) and version in rule.get("ver", [version])


def matching(rows: pd.DataFrame, rule: dict[str, Any]) -> np.ndarray:
    """Rows whose columns have the values that a rule asks for."""
    found = np.ones(len(rows), bool)
    for column, values in rule.get("where", {}).items():
        found &= rows[column].isin(values).to_numpy()
    return found

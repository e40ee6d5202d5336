"""CLEAN_RULES.json: series that are physically impossible (`drop`) or measured differently (`flag`)."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd


@cache
def _document(data_dir: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((data_dir / "CLEAN_RULES.json").read_text(encoding="utf-8"))
    return document


def apply(rows: pd.DataFrame, data_dir: Path, *, table: str, gpu: str, framework: str, version: str) -> pd.DataFrame:
    """Rows of one raw file without the dropped ones; `flagged` marks those that must be modelled apart."""
    flagged, dropped = np.zeros(len(rows), bool), np.zeros(len(rows), bool)
    for rule in _document(data_dir)["rules"]:
        if _concerns(rule, table, gpu, framework, version):
            target = dropped if rule["action"] == "drop" else flagged
            target |= _matching(rule, rows)
    return rows.assign(flagged=flagged)[~dropped]


def nongated_shapes(data_dir: Path) -> frozenset[tuple[int, ...]]:
    """(hidden, inter, topk, experts) of the MoE models whose experts have two matrices instead of three."""
    return frozenset(tuple(shape) for shape in _document(data_dir)["moe_nongated_shapes"]["shapes"])


def _concerns(rule: dict[str, Any], table: str, gpu: str, framework: str, version: str) -> bool:
    wanted = rule["table"] == table and rule.get("fw", framework) == framework
    return wanted and gpu in rule.get("gpu", [gpu]) and version in rule.get("ver", [version])


def _matching(rule: dict[str, Any], rows: pd.DataFrame) -> np.ndarray:
    matching = np.ones(len(rows), bool)
    for column, values in rule.get("where", {}).items():
        matching &= rows[column].isin(values).to_numpy()
    return matching

"""Tables and picture of docs/accuracy.md about versions, from studies/results/accuracy_versions.json alone."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pipewave.software.stacks import framework, version

RESULTS = Path(__file__).resolve().parents[2] / "studies" / "results" / "accuracy_versions.json"
BARS = {
    "gemm bf16": (5.0, 9.0), "gemm fp8": (5.0, 10.0), "gemm fp8_block": (5.0, 14.0), "gemm nvfp4": (4.0, 8.0),
    "attention prefill": (4.0, 10.0), "attention decode": (4.5, 10.0),
    "fused_moe bf16": (9.0, 12.0), "fused_moe fp8": (7.0, 10.0), "fused_moe fp8_block": (6.0, 10.0),
}  # fmt: skip
TITLES = {"shipped": "unseen shapes", "named": "unseen shapes, kernel named"}
ASKED = {"nearest_version": "a version left out altogether", "other_gpu": "a version known from other GPUs only"}
Cell = Mapping[str, Any]


def read() -> dict[str, list[Cell]]:
    """Cells by part; empty where nothing was measured."""
    found: dict[str, list[Cell]] = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    return found


def bars() -> list[dict[str, Any]]:
    """Of each evaluation the macro mean over GPUs, frameworks and versions beside its bar, and the share inside."""
    found = read()
    return [_evaluation(name, found) for name in BARS if any(c["evaluation"] == name for c in found.get("shipped", ()))]


def _evaluation(name: str, found: Mapping[str, Sequence[Cell]]) -> dict[str, Any]:
    row: dict[str, Any] = {"evaluation": name}
    for part, title in TITLES.items():
        known = [c for c in found.get(part, ()) if c["evaluation"] == name and c["software"] == "measured"]
        row[f"{title} / bar; inside %"] = _beside(known, BARS[name][0])
    for software, title in ASKED.items():
        out = [c for c in found.get("left out", ()) if c["evaluation"] == name and c["software"] == software]
        row[f"{title} / bar; inside %"] = _beside(out, BARS[name][1])
    return row


def _beside(cells: Sequence[Cell], bar: float) -> str | None:
    if not cells:
        return None
    mape, inside = (float(np.mean([cell[name] for cell in cells])) for name in ("mape", "inside"))
    mark = "**" if mape > bar else ""
    return f"{mark}{mape:.1f}{mark} / {bar:g}; {inside:.0f}"


def by_version() -> list[dict[str, Any]]:
    """Each version: means over GPUs, by evaluation."""
    grouped: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for cell in read().get("shipped", ()):
        if cell["software"] == "measured" and cell["evaluation"] in BARS:
            grouped[cell["stack"]][cell["evaluation"]].append(cell["mape"])
    ordered = sorted(grouped, key=lambda stack: (framework(stack), version(stack)))
    return [{"version": stack} | {name: _mean(grouped[stack].get(name)) for name in BARS} for stack in ordered]


def _mean(values: Sequence[float] | None) -> str | None:
    return f"{np.mean(values):.1f} ({len(values)})" if values else None


def distances() -> dict[str, list[tuple[int, float]]]:
    """Of each evaluation, error by places between the version measured and the one asked for."""
    found: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for mean in read().get("away", ()):
        if mean["evaluation"] in BARS:
            found[mean["evaluation"]].append((mean["away"], mean["mape"]))
    return found


def dropped() -> list[dict[str, Any]]:
    """Rows that our own rules drop, with their evidence."""
    file = Path(__file__).resolve().parents[2] / "corpus" / "dropped.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else []

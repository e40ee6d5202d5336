"""Predictions beside our own measured rows, family by family."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import pipewave as pw
from pipewave.calls.families import CLASSES, from_dict
from pipewave.measure import rows as measured_rows
from pipewave.measure.row_files import clock_mhz, started_together

GPU = "H200"


def compare(folder: Path, protocol: str = "cold") -> list[dict[str, Any]]:
    """One row a family and type: rows, median times, mean and median error, bias, coverage of the 90 % interval."""
    return [_compare(key, rows, protocol) for key, rows in sorted(_groups(folder, protocol).items())]


def _groups(folder: Path, protocol: str) -> dict[tuple[str, str, str], list[dict[str, Any]]]:
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for row in _usable(folder, protocol):
        case = row["case"]
        groups.setdefault((case["kernel"], case.get("dtype", "bf16"), row["impl"]), []).append(row)
    return groups


def _usable(folder: Path, protocol: str) -> Iterator[dict[str, Any]]:
    rows = (r for r in measured_rows(folder) if r["protocol"] == protocol and r["case"]["kernel"] in CLASSES)
    return (row for row in rows if started_together(row))


def _case(row: dict[str, Any]) -> dict[str, Any]:
    """With its software, and the SM clock where it was read and the family asks for it."""
    clock = {"sm_clock_mhz": clock_mhz(row)} if row["case"]["kernel"] == "gemm" else {}
    return row["case"] | {"stack": row["stack"], "impl": row["impl"]} | clock


def _compare(key: tuple[str, str, str], rows: list[dict[str, Any]], protocol: str) -> dict[str, Any]:
    calls = [from_dict(_case(row)) for row in rows]
    answers = pw.predict(calls, GPU, protocol=protocol)
    measured = np.array([row["latency_us"] for row in rows])
    error = answers.latency_us / measured - 1.0
    inside = (answers.low_us <= measured) & (measured <= answers.high_us)
    kernel, dtype, impl = key
    return {
        "family": f"{kernel} {dtype} {impl}",
        "rows": len(rows),
        "measured µs (median)": float(np.median(measured)),
        "predicted µs": float(np.median(answers.latency_us)),
        "MAPE %": 100 * float(np.abs(error).mean()),
        "median %": 100 * float(np.median(np.abs(error))),
        "bias %": 100 * float(error.mean()),
        "in 90 % interval": 100 * float(inside.mean()),
        "below floor": int((measured < answers.floor_us).sum()),
    }

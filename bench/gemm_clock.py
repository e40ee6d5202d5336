"""`python -m bench.gemm_clock`: how a GEMM's time follows the SM clock, fitted on our cold rows but for fold 0.

For each type: the exponents of `kernels/gemm_clock.py`, and the shipped net's error on fold 0, which neither it nor the
fit saw, with the clock of a row unknown and known.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import pipewave as pw
from pipewave.answers import answer
from pipewave.calls import from_dict
from pipewave.columns import columns, group_key
from pipewave.kernels import family_of
from pipewave.measure.pack import clock_mhz, rows
from pipewave.prediction import as_case

DATA = Path(__file__).resolve().parents[1] / "data" / "measured" / "h200" / "loaded" / "gemm.json.gz"
GPU = pw.find("H200")
Floats = NDArray[np.float64]
Row = dict[str, Any]


def cold() -> list[Row]:
    """Our cold rows whose clock is known."""
    return [r for r in rows(DATA) if r["protocol"] == "cold" and not r.get("flush") and r.get("spin_us")]


def answered(found: list[Row], *, known: bool) -> tuple[Floats, Floats]:
    """Predicted µs and share of DRAM time of each row."""
    family, groups = family_of("gemm"), dict[tuple[Any, ...], list[int]]()
    cases = [as_case(from_dict(_case(row, known)), None, None) for row in found]
    for i, case in enumerate(cases):
        groups.setdefault(group_key(family, case), []).append(i)
    predicted, share = np.empty(len(found)), np.empty(len(found))
    for key, members in groups.items():
        answers = answer(family, columns(family, [cases[i] for i in members]), key, GPU, "cold")
        predicted[members] = answers.seconds[0] * 1e6
        share[members] = answers.analysis.features["memory_share"]
    return predicted, share


def _case(row: Row, known: bool) -> Row:
    software = {"stack": row["stack"], "impl": row["impl"]}
    return row["case"] | software | ({"sm_clock_mhz": clock_mhz(row)} if known else {})


def fit(log_clock: Floats, share: Floats, residual: Floats) -> Floats:
    """(offset, on_chip, lost) by least absolute deviations, reweighted."""
    design = np.stack([np.ones_like(share), -log_clock, share * log_clock], 1)
    weight = np.ones_like(share)
    for _ in range(12):
        root = np.sqrt(weight)
        found = np.linalg.lstsq(design * root[:, None], residual * root, rcond=None)[0]
        weight = 1 / np.maximum(np.abs(residual - design @ found), 0.015)
    return np.asarray(found)


def report(dtype: str, found: list[Row]) -> Row:
    """Exponents and errors of one type."""
    measured, clock = np.array([[row["latency_us"], clock_mhz(row)] for row in found]).T
    held = np.array([zlib.crc32(f"{row['case']['n']},{row['case']['k']}".encode()) % 10 == 0 for row in found])
    (at_clock, share), (alone, _) = answered(found, known=True), answered(found, known=False)
    middle = float(np.median(clock))
    offset, on_chip, lost = fit(np.log(clock / middle)[~held], share[~held], np.log(measured / at_clock)[~held])
    return {
        "dtype": dtype, "rows": int(held.sum()), "median clock / boost": round(middle / GPU.boost_clock_mhz, 3),
        "left over: offset, on_chip, lost": [round(float(v), 3) for v in (offset, on_chip, lost)],
        "clock unknown: MAPE %, bias %": _errors(alone[held] / measured[held]),
        "clock known: MAPE %, bias %": _errors(at_clock[held] / measured[held]),
    }  # fmt: skip


def _errors(ratio: Floats) -> list[float]:
    return [round(100 * float(np.abs(ratio - 1).mean()), 2), round(100 * float((ratio - 1).mean()), 2)]


def main() -> None:
    """One line a type."""
    found = cold()
    for dtype in ("bf16", "fp16", "fp8", "fp8_block"):
        print(json.dumps(report(dtype, [row for row in found if row["case"]["dtype"] == dtype])))


if __name__ == "__main__":
    main()

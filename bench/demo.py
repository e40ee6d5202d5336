"""The main job on real input: every kernel of Llama-3.1-8B, prefill and decode, on several GPUs (`make demo`)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import pipewave as pw
from pipewave.calls.families import CLASSES, from_dict
from pipewave.cli.streams import show
from pipewave.measure import rows as measured_rows
from pipewave.measure.row_files import clock_mhz, started_together
from pipewave.models.kernels import Batch, Deployment, Use
from pipewave.models.load import load

GPUS = ("H200", "B200", "RTX PRO 6000", "L40S", "A100")
BATCHES = {
    "prefill of 4,096 tokens": Batch.of([4096], [4096]),
    "decode of 32 requests at 2,048 tokens": Batch.of([1] * 32, [2048] * 32),
}
KNOWN = "most rows were trained on, `pipewave accuracy` scores the others"
ROWS = Path(__file__).parent.parent / "data" / "measured" / "h200"


def main() -> None:
    """Print one table a batch, then measured against predicted where the package holds measured rows."""
    deployment = Deployment(load("Llama-3.1-8B"))
    for title, batch in BATCHES.items():
        show(rows(deployment.kernels(batch)), "table", title=f"Llama-3.1-8B, {title}: µs a launch, by GPU")
    if ROWS.is_dir():
        show(compare(ROWS), "table", title=f"measured on an H200 (cold L2) against predicted; {KNOWN}")


def rows(uses: list[Use]) -> list[dict[str, object]]:
    """One row a kernel, with a column a GPU, and the sum over all launches in ms."""
    answers = {gpu: pw.predict([use.call for use in uses], gpu, protocol="serving") for gpu in GPUS}
    table: list[dict[str, object]] = [
        {"kernel": use.name, "launches": use.count}
        | {gpu: float(answer.latency_us[i]) for gpu, answer in answers.items()}
        | {"bound on " + GPUS[0]: answers[GPUS[0]][i].bound}
        for i, use in enumerate(uses)
    ]
    sums = {gpu: sum(u.count * t for u, t in zip(uses, a.latency_us, strict=True)) / 1e3 for gpu, a in answers.items()}
    total = {"kernel": "all kernels, ms", "launches": sum(use.count for use in uses)} | sums
    return [*table, {**total, "bound on " + GPUS[0]: ""}]


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
    case: dict[str, Any] = row["case"]
    return case | {"stack": row["stack"], "impl": row["impl"]} | clock


def _compare(key: tuple[str, str, str], rows: list[dict[str, Any]], protocol: str) -> dict[str, Any]:
    calls = [from_dict(_case(row)) for row in rows]
    answers = pw.predict(calls, GPUS[0], protocol=protocol)
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


if __name__ == "__main__":
    main()

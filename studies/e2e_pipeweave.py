"""Score replays against PipeWeave's public end-to-end runs: 32 SGLang rows and 4 vLLM rows.

    python -m studies.e2e_pipeweave [--data DIR] [--json FILE]

A row is one GPU × TP × model × workload; its measured value is the median of the non-first runs (a row with a single
run counts that run). "Fitted" rows multiply prefill and decode by one factor each, the median of measured over
predicted on the rows of the *other* GPUs (H100 and H800 are one), so no row is scored with a factor it took part in.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipewave.gpus import find
from pipewave.models import load
from pipewave.prediction.api import predict
from pipewave.simulate.replay import Workload, read_workload, replay
from pipewave.step import Runner, find_engine
from studies.published_rows import corpus

Errors = NDArray[np.float64]
GPUS = {
    "RTX_6000_Ada": "RTX 6000 Ada",
    "RTX_A6000": "RTX A6000",
    "RTX_PRO_6000_S": "RTX PRO 6000 Server",
}  # other names are ours too
ONE_GPU = {"H800": "H100"}
METRICS = ("prefill", "decode", "total")
FIELDS = {"prefill": "prefill_latency", "decode": "median_decode_latency", "total": "total_latency"}
SCORED = {
    ("Qwen2.5-14B", 1): ("arxiv_8", "splitwise_32"),
    ("Qwen3-32B", 2): ("arxiv_12", "splitwise_48"),
    ("Llama-3.1-70B", 4): ("arxiv_16", "splitwise_64"),
    ("Llama-3.1-70B", 8): ("arxiv_16", "arxiv_32", "splitwise_64", "splitwise_72"),
}
VLLM_ROWS = (("H20", "arxiv16"), ("H20", "splitwise64"), ("H800", "arxiv16"), ("H800", "splitwise64"))


@dataclass(frozen=True, slots=True)
class Row:
    """One measured configuration; times in ms by metric."""

    gpu: str
    tp: int
    model: str
    workload: str
    measured: dict[str, float]

    @property
    def gpu_name(self) -> str:
        """The GPU in our registry."""
        return GPUS.get(self.gpu, self.gpu)


@dataclass(frozen=True, slots=True)
class RunTimes:
    """Predicted parts of a row in ms, and its decode steps."""

    prefill: float
    decode: float
    steps: int

    @property
    def total(self) -> float:
        """Prefill and all decode steps."""
        return self.prefill + self.steps * self.decode


def measured_rows(folder: Path) -> list[Row]:
    """The rows the published comparison scores, as far as they are here."""
    return [row for path in sorted((folder / "e2e" / "real").glob("e2e_*.jsonl")) for row in _rows_of(path)]


def _rows_of(path: Path) -> list[Row]:
    stem = path.stem.removeprefix("e2e_")
    head, _, rest = stem.partition("_")
    gpu, tp = (rest, int(head[2:])) if head.startswith("tp") else (stem, 1)
    runs: dict[str, list[dict[str, float]]] = {}
    for line in filter(None, path.read_text().splitlines()):
        record = json.loads(line)
        runs.setdefault(record["run_name"], []).append(record)
    rows = []
    for model, workload in ((model, one) for (model, at), ws in SCORED.items() if at == tp for one in ws):
        if records := runs.get(f"{model}-{workload}"):
            kept = records[1:] or records
            medians = {metric: 1e3 * median(one[field] for one in kept) for metric, field in FIELDS.items()}
            rows.append(Row(gpu, tp, model, workload, medians))
    return rows


def workload_of(folder: Path, row: Row) -> Workload:
    """The recorded iterations of a row, under the model's own config."""
    path = folder / "workload" / f"{row.model}_{row.workload}_fa3_tp{row.tp}_pp1.json"
    return read_workload(path, load(row.model))


def ours(folder: Path, row: Row) -> RunTimes:
    """A row replayed."""
    work = workload_of(folder, row)
    answer = replay(work, row.gpu_name, "sglang")
    return RunTimes(answer.prefill_ms, answer.decode_ms_mean, len(work.batches) - 1)


def roofline(folder: Path, row: Row) -> RunTimes:
    """The sum of all kernels' physical floors, nothing else: FLOPs over the peak or least bytes over the bandwidth."""
    work = workload_of(folder, row)
    runner = Runner.of(work.deployment(), find(row.gpu_name), find_engine("sglang"))
    times = []
    for batch in (work.batches[0], work.batches[len(work.batches) // 2]):
        uses = runner.deployment.kernels(batch)
        floors = predict([use.call for use in uses], runner.gpu, protocol="cold").floor_us
        times.append(float(np.dot(floors, [use.count for use in uses])) / 1e3)
    return RunTimes(times[0], times[1], len(work.batches) - 1)


def published(folder: Path, row: Row) -> RunTimes:
    """PipeWeave's own prediction of a row."""
    with (folder / "e2e" / "pipeweave_comparison.csv").open() as file:
        table = {(r["Hardware"], int(r["TP"]), r["Model"], r["Workload"]): r for r in csv.DictReader(file)}
    found = table[row.gpu, row.tp, row.model, row.workload]
    prefill, decode, total = (float(found[f"pred_{metric}_ms"]) for metric in METRICS)
    return RunTimes(prefill, decode, round((total - prefill) / decode))


def fitted(rows: Sequence[Row], times: Sequence[RunTimes]) -> list[RunTimes]:
    """Each row with the factors of the other GPUs."""
    out = []
    for row, own in zip(rows, times, strict=True):
        mine = ONE_GPU.get(row.gpu, row.gpu)
        others = [i for i, other in enumerate(rows) if ONE_GPU.get(other.gpu, other.gpu) != mine]
        prefill, decode = (
            median(rows[i].measured[metric] / getattr(times[i], metric) for i in others) for metric in METRICS[:2]
        )
        out.append(RunTimes(own.prefill * prefill, own.decode * decode, own.steps))
    return out


def errors(rows: Sequence[Row], times: Sequence[RunTimes]) -> Errors:
    """Signed relative errors [row, metric], percent."""
    pairs = zip(rows, times, strict=True)
    return np.array([[100 * (getattr(t, m) / row.measured[m] - 1) for m in METRICS] for row, t in pairs])


def vllm_rows(folder: Path) -> list[tuple[str, float, float]]:
    """(row, measured ms, replayed ms) of the four vLLM TP4·PP2 runs, iterations in series as they were recorded."""
    out = []
    for gpu, name in VLLM_ROWS:
        runs = json.loads((folder / "e2e" / "real" / f"vllm_{name}_{gpu}_llama70B.json").read_text())
        work = folder / "workload" / f"Llama-3.1-70B_vllm_{name}_fa3_tp4_pp2.json"
        out.append((f"{gpu} {name}", 1e3 * median(runs["latencies"]), replay(work, gpu, "vllm").total_ms))
    return out


def print_summary(tables: dict[str, Errors]) -> dict[str, dict[str, float]]:
    """One line a method: mean absolute errors, their mean, and signed means."""
    print(f"| {'method':36} | prefill | decode | total | mean | signed |\n|---|---|---|---|---|---|")
    summary = {}
    for name, table in tables.items():
        mean, signed = np.abs(table).mean(axis=0), table.mean(axis=0)
        cells = " | ".join(f"{v:.2f}" for v in (*mean, mean.mean()))
        print(f"| {name:36} | {cells} | {signed[0]:+.1f} {signed[1]:+.1f} {signed[2]:+.1f} |")
        summary[name] = {**dict(zip(METRICS, mean.tolist(), strict=True)), "mean": float(mean.mean())}
    return summary


def print_rows(rows: Sequence[Row], plain: Errors, fit: Errors) -> None:
    """Every row, as predicted and with the factors of the other GPUs; then the mean of each GPU."""
    print("\n| row | prefill | decode | total | fitted: prefill | decode | total |\n|---|---|---|---|---|---|---|")
    for row, one, two in zip(rows, plain, fit, strict=True):
        cells = " | ".join(f"{v:+.1f}" for v in (*one, *two))
        print(f"| {row.gpu} tp{row.tp} {row.model} {row.workload} | {cells} |")
    print("\n| GPU | mean error | fitted |\n|---|---|---|")
    for gpu in dict.fromkeys(row.gpu for row in rows):
        chosen = [i for i, row in enumerate(rows) if row.gpu == gpu]
        print(f"| {gpu} | {np.abs(plain[chosen]).mean():.2f} | {np.abs(fit[chosen]).mean():.2f} |")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=corpus(), help="folder of the corpus")
    parser.add_argument("--json", type=Path, help="write the summary here")
    given = parser.parse_args()
    folder = given.data / "pipeweave"
    rows = measured_rows(folder)
    times = {"pipewave": [ours(folder, r) for r in rows], "roofline": [roofline(folder, r) for r in rows]}
    tables = {name: errors(rows, found) for name, found in times.items()}
    tables |= {f"{name}, fitted on other GPUs": errors(rows, fitted(rows, found)) for name, found in times.items()}
    tables["PipeWeave, published"] = errors(rows, [published(folder, row) for row in rows])
    print(f"{len(rows)} rows, mean absolute error in %\n")
    summary: dict[str, Any] = print_summary(tables)
    print_rows(rows, tables["pipewave"], tables["pipewave, fitted on other GPUs"])
    print("\nvLLM TP4·PP2, total latency (PipeWeave: 3.95 %)")
    for label, real, predicted in vllm_rows(folder):
        print(f"{label:20} {real:9.0f} ms measured {predicted:9.0f} ms replayed {100 * (predicted / real - 1):+.1f} %")
    if given.json:
        given.json.write_text(json.dumps(summary, indent=1) + "\n")


if __name__ == "__main__":
    main()

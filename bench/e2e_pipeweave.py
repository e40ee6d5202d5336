"""Score end-to-end replays against PipeWeave's public runs: 32 SGLang rows and 4 vLLM rows.

    python bench/e2e_pipeweave.py [--data DIR] [--json FILE]

A row is one GPU × TP × model × workload. The measured value is the median of the non-first runs (a row with a single
run counts that run). Host constants of the engine, and one factor each for prefill and decode kernels, are fitted on
the rows of the *other* GPUs only (H100 and H800 are one GPU); both columns, with and without, are printed.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from pipewave.gpus import find
from pipewave.model import load
from pipewave.serve.replay import Workload, read_workload, replay
from pipewave.step import find_engine

GPUS = {
    "A100": "A100", "A40": "A40", "H100": "H100", "H20": "H20", "H200": "H200", "H800": "H800", "L20": "L20",
    "L40": "L40", "RTX_6000_Ada": "RTX 6000 Ada", "RTX_A6000": "RTX A6000", "RTX_PRO_6000_S": "RTX PRO 6000 Server",
}  # fmt: skip
SAME = {"H800": "H100"}
METRICS = ("prefill", "decode", "total")
SCORED = {
    ("Qwen2.5-14B", 1): ("arxiv_8", "splitwise_32"),
    ("Qwen3-32B", 2): ("arxiv_12", "splitwise_48"),
    ("Llama-3.1-70B", 4): ("arxiv_16", "splitwise_64"),
    ("Llama-3.1-70B", 8): ("arxiv_16", "arxiv_32", "splitwise_64", "splitwise_72"),
}
VLLM_ROWS = (("H20", "arxiv16"), ("H20", "splitwise64"), ("H800", "arxiv16"), ("H800", "splitwise64"))


@dataclass(frozen=True, slots=True)
class Row:
    """One measured configuration, ms."""

    gpu: str
    tp: int
    model: str
    workload: str
    measured: dict[str, float]

    @property
    def label(self) -> str:
        """GPU × TP × workload."""
        return f"{self.gpu} tp{self.tp} {self.model} {self.workload}"


def data_dir() -> Path:
    """The corpus: PIPEWAVE_DATA, or `shared/data` beside the repository."""
    default = Path(__file__).resolve().parents[2] / "shared" / "data"
    return Path(os.environ.get("PIPEWAVE_DATA", default)) / "pipeweave"


def measured_rows(folder: Path) -> list[Row]:
    """The scored rows, each the median over its non-first runs."""
    rows = []
    for path in sorted((folder / "e2e" / "real").glob("e2e_*.jsonl")):
        runs: dict[str, list[dict[str, float]]] = {}
        for line in path.read_text().splitlines():
            if line.strip():
                record = json.loads(line)
                runs.setdefault(record["run_name"], []).append(record)
        gpu, tp = _gpu_and_tp(path.stem.removeprefix("e2e_"))
        for name, records in runs.items():
            model, _, workload = next(m for m in (name.partition(f"{s}-") for s in [""]) if m) if False else _split(name)
            if workload in SCORED.get((model, tp), ()):
                rows.append(Row(gpu, tp, model, workload, _medians(records)))
    return rows


def _split(run_name: str) -> tuple[str, str, str]:
    model = next(m for m, _ in SCORED if run_name.startswith(m))
    return model, "-", run_name.removeprefix(model + "-")


def _gpu_and_tp(stem: str) -> tuple[str, int]:
    if stem.startswith("tp"):
        head, _, gpu = stem.partition("_")
        return gpu, int(head.removeprefix("tp"))
    return stem, 1


def _medians(records: Sequence[dict[str, float]]) -> dict[str, float]:
    chosen = records[1:] or records
    keys = {"prefill": "prefill_latency", "decode": "median_decode_latency", "total": "total_latency"}
    return {metric: 1e3 * median(record[key] for record in chosen) for metric, key in keys.items()}


def workload_of(folder: Path, row: Row) -> Workload:
    """The recorded iterations of a row, under the model's own config."""
    path = next((folder / "workload").glob(f"{row.model}_{row.workload}_fa3_tp{row.tp}_pp1.json"))
    return read_workload(path, load(row.model))


@dataclass(frozen=True, slots=True)
class Predicted:
    """Predicted parts of a row, ms, and its number of decode steps."""

    prefill: float
    decode: float
    steps: int

    @property
    def total(self) -> float:
        """Prefill and all decode steps."""
        return self.prefill + self.steps * self.decode

    def scaled(self, prefill: float, decode: float) -> Predicted:
        """The same with each part multiplied."""
        return Predicted(self.prefill * prefill, self.decode * decode, self.steps)


def predict_row(folder: Path, row: Row) -> Predicted:
    """Replay a row."""
    work = workload_of(folder, row)
    answer = replay(work, GPUS[row.gpu], "sglang")
    return Predicted(answer.prefill_ms, answer.decode_ms_mean, len(work.batches) - 1)


def roofline_row(folder: Path, row: Row) -> Predicted:
    """Sum over all kernels of the larger of FLOPs over the datasheet peak and least bytes over the bandwidth."""
    from pipewave.predict import predict
    from pipewave.step import Runner

    work = workload_of(folder, row)
    runner = Runner.of(work.deployment(), find(GPUS[row.gpu]), find_engine("sglang"))
    times = []
    middle = len(work.batches) // 2
    for batch in (work.batches[0], work.batches[middle]):
        uses = runner.deployment.kernels(batch)
        floors = predict([use.call for use in uses], runner.gpu, protocol="cold").floor_us
        times.append(float(np.dot(floors, [use.count for use in uses])) / 1e3)
    return Predicted(times[0], times[1], len(work.batches) - 1)


def left_out(rows: Sequence[Row], guesses: Sequence[Predicted]) -> list[Predicted]:
    """Each row scaled by the median measured/predicted of the rows of other GPUs."""
    out = []
    for row, guess in zip(rows, guesses, strict=True):
        others = [i for i, r in enumerate(rows) if SAME.get(r.gpu, r.gpu) != SAME.get(row.gpu, row.gpu)]
        factors = [
            median(rows[i].measured[m] / getattr(guesses[i], m) for i in others) for m in ("prefill", "decode")
        ]
        out.append(guess.scaled(*factors))
    return out


def errors(rows: Sequence[Row], guesses: Sequence[Predicted]) -> np.ndarray:
    """Signed relative errors [row, metric] in percent."""
    return np.array(
        [[100 * (getattr(g, m) / r.measured[m] - 1) for m in METRICS] for r, g in zip(rows, guesses, strict=True)]
    )


def reference(folder: Path, rows: Sequence[Row]) -> list[Predicted]:
    """PipeWeave's own published predictions of the same rows."""
    import csv

    with (folder / "e2e" / "pipeweave_comparison.csv").open() as file:
        table = {(r["Hardware"], int(r["TP"]), r["Model"], r["Workload"]): r for r in csv.DictReader(file)}
    out = []
    for row in rows:
        found = table[row.gpu, row.tp, row.model, row.workload]
        prefill, decode, total = (float(found[f"pred_{m}_ms"]) for m in METRICS)
        out.append(Predicted(prefill, decode, round((total - prefill) / decode)))
    return out


def report(name: str, rows: Sequence[Row], table: np.ndarray) -> dict[str, float]:
    """One line of the summary."""
    mean, signed = np.abs(table).mean(axis=0), table.mean(axis=0)
    print(
        f"{name:34s} prefill {mean[0]:6.2f} decode {mean[1]:6.2f} total {mean[2]:6.2f} mean {mean.mean():6.2f}   "
        f"signed {signed[0]:+6.1f} {signed[1]:+6.1f} {signed[2]:+6.1f}"
    )
    return {"prefill": mean[0], "decode": mean[1], "total": mean[2], "mean": float(mean.mean())}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=None, help="folder of the corpus")
    parser.add_argument("--json", type=Path, default=None, help="write the summary here")
    given = parser.parse_args()
    folder = given.data / "pipeweave" if given.data else data_dir()
    rows = measured_rows(folder)
    methods: dict[str, Callable[[], list[Predicted]]] = {
        "pipewave": lambda: [predict_row(folder, row) for row in rows],
        "pipewave, two factors left-one-out": lambda: left_out(rows, [predict_row(folder, row) for row in rows]),
        "PipeWeave (published)": lambda: reference(folder, rows),
        "roofline": lambda: [roofline_row(folder, row) for row in rows],
        "roofline, two factors left-one-out": lambda: left_out(rows, [roofline_row(folder, row) for row in rows]),
    }
    summary = {}
    tables = {name: errors(rows, run()) for name, run in methods.items()}
    print(f"{len(rows)} rows")
    for name, table in tables.items():
        summary[name] = report(name, rows, table)
    first = tables["pipewave, two factors left-one-out"]
    raw = tables["pipewave"]
    for row, line, line0 in zip(rows, first, raw, strict=True):
        print(f"{row.label:48s}" + "".join(f"{v:+8.1f}" for v in line0) + "   |" + "".join(f"{v:+8.1f}" for v in line))
    for gpu in dict.fromkeys(row.gpu for row in rows):
        chosen = [i for i, row in enumerate(rows) if row.gpu == gpu]
        print(f"{gpu:20s} {np.abs(first[chosen]).mean():6.2f}")
    if given.json:
        given.json.write_text(json.dumps(summary, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""Hardware counters beside the simulated demand, kernel by kernel: `python -m studies.counters`.

The rows were taken on an H200 with Nsight Compute (`python -m lab.ncu`), which empties the caches before
every kernel, and are kept in `data/measured/h200/ncu/counters.json.gz`. `--pack FILE` makes that file from its output.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import pipewave as pw
from pipewave.calls.families import CLASSES, Gemm, from_dict
from pipewave.prediction.api import answer_one
from pipewave.traces.kernel_names import tile_of

FILE = Path(__file__).resolve().parents[1] / "data" / "measured" / "h200" / "ncu" / "counters.json.gz"
GPU = "H200"
COUNTERS = {
    "dram_read": "dram__bytes_read.sum",
    "dram_write": "dram__bytes_write.sum",
    "l2": "lts__t_bytes.sum",
    "gmma": "sm__inst_executed_pipe_tensor_op_gmma.sum",
    "ns": "gpu__time_duration.sum",
    "waves": "launch__waves_per_multiprocessor",
    "grid": "launch__grid_size",
}
Row = dict[str, Any]


def pack(source: Path, target: Path = FILE) -> None:
    """Keep of every kernel its name and the counters that are compared."""
    rows = [json.loads(line) for line in source.read_text().splitlines()]
    kept = [{name: row[name] for name in ("case", "impl")} | {"kernels": _kernels(row)} for row in rows]
    raw = json.dumps({"gpu": GPU, "rows": kept}, separators=(",", ":"), sort_keys=True).encode()
    target.write_bytes(gzip.compress(raw, 9, mtime=0))


def _kernels(row: Row) -> list[Row]:
    return [
        {"name": k["name"][:400], "tensor": _tensor(k["metrics"])} | _counted(k["metrics"]) for k in row["counters"]
    ]


def _counted(metrics: Mapping[str, float]) -> dict[str, float]:
    return {name: round(metrics.get(metric, 0.0), 3) for name, metric in COUNTERS.items()} | {
        "tensor": _tensor(metrics)
    }


def _tensor(metrics: Mapping[str, float]) -> float:
    """Operations of the tensor path that was used; 0 where its counter was not collected (8-bit types)."""
    paths = [v for n, v in metrics.items() if n.startswith("sm__ops_path_tensor") and n.endswith(".sum")]
    return max(paths, default=0.0)


def rows(file: Path = FILE) -> list[Row]:
    """The packed rows: case, impl, and the counters of each kernel."""
    found: list[Row] = json.loads(gzip.decompress(file.read_bytes()))["rows"]
    return found


def issued_flops(name: str, m: int, n: int, k: int) -> float | None:
    """What a GEMM kernel of this name must issue: whole tiles, whole steps along k. None where it hides its tile."""
    tile = tile_of(name) if "nvjet" in name else None
    if tile is None:
        return None
    return 2.0 * _up(m, tile[0]) * _up(n, tile[1]) * _up(k, tile[2])


def _up(size: int, step: int) -> int:
    return -(-size // step) * step


def compare(found: Sequence[Row]) -> list[Row]:
    """One row a family and implementation: medians of counted over simulated, and the mean absolute difference."""
    groups: dict[str, list[Row]] = {}
    for row in found:
        if row["case"]["kernel"] in CLASSES:
            label = f"{row['case']['kernel']} {row['case'].get('dtype', 'bf16')} {row['impl']}"
            groups.setdefault(label, []).append(ratios(row))
    return [{"family": label, "calls": len(each)} | _summary(each) for label, each in sorted(groups.items())]


def ratios(row: Row) -> Row:
    """Counted over simulated for one call; None where one of the two is unknown.

    The longest kernel stands for the call where the others only prepare or merge, since ncu empties the caches between
    them too; an expert layer has two that count. `time` is that of all of them.
    """
    call = from_dict(row["case"] | {"impl": row["impl"]})
    needed = answer_one(call, pw.find(GPU), "cold").analysis.demand
    longest = sorted(row["kernels"], key=lambda kernel: kernel["ns"])[-2 if call.kernel == "fused_moe" else -1 :]
    useful, dram = float(needed.tensor[0]), float(needed.dram[0])
    counted = sum(kernel["tensor"] for kernel in longest)
    issued = issued_flops(longest[-1]["name"], call.m, call.n, call.k) if isinstance(call, Gemm) else None
    return {
        "DRAM": sum(kernel["dram_read"] + kernel["dram_write"] for kernel in longest) / dram,
        "tensor, whole tiles": counted / issued if issued and counted else None,
        "tensor, useful": counted / useful if useful and counted else None,
        "time": sum(kernel["ns"] for kernel in row["kernels"]) / 1e3 / pw.predict(call, GPU).latency_us,
    }


def _summary(each: Sequence[Row]) -> Row:
    out: Row = {}
    for name in each[0]:
        values = np.array([row[name] for row in each if row[name] is not None])
        out[name] = round(float(np.median(values)), 4) if len(values) else None
        out[f"{name}, |difference| %"] = round(100 * float(np.abs(values - 1).mean()), 2) if len(values) else None
    return out


def main() -> None:
    """Pack, or print the comparison (JSON with --json FILE)."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pack", type=Path, help="output of `python -m lab.ncu`")
    parser.add_argument("--json", type=Path, help="also write the table here")
    options = parser.parse_args()
    if options.pack:
        pack(options.pack)
    table = compare(rows())
    for row in table:
        print("  ".join(f"{name}: {value}" for name, value in row.items()))
    if options.json:
        options.json.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()

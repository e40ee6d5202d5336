"""Hardware counters of about a hundred kernels through Nsight Compute: `python -m lab.ncu --out FILE`.

Under `ncu` a child runs each job between two spin kernels; its table is cut at the spins, as traces are. Clocks are
left alone (`--clock-control none`); ncu empties the caches before each kernel, so its bytes are those of a cold start.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pipewave.measure import plan
from pipewave.measure.impls import Pools, Skip, prepare
from pipewave.measure.plan import Job, rough_us
from pipewave.measure.protocol import SPIN, SPIN_CLOCKS, recoverable

FIXED = (
    "gpu__time_duration.sum",
    "dram__bytes_read.sum",
    "dram__bytes_write.sum",
    "lts__t_bytes.sum",
    "lts__t_sectors_op_read.sum",
    "lts__t_sectors_op_write.sum",
    "sm__inst_executed_pipe_tensor.sum",
    "sm__sass_thread_inst_executed_op_ffma_pred_on.sum",
    "sm__inst_executed_pipe_xu.sum",
    "smsp__cycles_active.avg",
)
TENSOR = re.compile(r"^sm__(ops_path_tensor\w*(bf16|fp16|fp8|e4m3|f16)\w*|inst_executed_pipe_tensor\w*gmma\w*)$")
MOST_TENSOR = 12
LONGEST_US = 400.0


def jobs(count: int, families: Sequence[str]) -> list[Job]:
    """Short jobs of the full plan, the same number for each family and implementation."""
    kinds: dict[tuple[str, str, str], list[Job]] = {}
    for job in plan.built_in("full", families=families):
        plain = job.protocol == "cold" and not job.repeat and job.flush == "write"
        if plain and 8.0 < rough_us(job.case) < LONGEST_US and "sdpa" not in job.impl:
            kinds.setdefault((job.family, job.impl, str(job.case.get("dtype"))), []).append(job)
    each = -(-count // len(kinds))
    return [job for members in kinds.values() for job in members[:: max(1, len(members) // each)][:each]]


def available(query: str, wanted: Iterable[str] = FIXED) -> list[str]:
    """Metrics to ask for, given the output of `ncu --query-metrics`: the fixed ones it knows, and tensor counters."""
    known = {line.split()[0] for line in query.splitlines() if line and not line[0].isspace()}
    fixed = [metric for metric in wanted if metric.rpartition(".")[0] in known]
    return fixed + [f"{name}.sum" for name in sorted(known) if TENSOR.match(name)][:MOST_TENSOR]


def parse(text: str) -> list[dict[str, Any]]:
    """Rows of `ncu --csv --page raw`: kernel name, grid, block, and every metric as a number in base units."""
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        return []
    table = list(csv.DictReader(lines[start:]))
    return [_kernel(row) for row in table if row["ID"]]  # the second line holds units and has no ID


def _kernel(row: dict[str, str]) -> dict[str, Any]:
    metrics = {name: _number(value) for name, value in row.items() if name and "__" in name}
    found = {name: value for name, value in metrics.items() if value is not None}
    return {"name": row["Kernel Name"], "grid": row.get("Grid Size"), "block": row.get("Block Size"), "metrics": found}


def _number(text: str | None) -> float | None:
    try:
        return float((text or "").replace(",", ""))
    except ValueError:
        return None


def assign(kernels: Sequence[dict[str, Any]], keys: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """Kernels between the n-th pair of spins belong to the n-th key; a pair cut short by a time limit is dropped."""
    found: dict[str, list[dict[str, Any]]] = {}
    inside: list[dict[str, Any]] | None = None
    waiting = iter(keys)
    for kernel in kernels:
        if SPIN not in kernel["name"]:
            if inside is not None:
                inside.append(kernel)
        elif inside is None:
            inside = []
        else:
            found[next(waiting)], inside = inside, None
    return found


def child(listed: Path) -> int:
    """Run the jobs under the profiler: warm each, then call it once between spins with profiling on."""
    import torch

    pools = Pools()
    ran = []
    for job in [Job(*item) for item in json.loads(listed.read_text())]:
        try:
            call = prepare(job, pools).call
            call()
            torch.cuda.synchronize()
        except Skip:
            continue
        except recoverable():
            continue
        torch.cuda.profiler.start()
        torch.cuda._sleep(SPIN_CLOCKS)
        call()
        torch.cuda._sleep(SPIN_CLOCKS)
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()
        ran.append(job.key)
        listed.with_suffix(".ran").write_text(json.dumps(ran))
    return 0


def collect(chosen: Sequence[Job], folder: Path, limit_s: float) -> dict[str, list[dict[str, Any]]]:
    """Counters of every kernel of each job, by job key. Raises FileNotFoundError without `ncu`."""
    query = subprocess.run(["ncu", "--query-metrics"], capture_output=True, text=True, check=False).stdout
    listed, log = folder / "ncu_jobs.json", folder / "ncu.csv"
    listed.write_text(json.dumps([[dict(job.case), job.impl] for job in chosen]))
    command = ["ncu", "--csv", "--page", "raw", "--print-units", "base", "--clock-control", "none"]
    command += ["--profile-from-start", "off", "--log-file", str(log), "--metrics", ",".join(available(query))]
    command += [sys.executable, "-m", "lab.ncu", "--child", str(listed), "--out", "unused"]
    try:
        subprocess.run(command, check=False, timeout=limit_s)
    except subprocess.TimeoutExpired:
        sys.stderr.write(f"ncu was stopped after {limit_s:.0f} s; what it wrote is kept\n")
    ran = listed.with_suffix(".ran")
    keys = json.loads(ran.read_text()) if ran.exists() else []
    return assign(parse(log.read_text() if log.exists() else ""), keys)


def main(argv: Sequence[str] | None = None) -> int:
    """Write one JSON line a job."""
    parser = argparse.ArgumentParser(prog="python -m lab.ncu")
    parser.add_argument("--out", required=True)
    parser.add_argument("--count", type=int, default=110)
    parser.add_argument("--families", default="")
    parser.add_argument("--limit-s", type=float, default=240.0)
    parser.add_argument("--child", default="", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.child:
        return child(Path(options.child))
    out = Path(options.out)
    chosen = jobs(options.count, [name for name in options.families.split(",") if name])
    counters = collect(chosen, out.parent, options.limit_s)
    with out.open("w") as file:
        for job in chosen:
            if job.key in counters:
                file.write(json.dumps({**job.fields(), "counters": counters[job.key]}) + "\n")
    sys.stderr.write(f"counters of {len(counters)} of {len(chosen)} jobs\n")
    return 0 if counters else 1


if __name__ == "__main__":
    sys.exit(main())

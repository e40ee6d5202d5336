"""`python -m studies.kind_traces`: what a GPU did in traced steps of today's kinds, beside the kernels of our steps.

Traces of vLLM 0.22.1 on an H100 (`data/measured/h100/kinds/traces`). Of a step: ms from the first kernel's start to the
last one's end, ms in which a kernel ran, our kernels' sum at the clock that the step's power allows, and what the same
point took without a profiler, at each of its times. Where the sum of kernels agrees and the step does not, the host is
the difference.
"""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any

from lab.vllm_engine.launch import config_of
from pipewave.gpus import find
from pipewave.models import load
from pipewave.models.kernels import Deployment
from pipewave.models.shard import Parallel
from pipewave.step import Runner, find_engine
from pipewave.step.detail import detail
from studies.e2e_traces import DEVICE
from studies.kinds import CUT, FOLDER, GPU, named, points


def traced() -> list[dict[str, Any]]:
    """Rows of traces that are here."""
    lines = [line for path in sorted(FOLDER.glob("engine-*.jsonl")) for line in path.read_text("utf-8").splitlines()]
    rows = [row for row in map(json.loads, lines) if row["kind"] == "trace"]
    return [row for row in rows if _here(FOLDER / "traces" / row["file"], row["bytes"])]


def _here(path: Path, size: int) -> bool:
    """Whether that trace is here, and no other day's of the same name."""
    return path.exists() and path.stat().st_size == size


def seen_ms(path: Path, steps: int) -> tuple[float, float]:
    """Ms a step from the first kernel to the last, and ms in which a kernel ran."""
    with gzip.open(path, "rt") as file:
        events = [event for event in json.load(file)["traceEvents"] if event.get("cat") in DEVICE]
    events.sort(key=lambda event: event["ts"])
    busy, until = 0.0, events[0]["ts"]
    for event in events:
        ends = event["ts"] + event["dur"]
        busy += max(ends - max(event["ts"], until), 0.0)
        until = max(until, ends)
    return (until - events[0]["ts"]) / steps / 1e3, busy / steps / 1e3


def kernels_ms(row: dict[str, Any]) -> float:
    """Our kernels of the traced step, ms."""
    batch, context = row["batch"], row["context"]
    news = [row["input_len"] or 1] * batch
    parallel = Parallel(row["tp"])
    deployment = Deployment(load(config_of(str(FOLDER / f"{row['model']}.json"), row["layers"])), parallel)
    runner = Runner.of(deployment, find(GPU), find_engine("vllm").what_if(fused_norm_mib=0.0, routing="random"))
    parts = detail(runner, runner.batch(news, [context + new for new in news]))
    return sum(part.total_us for part in parts if part.family != "gap") / 1e3


def main() -> int:
    print("| trace | first to last kernel, ms | a kernel ran | our kernels | off % | same point, ms |")
    print("| --- | --- | --- | --- | --- | --- |")
    every = points(steady=False)
    for row in traced():
        span, busy = seen_ms(FOLDER / "traces" / row["file"], len(row["step_tokens"]))
        ours = kernels_ms(row)
        shape = row["phase"], row["batch"], row["input_len"]
        alike = [p for p in every if p.model == named(row) and (p.phase, p.batch, p.input_len) == shape]
        same = [p.measured_ms for p in alike if row["phase"] == "prefill" or abs(p.context - row["context"]) < 64]
        name = f"{row['model']}{CUT}{row['layers']}, {shape[0]} of {shape[1]}" + f" × {shape[2]}" * (shape[2] > 0)
        times = ", ".join(f"{ms:.1f}" for ms in same)
        print(f"| {name} | {span:.1f} | {busy:.2f} | {ours:.2f} | {100 * (ours / busy - 1):+.1f} | {times} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""`python -m lab.vllm_engine`: time whole steps of vLLM for one model, one JSON line a point.

Rows are written as they come, so a run that is cut short leaves what it measured.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from lab.vllm_engine import gates, gpu, launch, points, steady, timing, traces, worker
from lab.vllm_engine.drive import Driver
from lab.vllm_engine.launch import Setup
from lab.vllm_engine.points import Point

# what a point may fail with: the run notes it and goes on
FAILURES = (RuntimeError, ValueError, AssertionError, LookupError, AttributeError, TypeError, OSError)
MOST_FAILURES = 3
TRACE_SECONDS = 25.0
Row = dict[str, Any]


def options(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m lab.vllm_engine", description=__doc__.split("\n")[0])
    parser.add_argument("--model", required=True, help="a built-in model, a config.json or a directory with one")
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--out", required=True, type=Path, help="directory of the rows")
    parser.add_argument(
        "--budget-s", type=float, default=600.0, help="seconds from its turn on, starting the engine included"
    )
    parser.add_argument("--points", choices=("all", "decode", "kinds", "steady", "traced", "none"), default="all")
    parser.add_argument("--own-tokens", action="store_true", help="each request decodes a token of its own")
    parser.add_argument("--trace", action="store_true", help="record profiler traces after the timings")
    parser.add_argument("--traces", type=Path, help="directory of the traces; default: that of the rows")
    parser.add_argument("--layers", type=int, help="keep only the model's first layers")
    parser.add_argument("--eager", action="store_true", help="no CUDA graphs; traces then record shapes")
    parser.add_argument("--memory-share", type=float, help="vLLM's gpu_memory_utilization; default: vLLM's")
    parser.add_argument("--max-batched-tokens", type=int, default=8192, help="0 leaves it to vLLM")
    parser.add_argument("--after", type=int, help="import at once, but start the engine when this process has ended")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="an argument of vllm.LLM, as JSON or as a word"
    )
    parser.add_argument("--random-gates", action="store_true", help="draw the experts of kernels that route inside")
    return parser.parse_args(argv)


def setup_of(given: argparse.Namespace) -> Setup:
    """The engine's setup; the folder of traces is made."""
    folder: Path | None = (given.traces or given.out) if given.trace else None
    for path in (given.out, folder):
        if path is not None:
            path.mkdir(parents=True, exist_ok=True)
    limit = given.max_batched_tokens or None
    more = {name: _value(text) for name, text in (item.split("=", 1) for item in given.set)}
    return Setup(given.model, given.tp, given.layers, given.eager, limit, given.memory_share, folder, more)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


class Writer:
    """Appends rows that name the model, its layers, TP and mode."""

    def __init__(self, out: Path, setup: Setup) -> None:
        self._common = {"model": setup.name, "tp": setup.tp, "layers": setup.layers, "mode": setup.mode}
        self.stem = f"{setup.name}-tp{setup.tp}" + (f"-{setup.layers}layers" if setup.layers else "")
        self._file = (out / f"engine-{self.stem}.jsonl").open("a")
        self.stem += f"-{setup.mode}"

    def __call__(self, kind: str, row: Row) -> None:
        """Append one row."""
        self._file.write(json.dumps({"kind": kind, **self._common, **row}) + "\n")
        self._file.flush()
        brief = {name: value for name, value in row.items() if name not in ("samples_ms", "log", "memory")}
        sys.stderr.write(f"{kind} {json.dumps(brief)[:400]}\n")


class Run:
    """A started engine, its deadline and the file that its rows go to."""

    def __init__(self, driver: Driver, write: Writer, deadline: float, sample: Callable[[], Row]) -> None:
        self._driver = driver
        self._write = write
        self._deadline = deadline
        self._sample = sample
        self._failures = 0

    def each(self, kind: str, chosen: Iterable[Point], run: Callable[[Point], Row], reserve_s: float = 0.0) -> None:
        """A row for each point, until time is up or the engine fails again and again."""
        for point in chosen:
            if time.monotonic() > self._deadline - reserve_s or self._failures >= MOST_FAILURES:
                return
            self._write(kind, asdict(point) | self._tried(point, run))

    def _tried(self, point: Point, run: Callable[[Point], Row]) -> Row:
        gc.collect()
        began = time.monotonic()
        try:
            row = run(point) | self._sample()
        except timing.TooLargeError as error:
            return {"status": "skipped", "reason": str(error)}
        except FAILURES as error:
            return {"status": "failed", "reason": f"{type(error).__name__}: {error}"[:500], **self._recovered()}
        self._failures = 0
        return {"status": "ok", **row, "took_s": round(time.monotonic() - began, 2)}

    def _recovered(self) -> Row:
        self._failures += 1
        try:
            self._driver.abandon()
        except FAILURES as error:
            self._failures = MOST_FAILURES
            return {"then": f"{type(error).__name__}: {error}"[:200]}
        return {}


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured, and how, and what is traced."""

    points: Sequence[Point]
    measured: Callable[[Driver, Point], Row]
    traced: Sequence[Point]


def measure(given: argparse.Namespace, setup: Setup, started: float) -> None:
    """Start the engine, time the points, then record the traces."""
    write = Writer(given.out, setup)
    if given.random_gates:
        gates.draw()
    llm, log_lines = launch.start(setup)
    write(
        "engine",
        {
            "load_s": round(time.monotonic() - started, 1),
            "set": dict(setup.more),
            "random_gates": given.random_gates,
            **_described(llm, log_lines),
        },
    )
    driver = Driver(launch.engine_of(llm, own_tokens=given.own_tokens))
    run = Run(driver, write, started + given.budget_s, gpu.sampler())
    chosen = {
        "all": points.every(),
        "decode": points.decoding(),
        "kinds": points.kinds(),
        "steady": steady.points(),
        "traced": points.traced(),
        "none": (),
    }[given.points]
    traced = points.traced_kinds() if given.points == "kinds" else points.traced()
    one_token = driver.limits.sampling(1)

    def generate(prompts: list[list[int]]) -> None:
        llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], one_token, use_tqdm=False)

    measured = steady.measure if given.points == "steady" else partial(timing.measure, generate=generate)
    try:
        _points_and_traces(run, driver, setup, write, Plan(chosen, measured, traced))
    finally:
        llm.llm_engine.engine_core.shutdown()


def _described(llm: Any, log_lines: launch.LogLines) -> Row:
    """Facts about the engine; what cannot be found out is no reason to measure nothing."""
    try:
        return {"caches_filled": llm.llm_engine.collective_rpc(worker.fill_cache), **launch.facts(llm, log_lines)}
    except FAILURES as error:
        return {"reason": f"{type(error).__name__}: {error}"[:500], "log": log_lines.lines}


def _points_and_traces(run: Run, driver: Driver, setup: Setup, write: Writer, plan: Plan) -> None:
    """Timings first: a profiler that was used once stays attached to the driver and slows later launches."""
    reserve_s = TRACE_SECONDS if setup.traces else 0.0
    run.each("step", plan.points, lambda point: plan.measured(driver, point), reserve_s)
    folder = setup.traces
    if folder is not None:
        traces.warm_up(driver, folder)
        name = f"trace-{write.stem}"
        run.each(
            "trace", plan.traced, lambda point: traces.record(driver, point, folder, f"{name}-{trace_suffix(point)}")
        )


def trace_suffix(point: Point) -> str:
    """What tells a point's trace from others: the phase, and the size of prompts that are not those usually traced."""
    usual = point in points.traced() or point.phase == "decode"
    return point.phase if usual else f"{point.phase}-{point.batch}x{point.input_len}"


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    given = options(argv)
    launch.prepare_environment()
    launch.preload()
    launch.wait_for(given.after)
    measure(given, setup_of(given), time.monotonic())
    return 0


if __name__ == "__main__":
    sys.exit(main())

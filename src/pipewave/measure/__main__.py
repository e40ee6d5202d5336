"""`python -m pipewave.measure`: a command that needs nothing but numpy and, to measure, torch.

The command is a supervisor: it runs the measuring in a child process and starts it again when a kernel broke the CUDA
context, hung, or took the process down; the store says where to go on.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence

from pipewave.errors import BadInput, PipewaveError
from pipewave.measure import plan
from pipewave.measure.device import CudaDevice, Device, FakeDevice
from pipewave.measure.job import Job
from pipewave.measure.protocol import BURST, DeviceLostError
from pipewave.measure.runner import EXIT_HUNG, EXIT_LOST, Limits, Runner

CHILD = "PIPEWAVE_MEASURE_CHILD"
MOST_RESTARTS = 20
SELECTIONS = ("cold", "repeat", "read", "graph")


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m pipewave.measure", description=__doc__.split("\n")[0])
    parser.add_argument("--plan", default="quick", help=", ".join((*plan.NAMES, "or a contract cases file")))
    parser.add_argument("--store", required=True, help="file to append rows to; an existing one is resumed")
    parser.add_argument("--families", default="", help="comma-separated kernel families; default all")
    parser.add_argument("--protocol", default="cold", help="protocol of a cases file")
    parser.add_argument("--select", default=",".join(SELECTIONS), help="comma-separated parts of a built-in plan")
    parser.add_argument("--in-order", action="store_true", help="finish each part, then family, before the next")
    parser.add_argument("--burst", type=int, default=BURST, help="cold calls timed between two rests; 0 never rests")
    parser.add_argument("--batch", type=int, default=plan.BATCH, help="jobs set up, profiled and stored together")
    parser.add_argument("--shard", default="0/1", help="i/n: every n-th job, starting at i")
    parser.add_argument("--limit", type=int, default=0, help="at most so many jobs, spread over families")
    parser.add_argument("--budget-s", type=float, default=float("inf"), help="stop starting work after so many seconds")
    parser.add_argument("--hang-s", type=float, default=10.0, help="seconds a job may take before it counts as hung")
    parser.add_argument("--most-failed", type=float, default=0.5, help="stop when more than this share of rows fails")
    parser.add_argument("--retry-failed", action="store_true", help="measure again what failed in an earlier run")
    parser.add_argument("--device", default="cuda", choices=("cuda", "fake"))
    parser.add_argument("--fsync", action="store_true", help="survive power loss too")
    parser.add_argument("--quiet", action="store_true")
    parser.add_argument("--compile-workers", type=int, default=0, help="compile Triton kernels ahead in n processes")
    parser.add_argument("--compile-only", default="", metavar="I/N", help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def jobs_of(options: argparse.Namespace) -> list[Job]:
    """The jobs that the options name, in plan order."""
    families = [name for name in options.families.split(",") if name]
    if options.plan in plan.NAMES:
        parts = options.select.split(",")
        if unknown := sorted(set(parts) - set(SELECTIONS)):
            raise BadInput(f"select: {unknown} are none of {', '.join(SELECTIONS)}", field="select")
        jobs = [job for job in plan.built_in(options.plan, families=families) if _part(job) in parts]
        if options.in_order:
            jobs.sort(key=lambda job: parts.index(_part(job)))
    else:
        jobs = [job for job in plan.from_file(options.plan, options.protocol) if not families or job.family in families]
    index, count = (int(part) for part in options.shard.split("/"))
    jobs = jobs[index::count]
    return jobs[:: max(1, len(jobs) // options.limit)][: options.limit] if options.limit else jobs


def _part(job: Job) -> str:
    """Which of SELECTIONS a job of a built-in plan belongs to."""
    return "repeat" if job.repeat else "read" if job.flush == "read" else job.protocol


class Progress:
    """A line every ten seconds on standard error."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._started = self._said = time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        """Say how far it is, if there is something new to say."""
        now = time.monotonic()
        if self._quiet or (now - self._said <= 10 and done < total):
            return
        self._said = now
        rate = done / max(now - self._started, 1e-9)
        sys.stderr.write(f"{done}/{total} jobs, {rate:.1f}/s, {(total - done) / max(rate, 1e-9):.0f} s to go\n")


def _limits(options: argparse.Namespace) -> Limits:
    return Limits(options.budget_s, options.hang_s, options.most_failed, options.retry_failed, options.batch)


def measure(options: argparse.Namespace) -> int:
    """Run in this process; the exit status says whether to start it again."""
    try:
        device: Device = FakeDevice() if options.device == "fake" else CudaDevice(options.burst)
    except (DeviceLostError, ImportError) as error:
        sys.stderr.write(f"no GPU to measure on: {error}\n")
        return 2
    runner = Runner(device, options.store, _limits(options), fsync=options.fsync)
    try:
        runner.run(jobs_of(options), Progress(quiet=options.quiet), in_order=options.in_order)
    except DeviceLostError as error:
        sys.stderr.write(f"device lost: {error}\n")
        return EXIT_LOST
    finally:
        sys.stderr.write(f"{runner.summary.text()}\n")
    return 0


def supervise(argv: Sequence[str], options: argparse.Namespace, started: float) -> int:
    """Run `measure` in a child, again after each crash, while the budget (counted from `started`) lasts."""
    environment = os.environ | {CHILD: "1", "VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "ERROR")}
    status = 0
    for _ in range(MOST_RESTARTS):
        left = options.budget_s - (time.monotonic() - started)
        if left <= 0:
            break
        command = [sys.executable, "-m", "pipewave.measure", *argv, "--budget-s", str(left)]
        status = subprocess.run(command, env=environment, check=False).returncode
        if status not in (EXIT_LOST, EXIT_HUNG) and status >= 0:
            break
        sys.stderr.write(f"measuring process ended with {status}; starting it again\n")
    return status


def compile_ahead(argv: Sequence[str], workers: int) -> None:
    """Fill Triton's cache with what the mixture-of-experts jobs need, in parallel processes."""
    environment = os.environ | {CHILD: "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    base = [sys.executable, "-m", "pipewave.measure", *argv, "--compile-only"]
    started = time.monotonic()
    children = [subprocess.Popen([*base, f"{i}/{workers}"], env=environment) for i in range(workers)]
    statuses = [child.wait() for child in children]
    sys.stderr.write(f"compiled ahead in {time.monotonic() - started:.0f} s; exit statuses {statuses}\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status. BadInput or BadFile for options that name nothing."""
    given = list(sys.argv[1:] if argv is None else argv)
    options = arguments(given)
    if options.compile_only:
        from pipewave.measure.compile_ahead import compile_shard

        return compile_shard(options, jobs_of)
    if os.environ.get(CHILD):
        return measure(options)
    jobs_of(options)  # what is wrong with the options is said once, before anything starts
    started = time.monotonic()
    if options.compile_workers:
        compile_ahead(given, options.compile_workers)
    return supervise(given, options, started)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except PipewaveError as error:
        sys.stderr.write(f"error: {error.message}\n")
        sys.exit(2)

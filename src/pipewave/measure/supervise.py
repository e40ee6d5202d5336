"""`pipewave measure`: measuring in a child process, started again when a kernel broke the CUDA context, hung, or took
the process down; the store says where to go on.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace

from pipewave.errors import BadInput
from pipewave.measure.device import CudaDevice, Device, FakeDevice
from pipewave.measure.plan import NAMES, Job, built_in, from_file
from pipewave.measure.protocol import BURST, DeviceLostError
from pipewave.measure.runner import EXIT_HUNG, EXIT_LOST, Limits, Runner

CHILD = "PIPEWAVE_MEASURE_CHILD"
PROGRAM = ["pipewave", "measure"]  # the module of the child, and its command
MOST_RESTARTS = 20
SELECTIONS = ("cold", "repeat", "read", "graph")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(Limits):
    """What is measured and how, as the command line gives it (`pipewave measure --help`)."""

    store: str
    plan: str = "quick"
    families: str = ""
    protocol: str = "cold"
    select: str = ",".join(SELECTIONS)
    limit: int = 0
    in_order: bool = False
    burst: int = BURST
    quiet: bool = False
    device: str = "cuda"

    def jobs(self) -> list[Job]:
        """The jobs that the options name, in plan order. BadInput or BadFile for options that name nothing."""
        families = [name for name in self.families.split(",") if name]
        if self.plan in NAMES:
            parts = self.select.split(",")
            planned = built_in(self.plan, families=families)
            if unknown := sorted(set(parts) - set(SELECTIONS)):
                raise BadInput(f"select: {unknown} are none of {', '.join(SELECTIONS)}", field="select")
            part = {j.key: "repeat" if j.repeat else "read" if j.flush == "read" else j.protocol for j in planned}
            jobs = [job for job in planned if part[job.key] in parts]
            if self.in_order:
                jobs.sort(key=lambda job: parts.index(part[job.key]))
        else:
            jobs = [job for job in from_file(self.plan, self.protocol) if not families or job.family in families]
        if self.limit < 0:
            raise BadInput(f"limit = {self.limit}: must be at least 0", field="limit")
        return jobs[:: max(1, len(jobs) // self.limit)][: self.limit] if self.limit else jobs

    def words(self) -> Iterator[str]:
        """As words of a command line."""
        for name, value in asdict(self).items():
            option = f"--{name.replace('_', '-')}"
            if value is True:
                yield option
            elif value is not False and value != "":
                yield f"{option}={value}"


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


def measure(options: Options) -> int:
    """Run in this process; the exit status says whether to start it again."""
    try:
        device: Device = FakeDevice() if options.device == "fake" else CudaDevice(options.burst)
    except (DeviceLostError, ImportError) as error:
        sys.stderr.write(f"no GPU to measure on: {error}\n")
        return 2
    runner = Runner(device, options.store, options)
    try:
        runner.run(options.jobs(), Progress(quiet=options.quiet), in_order=options.in_order)
    except DeviceLostError as error:
        sys.stderr.write(f"device lost: {error}\n")
        return EXIT_LOST
    finally:
        sys.stderr.write(f"{runner.summary.text()}\n")
    return 0


def run(options: Options) -> int:
    """Measure in a child, again after each crash, while the budget lasts; the exit status."""
    if os.environ.get(CHILD):
        return measure(options)
    options.jobs()  # what is wrong with the options is said once, before anything starts
    environment = os.environ | {CHILD: "1", "VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "ERROR")}
    status, started = 0, time.monotonic()
    for _ in range(MOST_RESTARTS):
        left = options.budget_s - (time.monotonic() - started)
        if left <= 0:
            break
        command = [sys.executable, "-m", *PROGRAM, *replace(options, budget_s=left).words()]
        status = subprocess.run(command, env=environment, check=False).returncode
        if status not in (EXIT_LOST, EXIT_HUNG) and status >= 0:
            break
        sys.stderr.write(f"measuring process ended with {status}; starting it again\n")
    return status

"""Measures what is left of a list of jobs, batch by batch, each stored as rows before the next begins."""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from pipewave.files import store as records
from pipewave.measure.device import Device, Outcome
from pipewave.measure.impls import runner
from pipewave.measure.plan import BATCH, Job, batches
from pipewave.measure.protocol import SPIN_CLOCKS, DeviceLostError

EXIT_LOST, EXIT_HUNG = 70, 71
SETUP_S, HANG_S = 180.0, 10.0  # that setting a batch up may take, and each of its jobs, before it counts as hung
ENOUGH, MOST_FAILED = 300, 0.5  # jobs tried, and the share of failures beyond which the rest would fail, too
CLOCK_SPREAD = 0.10  # power management moves the clock by a few percent under any load
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Limits:
    """`budget_s` ends the run between batches; `batch` jobs are set up, profiled by one profiler, stored together."""

    budget_s: float = float("inf")
    retry_failed: bool = False
    batch: int = BATCH


@dataclass(slots=True)
class Summary:
    """Counts by status, the spread of good rows, and how many were marked."""

    statuses: Counter[str] = field(default_factory=Counter)
    spreads: list[float] = field(default_factory=list)
    rejected: int = 0
    throttled: int = 0
    left: int = 0
    damaged: int = 0
    reasons: Counter[str] = field(default_factory=Counter)

    def add(self, row: dict[str, Any]) -> None:
        """Count one new row."""
        self.statuses[row["status"]] += 1
        if row["status"] == "failed":
            what = "/".join((row["case"]["kernel"], row["impl"], row["protocol"]))
            self.reasons[f"{what}: {row['reason'][:160]}"] += 1
        if row["status"] == "ok":
            self.spreads.append((row["max_us"] - row["min_us"]) / row["latency_us"])
            self.rejected += row.get("rejected", 0)
            self.throttled += bool(row.get("throttled"))

    def text(self) -> str:
        """One line for people, and one for each of the most frequent reasons of failure."""
        counts = ", ".join(f"{count} {status}" for status, count in self.statuses.most_common()) or "nothing measured"
        damaged = f"; {self.damaged} damaged lines" if self.damaged else ""
        failures = "".join(f"\n  {count} x {reason}" for reason, count in self.reasons.most_common(12))
        quality = ""
        if spreads := sorted(self.spreads):
            middle, tail = spreads[len(spreads) // 2], spreads[int(0.95 * (len(spreads) - 1))]
            quality = (
                f"; spread median {middle:.1%}, 95th percentile {tail:.1%}; "
                f"{self.rejected} repetitions were outliers; {self.throttled} rows throttled"
            )
        return f"{counts}; {self.left} left{quality}{damaged}{failures}"


class Runner:
    """Measures jobs on a device into a store, resuming after whatever ended the last run."""

    def __init__(self, device: Device, path: str | os.PathLike[str], limits: Limits) -> None:
        self._device = device
        self._limits = limits
        contents = records.read(path)
        self._writer = RowWriter(path, contents, device.environment())
        self._done = records.done_keys(contents, retry_failed=limits.retry_failed)
        self._begun: dict[str, list[int]] = {}  # by unfinished job, the sizes of the batches it was begun in
        for record in contents.of("begin"):
            for key in set(record["keys"]) - self._done:
                self._begun.setdefault(key, []).append(len(record["keys"]))
        self.summary = Summary(damaged=contents.damaged)

    def run(
        self,
        jobs: Sequence[Job],
        on_progress: Callable[[int, int], object] = lambda _done, _total: None,
        *,
        in_order: bool = False,
    ) -> Summary:
        """Measure what is not in the store; `on_progress(done, total)` is called after every batch."""
        started = time.monotonic()
        todo = [job for job in jobs if job.key not in self._done]
        self.summary.left = len(todo)
        # One by one, after the others, the jobs that were under way when an earlier run died.
        suspects = [[job] for job in todo if job.key in self._begun]
        others = [job for job in todo if job.key not in self._begun]
        for batch in (*batches(others, self._limits.batch, in_order=in_order), *suspects):
            tried, failed = self.summary.statuses.total(), self.summary.statuses["failed"]
            hopeless = tried >= ENOUGH and failed > MOST_FAILED * tried
            if hopeless or time.monotonic() - started > self._limits.budget_s:
                break
            for row in self._measured(batch):
                self.summary.add(row)
            self.summary.left -= len(batch)
            on_progress(len(todo) - self.summary.left, len(todo))
        return self.summary

    def _measured(self, batch: list[Job]) -> list[dict[str, Any]]:
        if len(batch) == 1 and self._begun.get(batch[0].key, []).count(1) >= 2:
            outcomes = [Outcome("failed", "the process died twice while this ran alone")]
            return self._writer.acknowledge(batch, outcomes)
        self._writer.begin(batch)
        try:
            with self._watched(batch):
                outcomes = self._device.measure(batch)
        except DeviceLostError as error:
            if len(batch) == 1:
                self._writer.acknowledge(batch, [Outcome("failed", str(error))])
            raise
        return self._writer.acknowledge(batch, outcomes)

    @contextmanager
    def _watched(self, batch: list[Job]) -> Iterator[None]:
        """End the process when a batch outlasts its limit: a hung kernel cannot be interrupted from within."""
        limit = SETUP_S + HANG_S * len(batch)

        def give_up() -> None:
            if len(batch) == 1:
                self._writer.acknowledge(batch, [Outcome("failed", f"hung: no result after {limit:.0f} s")])
            os._exit(EXIT_HUNG)

        timer = threading.Timer(limit, give_up)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


def digest(value: object) -> str:
    """Eight hex digits that change with any part of a JSON value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:8]


class RowWriter:
    """Appends rows to a store that was read as `contents`; kernel names run to a kilobyte, so rows hold their hash."""

    def __init__(
        self, path: str | os.PathLike[str], contents: records.Contents, environment: Mapping[str, Any]
    ) -> None:
        self._store = records.Store(path)
        self._names = {record["id"] for record in contents.of("name")}
        self._environment = dict(environment)
        self._env = digest(self._environment)
        if self._env not in {record["id"] for record in contents.of("env")}:
            self._store.append({"t": "env", "id": self._env, **self._environment})

    def begin(self, jobs: Sequence[Job]) -> None:
        """Note what is under way, so that the next run knows what an earlier one died of."""
        self._store.append({"t": "begin", "keys": [job.key for job in jobs]})

    def acknowledge(self, jobs: Sequence[Job], outcomes: Sequence[Outcome]) -> list[Row]:
        """Append one row a job, in one write, and return them."""
        names: list[Row] = []
        rows = [self._row(job, outcome, names) for job, outcome in zip(jobs, outcomes, strict=True)]
        self._store.extend([*names, *rows])
        return rows

    def _row(self, job: Job, outcome: Outcome, names: list[Row]) -> Row:
        row: Row = {"t": "row", **job.fields(), "stack": stack_version(job, self._environment), "env": self._env}
        row["status"] = outcome.status
        timing = outcome.timing
        if timing is None:
            return row | {"reason": outcome.reason}
        row |= {name: round(getattr(timing, name), 3) for name in ("latency_us", "min_us", "max_us")}
        row |= {"n": timing.n}
        if timing.spin_us:
            row |= {"spin_us": round(timing.spin_us, 3), "spin_clocks": SPIN_CLOCKS}
        if timing.rejected:
            row["rejected"] = timing.rejected
        row["kernels"] = []
        for event in timing.events:
            name = digest(event.name)
            if name not in self._names:
                self._names.add(name)
                names.append({"t": "name", "id": name, "name": event.name})
            shape = [list(event.grid), list(event.block), event.smem_bytes, event.registers]
            row["kernels"].append([name, round(event.duration_us, 3), *shape])
        health = outcome.health
        row |= {"sm_clock_mhz": health.sm_clock_mhz, "power_w": health.power_w, "temp_c": health.temp_c}
        row["clock_spread"] = round(timing.spin_spread, 3)
        if health.slowdown or timing.spin_spread > CLOCK_SPREAD:
            row["throttled"] = True
        return row | dict(outcome.extra or {})


def stack_version(job: Job, environment: Mapping[str, Any]) -> str:
    """`vllm-0.22.1`, `torch-2.11`: the library of a job with its version, as the contract writes them."""
    library = runner(job).library  # torch, vllm, flashinfer or triton
    version = environment.get("flashinfer-python" if library == "flashinfer" else library)
    if version is None:
        return library
    short = str(version).split("+")[0]
    parts = short.split(".")[: 2 if library in ("torch", "triton") else 3]
    return f"{library}-{'.'.join(parts)}"

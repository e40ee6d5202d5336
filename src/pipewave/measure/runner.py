"""The loop: what is left to do, batch by batch, each acknowledged in the store before the next begins."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from pipewave.files import store as records
from pipewave.measure.device import Device, Outcome
from pipewave.measure.job import Job
from pipewave.measure.plan import BATCH, batches
from pipewave.measure.protocol import DeviceLostError
from pipewave.measure.writer import RowWriter

EXIT_LOST, EXIT_HUNG = 70, 71
SETUP_S = 180.0


@dataclass(frozen=True, slots=True)
class Limits:
    """`budget_s` ends the run between batches; `hang_s` a job, plus a set-up allowance, ends the process.

    A run of which more than `most_failed` of the first few hundred rows failed stops: something is not installed.
    `batch` jobs are set up, profiled and stored together; the profiler starts once for all of them.
    """

    budget_s: float = float("inf")
    hang_s: float = 10.0
    most_failed: float = 0.5
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
        return f"{counts}; {self.left} left{self._quality()}{damaged}{failures}"

    def _quality(self) -> str:
        """How steady the rows are; nothing where there are none."""
        if not self.spreads:
            return ""
        spreads = sorted(self.spreads)
        middle, tail = spreads[len(spreads) // 2], spreads[int(0.95 * (len(spreads) - 1))]
        return (
            f"; spread median {middle:.1%}, 95th percentile {tail:.1%}; "
            f"{self.rejected} repetitions were outliers; {self.throttled} rows throttled"
        )

    def hopeless(self, most_failed: float) -> bool:
        """Too many failures to go on."""
        return self.statuses.total() >= 300 and self.statuses["failed"] > most_failed * self.statuses.total()


class Runner:
    """Measures jobs on a device into a store, resuming after whatever ended the last run."""

    def __init__(self, device: Device, path: str | os.PathLike[str], limits: Limits, *, fsync: bool = False) -> None:
        self._device = device
        self._limits = limits
        contents = records.read(path)
        self._writer = RowWriter(path, contents, device.environment(), fsync=fsync)
        self._done = records.done_keys(contents, retry_failed=limits.retry_failed)
        self._begun = _unfinished(contents, self._done)
        self.summary = Summary(damaged=contents.damaged)

    def run(
        self,
        jobs: Sequence[Job],
        on_progress: Callable[[int, int], object] = lambda done, total: None,
        *,
        in_order: bool = False,
    ) -> Summary:
        """Measure what is not in the store; `on_progress(done, total)` is called after every batch."""
        started = time.monotonic()
        todo = [job for job in jobs if job.key not in self._done]
        self.summary.left = len(todo)
        for batch in self._ordered(todo, in_order=in_order):
            if time.monotonic() - started > self._limits.budget_s:
                break
            if self.summary.hopeless(self._limits.most_failed):
                break
            for row in self._measured(batch):
                self.summary.add(row)
            self.summary.left -= len(batch)
            on_progress(len(todo) - self.summary.left, len(todo))
        return self.summary

    def _ordered(self, todo: Sequence[Job], *, in_order: bool) -> Iterator[list[Job]]:
        """Batches, then one by one the jobs that were under way when an earlier run died."""
        suspects = {key for key, sizes in self._begun.items() if sizes}
        known = [job for job in todo if job.key not in suspects]
        yield from batches(known, self._limits.batch, in_order=in_order)
        yield from ([job] for job in todo if job.key in suspects)

    def _measured(self, batch: list[Job]) -> list[dict[str, Any]]:
        if len(batch) == 1 and self._begun.get(batch[0].key, []).count(1) >= 2:
            outcomes = [Outcome("failed", "the process died twice while this ran alone")]
        else:
            self._writer.begin(batch)
            with self._watched(batch):
                outcomes = self._outcomes(batch)
        return self._writer.acknowledge(batch, outcomes)

    def _outcomes(self, batch: list[Job]) -> list[Outcome]:
        try:
            return self._device.measure(batch)
        except DeviceLostError as error:
            if len(batch) == 1:
                self._writer.acknowledge(batch, [Outcome("failed", str(error))])
            raise

    @contextmanager
    def _watched(self, batch: list[Job]) -> Iterator[None]:
        """End the process when a batch outlasts its limit: a hung kernel cannot be interrupted from within."""
        limit = SETUP_S + self._limits.hang_s * len(batch)
        timer = threading.Timer(limit, self._give_up, (batch, limit))
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _give_up(self, batch: list[Job], limit: float) -> None:
        if len(batch) == 1:
            self._writer.acknowledge(batch, [Outcome("failed", f"hung: no result after {limit:.0f} s")])
        os._exit(EXIT_HUNG)


def _unfinished(contents: records.Contents, done: set[str]) -> dict[str, list[int]]:
    """Keys that an earlier run began and never finished, with the sizes of the batches it began them in."""
    begun: dict[str, list[int]] = {}
    for record in contents.of("begin"):
        for key in record["keys"]:
            if key not in done:
                begun.setdefault(key, []).append(len(record["keys"]))
    return begun

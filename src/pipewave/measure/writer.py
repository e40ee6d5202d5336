"""From outcomes to stored rows: environment and kernel names once, everything else a row each."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from pipewave.files import store as records
from pipewave.measure.brackets import Event, Timing
from pipewave.measure.device import Outcome
from pipewave.measure.impls import stack
from pipewave.measure.job import Job
from pipewave.measure.protocol import SPIN_CLOCKS

CLOCK_SPREAD = 0.10  # power management moves the clock by a few percent under any load
Row = dict[str, Any]


def digest(value: object) -> str:
    """Eight hex digits that change with any part of a JSON value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:8]


class RowWriter:
    """Appends rows to a store that was read as `contents`; kernel names run to a kilobyte, so rows hold their hash."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        contents: records.Contents,
        environment: Mapping[str, Any],
        *,
        fsync: bool = False,
    ) -> None:
        self._store = records.Store(path, fsync=fsync)
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
        if outcome.timing is None:
            return row | {"reason": outcome.reason}
        row |= timing_fields(outcome.timing)
        row["kernels"] = [self._kernel(event, names) for event in outcome.timing.events]
        health = outcome.health
        row |= {"sm_clock_mhz": health.sm_clock_mhz, "power_w": health.power_w, "temp_c": health.temp_c}
        row["clock_spread"] = round(outcome.timing.spin_spread, 3)
        if health.slowdown or outcome.timing.spin_spread > CLOCK_SPREAD:
            row["throttled"] = True
        return row | dict(outcome.extra or {})

    def _kernel(self, event: Event, names: list[Row]) -> list[Any]:
        name = digest(event.name)
        if name not in self._names:
            self._names.add(name)
            names.append({"t": "name", "id": name, "name": event.name})
        shape = [list(event.grid), list(event.block), event.smem_bytes, event.registers]
        return [name, round(event.duration_us, 3), *shape]


def timing_fields(timing: Timing) -> Row:
    """The latency fields of a row, to a nanosecond."""
    fields: Row = {
        "latency_us": round(timing.latency_us, 3),
        "min_us": round(timing.min_us, 3),
        "max_us": round(timing.max_us, 3),
        "n": timing.n,
    }
    if timing.spin_us:
        fields |= {"spin_us": round(timing.spin_us, 3), "spin_clocks": SPIN_CLOCKS}
    if timing.rejected:
        fields["rejected"] = timing.rejected
    return fields


def stack_version(job: Job, environment: Mapping[str, Any]) -> str:
    """`vllm-0.22.1`, `torch-2.11`: the library of a job with its version, as the contract writes them."""
    library = stack(job)
    version = environment.get("flashinfer-python" if library == "flashinfer" else library)
    if version is None:
        return library
    short = str(version).split("+")[0]
    parts = short.split(".")[: 2 if library in ("torch", "triton") else 3]
    return f"{library}-{'.'.join(parts)}"

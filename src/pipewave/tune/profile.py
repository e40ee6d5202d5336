"""`pipewave tune profile KERNEL`: measure anchors on this GPU, resumable, within a budget; then make the table.

Binaries are compiled on all cores before CUDA starts. Then anchors are timed, cold and interleaved, until the budget is
spent. Every timed shape is appended to a store as it is done: a killed run goes on where it was.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipewave.files.store import Store, read
from pipewave.tune.record import Job, Launcher, Timer, plan, time_job
from pipewave.tune.recording import Recording, Rows
from pipewave.tune.shapes import FIELDS, family
from pipewave.tune.space import Space, space

Progress = Callable[[int, int, float], None]  # jobs done, jobs planned, seconds left


@dataclass(frozen=True, slots=True)
class Budget:
    """`seconds` of timing in all, those of earlier runs included; `anchors` drawn at random; `seed` of the draw."""

    seconds: float = 120.0
    anchors: int = 1000
    seed: int = 1


def profile(of: Space, jobs: Sequence[Job], launcher: Launcher, timer: Timer, path: Path, seconds: float,
            progress: Progress = lambda _done, _planned, _left: None,
            clock: Callable[[], float] = time.monotonic) -> Rows:  # fmt: skip
    """Time the jobs that `path` does not hold yet until the budget is spent; returns everything timed so far."""
    done = {int(record["job"]): record for record in read(path).records} if path.exists() else {}
    spent = sum(float(record["seconds"]) for record in done.values())
    with Store(path) as store:
        for number, job in enumerate(jobs):
            if number in done:
                continue
            if spent >= seconds:
                break
            start = clock()
            order, halves, us = time_job(job, launcher, of.configs, timer)
            taken = clock() - start
            spent += taken
            done[number] = record = {"job": number, "seconds": taken, "counts": counts(launcher, job),
                                     "configs": order, "halves": halves, "us": us}  # fmt: skip
            store.append(record)
            progress(len(done), len(jobs), min(seconds - spent, spent / len(done) * (len(jobs) - len(done))))
    return rows(of, jobs, done)


def counts(launcher: Launcher, job: Job) -> list[int]:
    """Tokens each expert got at the prepared shape; empty where nothing is routed."""
    chosen = getattr(launcher, "chosen", None)
    return [] if chosen is None else [int(c) for c in chosen.reshape(-1).bincount(minlength=job.shape["e"]).tolist()]


def rows(of: Space, jobs: Sequence[Job], done: dict[int, dict[str, Any]]) -> Rows:
    """Gather stored records in the order of the plan."""
    gathered, fields = Rows(), FIELDS[family(of.kernel)]
    for number in sorted(done):
        record, job = done[number], jobs[number]
        shape = gathered.add_shape([job.shape[name] for name in fields], job.role, list(record["counts"]))
        gathered.add(shape, record["configs"], record["halves"], record["us"])
    return gathered


def run(kernel: str, path: Path, budget: Budget, say: Callable[[str], None], progress: Progress) -> Recording:
    """Profile a kernel on the current GPU. Needs torch and triton."""
    from pipewave.tune import build

    of = space(kernel)
    start = time.monotonic()
    say(f"{kernel}: compiling {len(of.binaries())} binaries")
    futures = build.build_all([kernel], max(1, (os.cpu_count() or 2) - 1))[kernel]
    built = dict(zip(of.binaries(), [future.result() for future in futures], strict=True))
    say(f"{kernel}: compiled in {time.monotonic() - start:.0f} s; timing for at most {budget.seconds:.0f} s")
    return _timed(of, built, path, budget, progress)


def _timed(of: Space, built: dict[Any, Any], path: Path, budget: Budget, progress: Progress) -> Recording:
    import torch

    from pipewave.tune import build, verify
    from pipewave.tune.operands import Operands
    from pipewave.tune.record import environment
    from pipewave.tune.timing import ColdTimer

    loaded = {key: build.compile_binary(of.kernel, key) for key, report in built.items() if not report.error}
    launcher, timer = Operands(of.kernel, of.names, loaded), ColdTimer()
    usable = [i for i, config in enumerate(of.configs) if config[: of.compiled] in loaded]
    found = verify.errors(launcher, [of.configs[i] for i in usable])
    right = [i for i, error in zip(usable, found, strict=True) if error <= verify.TOLERANCE]
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    jobs = plan(of, right, budget.seed, 0, budget.anchors, sms)
    timed = profile(of, jobs, launcher, timer, path, budget.seconds, progress)
    meta = {"schema": 1, "kernel": of.kernel, "names": of.names, "compiled": of.compiled,
            "fields": FIELDS[family(of.kernel)], "seed": budget.seed, "method": "cuda events, cold L2",
            "order": "shuffled", "flush_mb": timer.flush.numel() >> 20, "env": environment(),
            "empty_us": timer.empty_us(launcher.bind(build.compile_nothing(), (1, 1, 1), [0]))}  # fmt: skip
    report = [built[config[: of.compiled]] for config in of.configs]
    return timed.freeze(meta, list(of.configs), [(b.smem_bytes, b.registers, b.spill_bytes) for b in report])

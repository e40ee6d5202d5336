"""Measure anchors of one of our kernels on this GPU, resumable, within a budget; then make the table.

Binaries are compiled on all cores before CUDA starts. Then anchors are timed, cold and interleaved, until the budget is
spent. Every timed shape is appended to a store as it is done: a killed run goes on where it was.
"""

from __future__ import annotations

import math
import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from lab.own_kernels.recording import ANCHOR, TEST, Recording, Rows
from lab.own_kernels.shapes import FIELDS, Shape, draw
from lab.own_kernels.space import Config, Space, space
from pipewave.files.store import Store, read
from pipewave.tune.shipped_kernels import family

Calls = Sequence[Callable[[], Any]]
Timer = Callable[[Sequence[Calls]], list[float]]
ANCHOR_SEED = 1_000_003  # another stream than any test seed


@dataclass(frozen=True, slots=True)
class Budget:
    """What to time."""

    seconds: float = 120.0  # of timing in all, those of earlier runs included
    anchors: int = 1000  # shapes drawn at random to fit to
    seed: int = 1  # of the draw
    tests: int = 0  # shapes to score on, timed first


class Launcher(Protocol):
    """What the recorder needs of a device; `operands.Operands` is the real one."""

    def prepare(self, shape: Shape) -> None:
        """Set up one shape."""

    def calls(self, config: Config) -> Calls:
        """Return the launches of one configuration at that shape."""


@dataclass(frozen=True, slots=True)
class Job:
    """One shape and the configurations (by index) to time there."""

    shape: Shape
    role: int
    configs: tuple[int, ...]


# (rounds, within): so many more rounds of the configurations within that factor of the fastest seen so far.
Stages = tuple[tuple[int, float], ...]
STAGES: dict[int, Stages] = {
    TEST: ((2, math.inf), (2, 1.6), (8, 1.2), (8, 1.06)),
    ANCHOR: ((1, math.inf), (1, 2.0), (2, 1.4)),  # what is twice as slow as the best is hardly worth a second look
}


def plan(of: Space, usable: Sequence[int], seed: int, tests: int, anchors: int) -> list[Job]:
    """Test shapes first, then anchors, shuffled so that a spent budget leaves a fair sample."""
    every = tuple(usable)
    jobs = [Job(shape, TEST, every) for shape in draw(of.kernel, seed, tests)]
    held_out = {_identity(job.shape) for job in jobs}
    drawn = draw(of.kernel, seed + ANCHOR_SEED, anchors)
    rest = [Job(shape, ANCHOR, every) for shape in drawn if _identity(shape) not in held_out]
    random.Random(seed).shuffle(rest)
    return jobs + rest


def _identity(shape: Shape) -> tuple[int, ...]:
    """Name a shape apart from the random state of its routing or lengths."""
    return tuple(value for name, value in shape.items() if name != "seed")


def time_job(
    job: Job, launcher: Launcher, configs: Sequence[Config], timer: Timer
) -> tuple[list[int], list[int], list[float]]:
    """Time one job; returns parallel lists (configuration, half, µs). Rounds shuffle the configurations."""
    launcher.prepare(job.shape)
    launches = {index: launcher.calls(configs[index]) for index in job.configs}
    best = dict.fromkeys(job.configs, math.inf)
    order: list[int] = []
    halves: list[int] = []
    us: list[float] = []
    shuffle, before = random.Random(len(job.configs)).sample, 0
    for rounds, within in STAGES[job.role]:
        limit = math.inf if math.isinf(within) else within * min(best.values())
        near = [index for index in job.configs if best[index] <= limit]
        # Another order each round: a timer's own rhythm must not look like a configuration's.
        batch = [index for _ in range(rounds) for index in shuffle(near, len(near))]
        halves += [(before + done) % 2 for done in range(rounds) for _ in near]
        before += rounds
        taken = timer([launches[index] for index in batch])
        for index, value in zip(batch, taken, strict=True):
            best[index] = min(best[index], value)
        order += batch
        us += taken
    return order, halves, us


def profile(of: Space, jobs: Sequence[Job], launcher: Launcher, timer: Timer, path: Path, seconds: float,
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


def run(kernel: str, path: Path, budget: Budget) -> Recording:
    """Profile a kernel on the current GPU. Needs torch and triton."""
    from lab.own_kernels import build

    of = space(kernel)
    start = time.monotonic()
    sys.stderr.write(f"{kernel}: compiling {len(of.binaries())} binaries\n")
    futures = build.build_all([kernel], max(1, (os.cpu_count() or 2) - 1))[kernel]
    built = dict(zip(of.binaries(), [future.result() for future in futures], strict=True))
    sys.stderr.write(f"compiled in {time.monotonic() - start:.0f} s; timing for at most {budget.seconds:.0f} s\n")
    return _timed(of, built, path, budget)


def _timed(of: Space, built: dict[Any, Any], path: Path, budget: Budget) -> Recording:
    from lab.own_kernels import build, verify
    from lab.own_kernels.operands import Operands
    from pipewave.tune.user_kernels.gpu import ColdTimer

    loaded = {key: build.compile_binary(of.kernel, key) for key, report in built.items() if not report.error}
    launcher, timer = Operands(of.kernel, of.names, loaded), ColdTimer()
    usable = [i for i, config in enumerate(of.configs) if config[: of.compiled] in loaded]
    found = verify.errors(launcher, [of.configs[i] for i in usable])
    right = [i for i, error in zip(usable, found, strict=True) if error <= verify.TOLERANCE]
    jobs = plan(of, right, budget.seed, budget.tests, budget.anchors)
    timed = profile(of, jobs, launcher, timer, path, budget.seconds)
    meta = {"schema": 1, "kernel": of.kernel, "names": of.names, "compiled": of.compiled,
            "fields": FIELDS[family(of.kernel)], "seed": budget.seed, "method": "cuda events, cold L2",
            "order": "shuffled", "flush_mb": timer.flush.numel() >> 20, "env": timed_on()}  # fmt: skip
    report = [built[config[: of.compiled]] for config in of.configs]
    return timed.freeze(meta, list(of.configs), [(b.smem_bytes, b.registers, b.spill_bytes) for b in report])


def timed_on() -> dict[str, Any]:
    """Name what the timings depend on: GPU, clocks, driver, compiler."""
    import subprocess

    import torch
    import triton

    wanted = (
        "name,driver_version,clocks.sm,clocks.mem,clocks.max.sm,power.draw,power.limit,temperature.gpu,mig.mode.current"
    )
    query = ["nvidia-smi", f"--query-gpu={wanted}", "--format=csv,noheader"]
    state = subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip()
    props = torch.cuda.get_device_properties(0)
    return {
        "gpu": props.name,
        "sm_count": props.multi_processor_count,
        "cc": props.major * 10 + props.minor,
        "l2_bytes": props.L2_cache_size,
        "triton": triton.__version__,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "nvidia_smi": dict(zip(wanted.split(","), state.split(", "), strict=False)),
    }

"""Record full configuration spaces on a GPU: `python -m pipewave.tune.record --kernel gemm:60,decode_128:30 --out DIR`.

For each kernel: compile everything in parallel, check every configuration, time all of them at random test shapes
(more repeats where it is close), then at anchors until the budget is spent. One file a kernel; a kernel whose file
exists is skipped. Needs torch and triton.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pipewave.tune.recording import ANCHOR, TEST, WAVE, Recording, Rows
from pipewave.tune.shapes import FIELDS, Shape, draw, family, wave_anchors
from pipewave.tune.space import Config, Space, kernels, space

Calls = Sequence[Callable[[], Any]]
Timer = Callable[[Sequence[Calls]], list[float]]
ANCHOR_SEED = 1_000_003  # another stream than any test seed


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
    WAVE: ((2, math.inf),),
}


def plan(of: Space, usable: Sequence[int], seed: int, tests: int, anchors: int, sms: int) -> list[Job]:
    """Test shapes first, then anchors of both kinds, shuffled so that a spent budget leaves a fair sample."""
    every = tuple(usable)
    jobs = [Job(shape, TEST, every) for shape in draw(of.kernel, seed, tests)]
    held_out = {_identity(job.shape) for job in jobs}
    drawn = [shape for shape in draw(of.kernel, seed + ANCHOR_SEED, anchors) if _identity(shape) not in held_out]
    rest = [Job(shape, ANCHOR, every) for shape in drawn]
    by_block: dict[tuple[int, ...], list[int]] = {}
    for index in usable:
        config = of.as_dict(of.configs[index])
        key = tuple(config.get(name, 0) for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K"))
        by_block.setdefault(key, []).append(index)
    for members in by_block.values():
        block = of.as_dict(of.configs[members[0]])
        placed = wave_anchors(of.kernel, block, sms)
        rest += [Job(shape, WAVE, tuple(members)) for shape in placed if _identity(shape) not in held_out]
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
        # Another order each round: a timer's own rhythm (see `alternation`) must not look like a configuration's.
        batch = [index for _ in range(rounds) for index in shuffle(near, len(near))]
        halves += [(before + done) % 2 for done in range(rounds) for _ in near]
        before += rounds
        taken = timer([launches[index] for index in batch])
        for index, value in zip(batch, taken, strict=True):
            best[index] = min(best[index], value)
        order += batch
        us += taken
    return order, halves, us


def record(of: Space, jobs: Sequence[Job], launcher: Launcher, timer: Timer, budget_s: float,
           clock: Callable[[], float] = time.monotonic) -> Rows:  # fmt: skip
    """Time jobs in order until the budget is spent; a job is never cut short."""
    rows, end = Rows(), clock() + budget_s
    fields = FIELDS[family(of.kernel)]
    for job in jobs:
        if clock() >= end:
            break
        timed = time_job(job, launcher, of.configs, timer)
        chosen = getattr(launcher, "chosen", None)
        counts = [] if chosen is None else chosen.reshape(-1).bincount(minlength=job.shape["e"]).tolist()
        rows.add(rows.add_shape([job.shape[name] for name in fields], job.role, counts), *timed)
    return rows


def environment() -> dict[str, Any]:
    """Name what the timings depend on: GPU, clocks, driver, compiler."""
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


@dataclass(frozen=True, slots=True)
class Checked:
    """A kernel's launcher with what its compiler reports, by compile key, the error of each usable configuration, by
    index, and the seconds that both took.
    """

    launcher: Any
    built: dict[Any, Any]
    error: dict[int, float]
    compiled_s: float
    checked_s: float

    @property
    def right(self) -> list[int]:
        """Configurations that compute what they should."""
        from pipewave.tune.verify import TOLERANCE

        return [index for index, error in self.error.items() if error <= TOLERANCE]

    def errors(self, of: Space) -> dict[str, Any]:
        """What is wrong, by configuration or compile key."""
        right = set(self.right)
        wrong = {str(of.configs[index]): error for index, error in self.error.items() if index not in right}
        return wrong | {str(key): report.error for key, report in self.built.items() if report.error}


def checked(of: Space, futures: Sequence[Any]) -> Checked:
    """Wait for a kernel's binaries, load them, and check every configuration that has one."""
    from pipewave.tune import build, verify
    from pipewave.tune.operands import Operands

    started = time.monotonic()
    built = dict(zip(of.binaries(), [future.result() for future in futures], strict=True))
    loaded = {key: build.compile_binary(of.kernel, key) for key, report in built.items() if not report.error}
    compiled_s = time.monotonic() - started
    launcher = Operands(of.kernel, of.names, loaded)
    usable = [index for index, config in enumerate(of.configs) if config[: of.compiled] in loaded]
    error = dict(zip(usable, verify.errors(launcher, [of.configs[index] for index in usable]), strict=True))
    found = Checked(launcher, built, error, compiled_s, time.monotonic() - started - compiled_s)
    binaries, right = f"{len(loaded)}/{len(built)} binaries", f"{len(found.right)}/{len(usable)} right"
    say(f"{of.kernel}: {len(of.configs)} configs, {binaries}, {right}, worst error {max(error.values()):.2g}; "
        f"waited for compiler {compiled_s:.1f} s, check {found.checked_s:.1f} s")  # fmt: skip
    return found


def record_kernel(kernel: str, futures: Sequence[Any], budget_s: float, options: argparse.Namespace) -> Recording:
    """Load, check and time one kernel on the current GPU."""
    import torch

    from pipewave.tune import build
    from pipewave.tune.timing import ColdTimer

    of = space(kernel)
    found = checked(of, futures)
    timer = ColdTimer(options.flush_mb)
    empty_us = timer.empty_us(found.launcher.bind(build.compile_nothing(), (1, 1, 1), [0]))
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    jobs = plan(of, found.right, options.seed, options.tests, options.anchors, sms)
    warm = time.monotonic() + 0.5
    while time.monotonic() < warm:  # clocks rise under load, not before
        time_job(jobs[0], found.launcher, of.configs, timer)
    start = time.monotonic()
    rows = record(of, jobs, found.launcher, timer, budget_s)
    timed_s = time.monotonic() - start
    report = [found.built[config[: of.compiled]] for config in of.configs]
    recording = rows.freeze(_facts(of, found, options, empty_us, timed_s), list(of.configs),
                            [(b.smem_bytes, b.registers, b.spill_bytes) for b in report])  # fmt: skip
    say(f"{kernel}: {timed_s:.1f} s, {len(recording.row_us)} launches timed, {len(rows.shapes)}/{len(jobs)} shapes, "
        f"{rows.roles.count(TEST)} test, {rows.roles.count(ANCHOR)} anchor, {rows.roles.count(WAVE)} wave; "
        f"empty {empty_us:.2f} µs")  # fmt: skip
    return recording


def _facts(of: Space, found: Checked, options: argparse.Namespace, empty_us: float, timed_s: float) -> dict[str, Any]:
    """What a recording says of itself."""
    return {
        "schema": 1,
        "kernel": of.kernel,
        "names": of.names,
        "compiled": of.compiled,
        "fields": FIELDS[family(of.kernel)],
        "seed": options.seed,
        "anchor_seed": options.seed + ANCHOR_SEED,
        "tests": options.tests,
        "flush_mb": options.flush_mb,
        "empty_us": empty_us,
        "method": "cuda events, cold L2",
        "order": "shuffled",
        "timed_s": timed_s,
        "compile_wait_s": found.compiled_s,
        "check_s": found.checked_s,
        "errors": found.errors(of),
        "env": environment(),
    }


def say(text: str) -> None:
    """Report progress on standard error."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def wanted(text: str, default_s: float) -> Iterator[tuple[str, float]]:
    """Parse `gemm:60,decode_128` into (kernel, seconds); `all` names every kernel and a prefix its variants."""
    for part in text.split(","):
        name, _, seconds = part.partition(":")
        prefix = f"{name}_" if name in FIELDS and name != "gemm" else "\n"
        found = [known for known in kernels() if name in (known, "all") or known.startswith(prefix)]
        for known in found or [space(name).kernel]:
            yield known, float(seconds or default_s)


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point; see the module's description."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernel", default="all")
    parser.add_argument("--shapes", default="random:20261121:64", help="random:SEED:N")
    parser.add_argument("--anchors", type=int, default=400)
    parser.add_argument("--budget-s", type=float, default=40.0, help="seconds of timing for each kernel")
    parser.add_argument("--flush-mb", type=int, default=256)
    parser.add_argument("--out", type=Path, required=True, help="folder; one file a kernel")
    options = parser.parse_args(argv)
    _, seed, tests = options.shapes.split(":")
    options.seed, options.tests = int(seed), int(tests)
    options.out.mkdir(parents=True, exist_ok=True)
    missing = [(kernel, s) for kernel, s in wanted(options.kernel, options.budget_s)
             if not (options.out / f"{kernel}.npz").exists()]  # fmt: skip
    if not missing:
        return
    from pipewave.tune import build

    jobs = build.build_all([kernel for kernel, _ in missing], max(1, (os.cpu_count() or 2) - 1))
    for kernel, seconds in missing:
        try:
            record_kernel(kernel, jobs.pop(kernel), seconds, options).save(options.out / f"{kernel}.npz")
        except (RuntimeError, ValueError, TypeError, KeyError):  # one kernel's failure must not cost the others' time
            say(f"{kernel} failed:\n{traceback.format_exc()}")


if __name__ == "__main__":
    main()

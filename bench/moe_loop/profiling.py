"""Profile the layer's two products on this GPU and make their tables. Needs torch and triton."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Any

import torch

from bench.moe_loop import choices, shapes
from pipewave.tune import build, verify
from pipewave.tune.layer_operands import LayerOperands
from pipewave.tune.record import Job, environment, record, say
from pipewave.tune.recording import ANCHOR, TEST, Recording
from pipewave.tune.shapes import FIELDS, Shape, draw
from pipewave.tune.space import Space, space
from pipewave.tune.timing import ColdTimer

KERNELS = ("moe_up", "moe_down")
SEED, TESTS, ANCHORS = 20_261_121, 16, 200
OPS = 8e11  # of a layer: at more, the slow configurations would eat the budget


def anchors(kernel: str) -> list[Shape]:
    """Half drawn from the tuner's domain, half from the models of the loop's list with another seed."""
    fields, held_out = FIELDS["moe"], {tuple(choices.sizes(row).values()) for row in shapes.load()}
    drawn = [{name: int(row[name]) for name in fields} for row in shapes.draw(shapes.PROFILE_SEED, ANCHORS)]
    found = [*draw(kernel, SEED + 1, ANCHORS), *drawn]
    return [shape for shape in found if tuple(choices.sizes(shape).values()) not in held_out and _ops(shape) <= OPS]


def _ops(shape: Shape) -> int:
    return 6 * shape["m"] * shape["top_k"] * shape["hidden"] * shape["inter"]


def plan(kernel: str, usable: Sequence[int]) -> list[Job]:
    """Test shapes first, then anchors, shuffled so that a spent budget leaves a fair sample."""
    every = tuple(usable)
    rest = [Job(shape, ANCHOR, every) for shape in anchors(kernel)]
    random.Random(SEED).shuffle(rest)
    return [*(Job(shape, TEST, every) for shape in draw(kernel, SEED, TESTS)), *rest]


def load(kernel: str, futures: Sequence[Any]) -> tuple[Space, LayerOperands, list[Any], list[int]]:
    """Load a kernel's binaries and check every configuration; returns the built and the usable ones, too."""
    of = space(kernel)
    reports = [future.result() for future in futures]
    built = dict(zip(of.binaries(), reports, strict=True))
    loaded = {key: build.compile_binary(kernel, key) for key, report in built.items() if not report.error}
    launcher = LayerOperands(kernel, of.names, loaded)
    able = [i for i, config in enumerate(of.configs) if config[: of.compiled] in loaded]
    found = verify.errors(launcher, [of.configs[i] for i in able])
    right = [i for i, error in zip(able, found, strict=True) if error <= verify.TOLERANCE]
    broken = {key: report.error for key, report in built.items() if report.error}
    say(f"{kernel}: {len(of.configs)} configurations, {len(right)} right, worst {max(found):.2g}, broken {broken}")
    return of, launcher, [built[config[: of.compiled]] for config in of.configs], right


def profile(
    of: Space, launcher: LayerOperands, built: Sequence[Any], right: Sequence[int], budget_s: float
) -> Recording:
    """Time anchors within a budget."""
    timer, started = ColdTimer(), time.monotonic()
    empty_us = timer.empty_us(launcher.bind(build.compile_nothing(), (1, 1, 1), [0]))
    rows = record(of, plan(of.kernel, right), launcher, timer, budget_s)
    meta = {"schema": 1, "kernel": of.kernel, "names": of.names, "compiled": of.compiled, "fields": FIELDS["moe"],
            "seed": SEED, "method": "cuda events, cold L2", "order": "shuffled", "empty_us": empty_us,
            "flush_mb": timer.flush.numel() >> 20, "timed_s": time.monotonic() - started,
            "env": environment()}  # fmt: skip
    del timer
    torch.cuda.empty_cache()
    say(f"{of.kernel}: {len(rows.shapes)} shapes in {time.monotonic() - started:.0f} s")
    return rows.freeze(meta, list(of.configs), [(b.smem_bytes, b.registers, b.spill_bytes) for b in built])

"""One step kernel by kernel, in the order the engine launches them, gaps last; the rows add up to the step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipewave.models.kernels import Batch, Use
from pipewave.step.inside import inside, nodes_of
from pipewave.step.predict import Runner


@dataclass(frozen=True, slots=True)
class Part:
    """A kernel of a step, or a named gap (family `gap`): µs of one launch and of all, interval, share of the step."""

    stage: int
    name: str
    family: str
    count: int
    each_us: float
    total_us: float
    low_us: float
    high_us: float
    share: float
    bound: str
    basis: str
    kernels: int


def detail(runner: Runner, batch: Batch) -> list[Part]:
    """All kernels and gaps of a step. Raises what `predict` raises."""
    uses = [
        (stage, use)
        for stage in range(runner.deployment.parallel.pp)
        for use in runner.deployment.kernels(batch, stage)
    ]
    steps = runner.steps([batch])
    total = float(steps.total_us[0])
    gaps = [
        Part(0, name, "gap", 1, us, us, us, us, us / total, "launch", "", 0)
        for name, us in ((name, float(values[0])) for name, values in steps.gaps.items())
    ]
    return [*_kernels(runner, uses, total), *gaps]


def _kernels(runner: Runner, uses: Sequence[tuple[int, Use]], total: float) -> list[Part]:
    found = inside([use.call for _, use in uses], runner.gpu, runner.engine).found
    parts = []
    for (stage, use), one in zip(uses, found, strict=True):
        whole = one.latency_us * use.count
        parts.append(
            Part(
                stage,
                use.name,
                use.call.kernel,
                use.count,
                one.latency_us,
                whole,
                one.low_us * use.count,
                one.high_us * use.count,
                whole / total,
                one.bound,
                one.basis,
                nodes_of(use.call) * use.count,
            )
        )
    return parts

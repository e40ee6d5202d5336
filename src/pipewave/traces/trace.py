"""A profiler's record of one run as a value."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pipewave.kernels.launched import Dims, Kernel, Op, Step

__all__ = ["WAITS", "Dims", "Kernel", "Op", "Step", "Trace", "step_of"]

# vLLM names its steps: requests(tokens) that run prompts, then requests(tokens) that generate.
STEP = re.compile(r"execute\w*?_context_(\d+)\((\d+)\)_generation_(\d+)\((\d+)\)")
# Calls of CUDA that return once the GPU has come so far; Nsight adds a version to their names.
WAITS = re.compile(
    r"^cu(da)?(Stream|Device|Ctx|Event)Synchronize(_ptsz)?(_v\d+)?$|^cudaMemcpy(2D)?(_v\d+)?$|^cuMemcpy[HD]to[HD](_v\d+)?$"
)


@dataclass(frozen=True, slots=True)
class Trace:
    """All GPU work of one file. `protocol`: the measurement protocol its durations come closest to.

    `waits`: (start, end) of the calls in which the host waited for the GPU, µs, in time order. `clocked`: kernels begin
    when the file says so (a table of counters has no clock).
    """

    source: str
    gpu: str | None
    kernels: tuple[Kernel, ...]
    steps: tuple[Step, ...] = ()
    protocol: str = "serving"
    waits: tuple[tuple[float, float], ...] = ()
    clocked: bool = True

    @property
    def gpu_us(self) -> float:
        """Sum of all durations."""
        return sum(kernel.duration_us for kernel in self.kernels)


def step_of(name: str, start_us: float) -> Step | None:
    """The engine step that an annotation names, None where it names none."""
    match = STEP.search(name)
    return Step(start_us, *(int(part[:12]) for part in match.groups())) if match else None

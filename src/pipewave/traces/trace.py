"""A profiler's record of one run as a value."""

from __future__ import annotations

from dataclasses import dataclass

from pipewave.kernels.launched import Dims, Kernel, Op, Step

__all__ = ["Dims", "Kernel", "Op", "Step", "Trace"]


@dataclass(frozen=True, slots=True)
class Trace:
    """All GPU work of one file. `protocol`: the measurement protocol its durations come closest to."""

    source: str
    gpu: str | None
    kernels: tuple[Kernel, ...]
    steps: tuple[Step, ...] = ()
    protocol: str = "serving"

    @property
    def gpu_us(self) -> float:
        """Sum of all durations."""
        return sum(kernel.duration_us for kernel in self.kernels)

"""A profiler's record as values: kernels as the GPU ran them, the operators above them, the engine's steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Dims = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Op:
    """One operator call on the host. `dims`, `types`, `values`: one entry an argument, empty where not recorded.

    Tensors have dims and a type, scalars a value (as text), tensor lists neither.
    """

    id: int
    name: str
    dims: tuple[Dims, ...] = ()
    types: tuple[str, ...] = ()
    values: tuple[str, ...] = ()

    def shape(self, index: int) -> Dims:
        """Sizes of a tensor argument, empty where it is none."""
        return self.dims[index] if index < len(self.dims) else ()

    def value(self, index: int) -> str:
        """Text of a scalar argument, empty where it is none."""
        return self.values[index] if index < len(self.values) else ""


@dataclass(frozen=True, slots=True)
class Kernel:
    """One piece of GPU work. `ops`: the operators it was launched under, outermost first. Times in µs.

    `args`: what else the event says (bytes of a copy, sizes of a collective). `step`: index into `Trace.steps`, or -1.
    """

    name: str
    start_us: float
    duration_us: float
    grid: Dims = ()
    block: Dims = ()
    stream: int = 0
    ops: tuple[Op, ...] = ()
    step: int = -1
    args: tuple[tuple[str, Any], ...] = ()

    def arg(self, name: str) -> Any:
        """A field of the event, or None."""
        return next((value for key, value in self.args if key == name), None)


@dataclass(frozen=True, slots=True)
class Step:
    """One engine iteration as the trace names it: requests and tokens of its prompts and of its decodes."""

    start_us: float
    prompts: int
    prompt_tokens: int
    decodes: int
    decode_tokens: int

    @property
    def requests(self) -> int:
        """All requests of the step."""
        return self.prompts + self.decodes

    @property
    def tokens(self) -> int:
        """All new tokens of the step, before any padding."""
        return self.prompt_tokens + self.decode_tokens


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

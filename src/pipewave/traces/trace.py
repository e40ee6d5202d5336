"""A profiler's trace as a value, and which ranges were open on a host thread at each launch."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from pipewave.errors import BadFile
from pipewave.kernels.profiler import Dims, Kernel, Op, Step

__all__ = ["WAITS", "At", "Dims", "Kernel", "Op", "Span", "Step", "Trace", "bad", "named", "open_at", "step_of"]

# vLLM names its steps: requests(tokens) that run prompts, then requests(tokens) that generate.
STEP = re.compile(r"execute\w*?_context_(\d+)\((\d+)\)_generation_(\d+)\((\d+)\)")
# Calls of CUDA that return once the GPU has come so far; Nsight adds a version to their names.
WAITS = re.compile(
    r"^cu(da)?(Stream|Device|Ctx|Event)Synchronize(_ptsz)?(_v\d+)?$|^cudaMemcpy(2D)?(_v\d+)?$|^cuMemcpy[HD]to[HD](_v\d+)?$"
)

INPUT = re.compile(r"data_?loader|prefetcher", re.IGNORECASE)  # PyTorch's range: enumerate(DataLoader)#_...__next__


@dataclass(frozen=True, slots=True)
class Trace:
    """All GPU work of one file. `protocol`: the measurement protocol its durations come closest to.

    `waits`: (start, end) of the calls in which the host waited for the GPU, µs, in time order; `inputs`: of those in
    which it waited for a data loader. `clocked`: kernels begin when the file says so (counters have no clock).
    """

    source: str
    gpu: str | None
    kernels: tuple[Kernel, ...]
    steps: tuple[Step, ...] = ()
    protocol: str = "serving"
    waits: tuple[tuple[float, float], ...] = ()
    inputs: tuple[tuple[float, float], ...] = ()
    clocked: bool = True
    notes: tuple[str, ...] = ()  # what the file may lack

    @property
    def gpu_us(self) -> float:
        """Sum of all durations."""
        return sum(kernel.duration_us for kernel in self.kernels)

    def step(self, number: int) -> Step | None:
        """The step of a kernel by `Kernel.step`."""
        return self.steps[number] if number >= 0 else None


def dims_of(values: Any) -> Dims:
    """Sizes as a record lists them; none where it lists anything else."""
    if not isinstance(values, (list, tuple)):
        return ()
    whole = all(isinstance(v, int) and not isinstance(v, bool) and 0 <= v < 1 << 50 for v in values)
    return tuple(values) if whole else ()


def bad(source: str, message: str) -> BadFile:
    """What is wrong with a file."""
    return BadFile(f"{source}: {message}", field="file")


def step_of(name: str, start_us: float) -> Step | None:
    """The engine step that an annotation names, None where it names none."""
    match = STEP.search(name)
    return Step(start_us, *(int(part[:12]) for part in match.groups())) if match else None


class Span(NamedTuple):
    """A range of a thread, µs, and what it stands for."""

    start_us: float
    end_us: float
    thread: Any
    what: Any


def named(
    spans: Iterable[Span], matches: Callable[[str], object], text: Callable[[Any], str] = str
) -> tuple[tuple[float, float], ...]:
    """(start, end) of the ranges of such names, in time order."""
    return tuple(sorted((span.start_us, span.end_us) for span in spans if matches(text(span.what))))


class At(NamedTuple):
    """A moment on a thread, µs, under the key by which it is asked for."""

    start_us: float
    thread: Any
    key: Any


def open_at(spans: Iterable[Span], moments: Iterable[At]) -> dict[Any, tuple[Any, ...]]:
    """What is open on a moment's own thread, outermost first, by the moment's key. One sweep a thread."""
    threads: dict[Any, list[Span | At]] = defaultdict(list)
    for moment in moments:
        threads[moment.thread].append(moment)
    for span in spans:
        if span.thread in threads:
            threads[span.thread].append(span)
    found: dict[Any, tuple[Any, ...]] = {}
    for both in threads.values():
        both.sort(key=lambda one: (one.start_us, 0, -one.end_us) if isinstance(one, Span) else (one.start_us, 1, 0.0))
        stack: list[Span] = []
        for one in both:
            stack = [span for span in stack if span.end_us >= one.start_us]
            if isinstance(one, Span):
                stack.append(one)
            else:
                found[one.key] = tuple(span.what for span in stack)
    return found

"""Which GPUs run the same kernels."""

from __future__ import annotations

from collections.abc import Iterable

from pipewave.gpus.architectures import generation
from pipewave.gpus.registry import find
from pipewave.gpus.spec import GPU


def of_generation(names: Iterable[str], capability: int) -> frozenset[str]:
    """Of GPUs by name, those that run the same kernels as parts of a compute capability."""
    wanted = generation(capability)
    return frozenset(name for name in names if generation(find(name).compute_capability) == wanted)


def of_one_capability(one: GPU, other: GPU) -> bool:
    """Whether both run the very same code."""
    return one.compute_capability == other.compute_capability

"""How kernels start and tasks share a GPU: equal ones fall onto places in whole waves, and times of pipes overlap.

A place is an SM, or a slot of one where several blocks are resident. Blocks start in order, each where a place is free
(the hardware's scheduler); the tests hold both forms to a simulation of that.

The p-norm of times lies between the longest (perfect overlap) and the sum (none). Powers that the families use: 2
between a product's arithmetic and its memory, 4 between its tiles and its power, 3 where a kernel streams, 20 where
clocks give way to the power limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any

from pipewave.gpus import GPU
from pipewave.physics.arith import ARRAY, Arith


@dataclass(frozen=True, slots=True)
class Launch:
    """Seconds whatever the clock, and SM cycles, of one kernel's start and retirement."""

    fixed_s: float
    cycles: float
    source: str


# A kernel in a stream of kernels costs a fixed time and a number of SM cycles. Kinds differ by how soon their blocks
# have work: products are waited for least, rows of norms need their parameters first.
LAUNCHES: Mapping[str, Launch] = {
    "stream": Launch(1.2e-6, 2500.0, "empty and small kernels of the public rows, all GPUs"),
    "product": Launch(0.95e-6, 1250.0, "robust fit of GEMM rows of five architectures (python -m studies.gemm_base)"),
    "grouped": Launch(1.0e-6, 1500.0, "robust fit of MoE rows of Ampere, Ada and Hopper"),
    "copy": Launch(0.8e-6, 1500.0, "static fp8 quantisation of six GPUs, fused norms of two"),
}


def launch_s(gpu: GPU, kind: str = "stream") -> float:
    """Seconds of start-up and retirement of one kernel of a kind."""
    row = LAUNCHES[kind]
    return row.fixed_s + row.cycles / (gpu.sustained_clock_mhz * 1e6)


def waves(per_place: Any, xp: Arith = ARRAY) -> Any:
    """Rounds that so many tasks for each place take, in floats or arrays; there is at least one task."""
    return xp.ceil(per_place)


def wave_efficiency(per_place: Any, xp: Arith = ARRAY) -> Any:
    """Share of places in use over all waves, in (0, 1]."""
    return per_place / xp.ceil(per_place)


def overlapped(power: int, *seconds: Any, xp: Arith = ARRAY) -> Any:
    """p-norm of times, for floats or arrays; by squares and roots where it can: `**` costs ten times more."""
    if power == 2:
        return xp.sqrt(reduce(add, [each * each for each in seconds]))
    if power == 3:
        return reduce(add, [each * each * each for each in seconds]) ** (1.0 / 3.0)
    if power == 4:
        squares = [each * each for each in seconds]
        return xp.sqrt(xp.sqrt(reduce(add, [each * each for each in squares])))
    longest, *rest = seconds
    for each in rest:
        longest, shorter = xp.maximum(longest, each), xp.minimum(longest, each)
        longest = longest * (1.0 + (shorter / xp.maximum(longest, 1e-30)) ** power) ** (1.0 / power)
    return longest

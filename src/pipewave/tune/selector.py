"""What a way of choosing configurations answers, and how long it takes to choose."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipewave.tune.mapping import KIND_FIELDS
from pipewave.tune.measured import Measured
from pipewave.tune.shapes import family

Ints = NDArray[np.int64]
PASSES = 7


@dataclass(frozen=True, slots=True)
class Selector:
    """`chosen` [s] configurations; `decision_us` on a shape not asked before; `extra` figures of its own."""

    chosen: Ints
    decision_us: float
    extra: dict[str, float] = field(default_factory=dict)


def median_us(decide: Callable[[Any], Any], asked: Sequence[Any], forget: Callable[[], None] = lambda: None) -> float:
    """Median over `asked` of the µs of one decision; of a few passes each counts its best, since others interfere."""
    best = np.full(len(asked), np.inf)
    for _ in range(PASSES):
        forget()
        for i, one in enumerate(asked):
            start = time.perf_counter_ns()
            decide(one)
            best[i] = min(best[i], time.perf_counter_ns() - start)
    return float(np.median(best)) / 1e3


def asked(test: Measured) -> list[dict[str, Any]]:
    """Return test shapes as the keyword arguments of `select`."""
    names = KIND_FIELDS[family(test.kernel)]
    rows = zip(*(test.shape[name].tolist() for name in names), strict=True)
    return [dict(zip(names, row, strict=True)) for row in rows]

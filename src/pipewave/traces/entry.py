"""Rows of a report: calls with their predictions, and kernels without one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipewave.traces.trace import Dims

QUIET = ("dtype", "op", "impl", "causal", "stack")


def shape_text(call: Mapping[str, Any]) -> str:
    """`m=4096 n=4096 k=128`; long lists of lengths as `first*count`."""
    return " ".join(
        f"{name}={_brief(value)}" for name, value in call.items() if name not in QUIET and value is not False
    )


def _brief(value: Any) -> str:
    if not isinstance(value, (list, tuple)) or not value:
        return str(value)
    if len(set(value)) == 1:
        return f"{value[0]}*{len(value)}" if len(value) > 1 else str(value[0])
    return f"{min(value)}..{max(value)} ({len(value)})"


@dataclass(frozen=True, slots=True)
class Entry:
    """`count` equal calls. Times in µs are of one call (measured: their mean); `total_*` of all of them.

    recoverable = measured − ceiling, never negative. `shaped`: the shape was read, not assumed. `note`: what was
    assumed, or what else the times hold. `counted`: it rests on no assumption and no stand-in, so that its recoverable
    time counts.
    """

    family: str
    name: str
    count: int
    measured_us: float
    latency_us: float
    low_us: float
    high_us: float
    floor_us: float
    ceiling_us: float
    recoverable_us: float
    total_measured_us: float
    total_recoverable_us: float
    bound: str
    basis: str
    shaped: bool
    note: str
    call: dict[str, Any]
    kernels: tuple[str, ...]
    tile: Dims | None
    grid: Dims
    counted: bool = True

    @property
    def error(self) -> float:
        """(predicted − measured) / measured."""
        return self.latency_us / self.measured_us - 1.0 if self.measured_us else 0.0


@dataclass(frozen=True, slots=True)
class UnpredictedKernel:
    """Kernels without a prediction: `family` is None where even that is unknown. `shape`: sizes of the tensors that the
    operator was given, else the bytes of a copy, else the grid.
    """

    family: str | None
    name: str
    shape: str
    count: int
    total_measured_us: float

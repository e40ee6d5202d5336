"""Rows of a report: calls with their predictions, kernels without one, and times summed by operator and layer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipewave.traces.kernel_names import short
from pipewave.traces.trace import Dims, Step

QUIET = ("dtype", "op", "impl", "causal", "stack")


def shape_text(call: Mapping[str, Any]) -> str:
    """`m=4096 n=4096 k=128`; long lists of lengths as `first*count`."""

    def brief(value: Any) -> str:
        if not isinstance(value, (list, tuple)) or not value:
            return str(value)
        if len(set(value)) == 1:
            return f"{value[0]}*{len(value)}" if len(value) > 1 else str(value[0])
        return f"{min(value)}..{max(value)} ({len(value)})"

    said = {name: value for name, value in call.items() if name not in QUIET and value is not False}
    return " ".join(f"{name}={brief(value)}" for name, value in said.items())


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


# Every call as it ran, and sums: leaves of a tree of time (step, layer, operator, kernel), operators, layers.

NO_LAYER = "outside of layers"
NO_STEP = "steps without a name"


@dataclass(frozen=True, slots=True)
class TracedCall:
    """One call as it ran: µs, predicted µs (None without a prediction) and recoverable µs where those count."""

    step: Step | None
    layer: int | None
    operator: str
    kernel: str
    measured_us: float
    family: str | None
    predicted_us: float | None = None
    recoverable_us: float = 0.0
    counted: bool = True


@dataclass(slots=True)
class Sum:
    """Calls of an operator, a layer or another kind, µs; one without a prediction leaves the sum without one."""

    name: str = ""
    calls: float = 0
    measured_us: float = 0.0
    predicted_us: float | None = 0.0
    recoverable_us: float = 0.0

    def add(self, calls: float, measured_us: float, predicted_us: float | None, recoverable_us: float = 0.0) -> None:
        """Add some calls."""
        self.calls += calls
        self.measured_us += measured_us
        self.recoverable_us += recoverable_us
        known = self.predicted_us is not None and predicted_us is not None
        self.predicted_us = (self.predicted_us or 0.0) + (predicted_us or 0.0) if known else None


def sums(calls: Iterable[TracedCall], key: Callable[[TracedCall], Any]) -> dict[Any, Sum]:
    """Sums by key, in the order in which the keys first ran; a key that is a text is the name."""
    found: dict[Any, Sum] = {}
    for one in calls:
        place = key(one)
        total = found.setdefault(place, Sum(place if isinstance(place, str) else ""))
        total.add(1, one.measured_us, one.predicted_us, one.recoverable_us)
    return found


def leaves(calls: Sequence[TracedCall]) -> list[dict[str, Any]]:
    """The leaves of the tree as JSON has them, in the order in which they first ran. `path`: kind of step, layer where
    any is known, operator, kernel; `counted`: they rest on no assumption; `family` is None where nothing predicts.
    """
    layered = any(one.layer is not None for one in calls)

    def place(one: TracedCall) -> tuple[tuple[str, ...], str | None, bool]:
        layer = (_layer(one),) if layered else ()
        return (said(one.step), *layer, one.operator, short(one.kernel)), one.family, one.counted

    return [{"path": path, "family": family, "count": total.calls, "measured_us": total.measured_us,
             "predicted_us": total.predicted_us, "counted": counted}
            for (path, family, counted), total in sums(calls, place).items()]  # fmt: skip


def by_operator(calls: Iterable[TracedCall]) -> tuple[Sum, ...]:
    """Longest first."""
    return tuple(sorted(sums(calls, lambda one: one.operator).values(), key=lambda row: -row.measured_us))


def by_layer(calls: Sequence[TracedCall]) -> tuple[Sum, ...]:
    """In order, what belongs to no layer last; none where no layer is known."""
    if all(one.layer is None for one in calls):
        return ()
    ordered = sorted(calls, key=lambda one: (one.layer is None, one.layer or 0))
    return tuple(sums(ordered, _layer).values())


def _layer(one: TracedCall) -> str:
    return NO_LAYER if one.layer is None else f"layer {one.layer}"


def said(step: Step | None) -> str:
    """A step in words."""
    if step is None or not step.requests:
        return NO_STEP
    prompts = f"{step.prompts} prompt{'s' * (step.prompts > 1)} of {step.prompt_tokens} tokens" if step.prompts else ""
    return " and ".join(filter(None, (prompts, f"decode of {step.decodes}" if step.decodes else "")))

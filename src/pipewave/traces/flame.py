"""A trace as leaves of a tree of time (step, layer, operator, kernel), and its sums by operator and by layer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pipewave.traces.kernel_names import short
from pipewave.traces.trace import Step

NO_LAYER = "outside of layers"
NO_STEP = "steps without a name"


@dataclass(frozen=True, slots=True)
class Ran:
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
class Total:
    """Sums over calls; one without a prediction leaves the sum without one."""

    count: float = 0
    measured_us: float = 0.0
    predicted_us: float | None = 0.0
    recoverable_us: float = 0.0

    def add(self, count: float, measured_us: float, predicted_us: float | None, recoverable_us: float = 0.0) -> None:
        """Add some calls."""
        self.count += count
        self.measured_us += measured_us
        self.recoverable_us += recoverable_us
        known = self.predicted_us is not None and predicted_us is not None
        self.predicted_us = (self.predicted_us or 0.0) + (predicted_us or 0.0) if known else None


@dataclass(frozen=True, slots=True)
class Leaf:
    """All calls of one place in the tree. `path`: kind of step, layer where any is known, operator, kernel; `counted`:
    they rest on no assumption; `family` is None for kernels that nothing predicts.
    """

    path: tuple[str, ...]
    family: str | None
    count: int
    measured_us: float
    predicted_us: float | None
    counted: bool


@dataclass(frozen=True, slots=True)
class Sum:
    """All calls of an operator or a layer, µs."""

    name: str
    calls: int
    measured_us: float
    predicted_us: float | None
    recoverable_us: float


def leaves(calls: Sequence[Ran]) -> tuple[Leaf, ...]:
    """The leaves of the tree, in the order in which they first ran."""
    layered = any(one.layer is not None for one in calls)
    totals: dict[tuple[tuple[str, ...], str | None, bool], Total] = {}
    for one in calls:
        layer = (_layer(one.layer),) if layered else ()
        path = (said(one.step), *layer, one.operator, short(one.kernel))
        total = totals.setdefault((path, one.family, one.counted), Total())
        total.add(1, one.measured_us, one.predicted_us)
    return tuple(
        Leaf(path, family, int(total.count), total.measured_us, total.predicted_us, counted)
        for (path, family, counted), total in totals.items()
    )


def by_operator(calls: Iterable[Ran]) -> tuple[Sum, ...]:
    """Longest first."""
    return _sums((one.operator, one) for one in calls)


def by_layer(calls: Sequence[Ran]) -> tuple[Sum, ...]:
    """In order, what belongs to no layer last; none where no layer is known."""
    if all(one.layer is None for one in calls):
        return ()
    ordered = sorted(calls, key=lambda one: (one.layer is None, one.layer or 0))
    sums = {row.name: row for row in _sums((_layer(one.layer), one) for one in ordered)}
    return tuple(sums[name] for name in dict.fromkeys(_layer(one.layer) for one in ordered))


def _sums(named: Iterable[tuple[str, Ran]]) -> tuple[Sum, ...]:
    totals: dict[str, Total] = {}
    for name, one in named:
        totals.setdefault(name, Total()).add(1, one.measured_us, one.predicted_us, one.recoverable_us)
    rows = (
        Sum(name, int(one.count), one.measured_us, one.predicted_us, one.recoverable_us) for name, one in totals.items()
    )
    return tuple(sorted(rows, key=lambda row: -row.measured_us))


def _layer(number: int | None) -> str:
    return NO_LAYER if number is None else f"layer {number}"


def said(step: Step | None) -> str:
    """A step in words."""
    if step is None or not step.requests:
        return NO_STEP
    prompts = f"{step.prompts} prompt{'s' * (step.prompts > 1)} of {step.prompt_tokens} tokens" if step.prompts else ""
    return " and ".join(filter(None, (prompts, f"decode of {step.decodes}" if step.decodes else "")))

"""A trace as a tree of time (GPU, kind of step, layer, operator, kernel), and its sums by operator and by layer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pipewave.traces.names import short
from pipewave.traces.trace import Step

NO_LAYER = "outside of layers"
ROOT, NO_STEP = "GPU time", "steps without a name"


@dataclass(frozen=True, slots=True)
class Ran:
    """One call as it ran: µs, predicted µs (None without a prediction) and recoverable µs where those count."""

    step: Step | None
    layer: int | None
    operator: str
    kernel: str
    measured_us: float
    predicted_us: float | None = None
    recoverable_us: float = 0.0


@dataclass(slots=True)
class Node:
    """A name with its time, and what it is made of. `predicted_us`: None where a part has no prediction."""

    name: str
    us: float = 0.0
    count: int = 0
    predicted_us: float | None = 0.0
    recoverable_us: float = 0.0
    children: dict[str, Node] = field(default_factory=dict)

    def add(self, one: Ran, path: Sequence[str]) -> None:
        """Add a call here and along a path below."""
        self.us += one.measured_us
        self.count += 1
        self.recoverable_us += one.recoverable_us
        known = self.predicted_us is not None and one.predicted_us is not None
        self.predicted_us = (self.predicted_us or 0.0) + (one.predicted_us or 0.0) if known else None
        if path:
            self.children.setdefault(path[0], Node(path[0])).add(one, path[1:])

    def to_dict(self) -> dict[str, Any]:
        """As JSON, widest children first."""
        own = {"name": self.name, "us": self.us, "count": self.count, "predicted_us": self.predicted_us}
        below = sorted(self.children.values(), key=lambda node: -node.us)
        return own | {"children": [node.to_dict() for node in below]}


@dataclass(frozen=True, slots=True)
class Sum:
    """All calls of an operator or a layer, µs."""

    name: str
    calls: int
    measured_us: float
    predicted_us: float | None
    recoverable_us: float


def tree(calls: Iterable[Ran]) -> Node:
    """All calls by kind of step, layer where known, operator and kernel."""
    root = Node(ROOT)
    for one in calls:
        layer = () if one.layer is None else (_layer(one.layer),)
        root.add(one, (said(one.step), *layer, one.operator, short(one.kernel)))
    return root


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
    nodes: dict[str, Node] = {}
    for name, one in named:
        nodes.setdefault(name, Node(name)).add(one, ())
    rows = (Sum(node.name, node.count, node.us, node.predicted_us, node.recoverable_us) for node in nodes.values())
    return tuple(sorted(rows, key=lambda row: -row.measured_us))


def _layer(number: int | None) -> str:
    return NO_LAYER if number is None else f"layer {number}"


def said(step: Step | None) -> str:
    """A step in words."""
    if step is None or not step.requests:
        return NO_STEP
    prompts = f"{step.prompts} prompt{'s' * (step.prompts > 1)} of {step.prompt_tokens} tokens" if step.prompts else ""
    return " and ".join(filter(None, (prompts, f"decode of {step.decodes}" if step.decodes else "")))

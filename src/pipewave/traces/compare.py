"""Two traces side by side: where the time went, call by call."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from pipewave.traces.entry import Entry, Sum, UnpredictedKernel
from pipewave.traces.report import Report


@dataclass(frozen=True, slots=True)
class Change:
    """GPU time (µs, all calls) of one kind of call in two traces; predictions are None where there was no shape."""

    family: str
    name: str
    count_a: float
    count_b: float
    a_us: float
    b_us: float
    predicted_a_us: float | None
    predicted_b_us: float | None

    @property
    def change_us(self) -> float:
        """What B takes longer than A."""
        return self.b_us - self.a_us


@dataclass(frozen=True, slots=True)
class Comparison:
    """Changes ranked by their size; times and counts are of one step, of the whole trace where it names no steps."""

    a: Report
    b: Report
    changes: tuple[Change, ...]
    gpu_us: tuple[float, float]  # of a step of A and of B
    wall_us: tuple[float, float] | None  # the same by the wall clock; None where either has none

    @property
    def slower(self) -> float:
        """By what share a step of B takes longer than one of A, by GPU time or by the wall clock, whichever is more."""
        return max(b / a - 1.0 if a else 0.0 for a, b in filter(None, (self.gpu_us, self.wall_us)))

    def to_dict(self) -> dict[str, Any]:
        """JSON of `pipewave trace A B`."""
        sides: dict[str, Any] = {side: report.to_dict() for side, report in (("a", self.a), ("b", self.b))}
        by_step = max(self.a.steps, self.b.steps) > 1  # rather than of the whole trace
        times = {"by_step": by_step, "gpu_us": self.gpu_us, "wall_us": self.wall_us, "slower": self.slower}
        changes = [asdict(change) | {"change_us": change.change_us} for change in self.changes]
        return {"schema_version": 1, **sides, **times, "changes": changes}


def compare(a: Report, b: Report) -> Comparison:
    """Join two reports on family and name."""
    left, right = _sums(a), _sums(b)
    changes = []
    for key in dict.fromkeys([*left, *right]):
        one, other = left.get(key, Sum()), right.get(key, Sum())
        counts = [int(n) if n == int(n) else n for n in (one.calls, other.calls)]
        measured, predicted = (one.measured_us, other.measured_us), (one.predicted_us, other.predicted_us)
        changes.append(Change(*key, counts[0], counts[1], *measured, *predicted))
    changes.sort(key=lambda change: -abs(change.change_us))
    clocks = (a.idle.span_us / a.steps, b.idle.span_us / b.steps) if a.idle and b.idle else None
    return Comparison(a, b, tuple(changes), (a.gpu_us / a.steps, b.gpu_us / b.steps), clocks)


def _sums(report: Report) -> dict[tuple[str, str], Sum]:
    """Totals of a step by family and name."""
    found: dict[tuple[str, str], Sum] = {}
    share = 1.0 / report.steps
    rows: tuple[Entry | UnpredictedKernel, ...] = (*report.entries, *report.unshaped, *report.unknown)
    for row in rows:
        predicted = share * (row.latency_us * row.count) if isinstance(row, Entry) else None
        total = found.setdefault((row.family or "unknown", row.name), Sum())
        total.add(share * row.count, share * row.total_measured_us, predicted)
    return found

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

    @property
    def by_step(self) -> bool:
        """Whether times are of one step rather than of the whole trace."""
        return max(self.a.steps, self.b.steps) > 1

    @property
    def gpu_us(self) -> tuple[float, float]:
        """GPU time of a step of A and of B."""
        return self.a.gpu_us / self.a.steps, self.b.gpu_us / self.b.steps

    @property
    def wall_us(self) -> tuple[float, float] | None:
        """Wall clock of a step of A and of B; None where either has no clock."""
        if self.a.idle is None or self.b.idle is None:
            return None
        return self.a.idle.span_us / self.a.steps, self.b.idle.span_us / self.b.steps

    @property
    def slower(self) -> float:
        """By what share a step of B takes longer than one of A, by GPU time or by the wall clock, whichever is more."""
        return max(b / a - 1.0 if a else 0.0 for a, b in filter(None, (self.gpu_us, self.wall_us)))

    def to_dict(self) -> dict[str, Any]:
        """JSON of `pipewave trace A B`."""
        sides: dict[str, Any] = {side: report.to_dict() for side, report in (("a", self.a), ("b", self.b))}
        times = {"by_step": self.by_step, "gpu_us": self.gpu_us, "wall_us": self.wall_us, "slower": self.slower}
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
    return Comparison(a, b, tuple(sorted(changes, key=lambda change: -abs(change.change_us))))


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

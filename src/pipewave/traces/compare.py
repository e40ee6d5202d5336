"""Two traces side by side: where the time went, call by call."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from pipewave.traces.report import Entry, Report, UnpredictedKernel


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

    @property
    def predicted_us(self) -> float | None:
        """What B should take longer than A; None where either has no prediction."""
        missing = self.predicted_a_us is None or self.predicted_b_us is None
        return None if missing else (self.predicted_b_us or 0.0) - (self.predicted_a_us or 0.0)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Changes ranked by their size. Where the traces hold different numbers of steps, times and counts are of one."""

    a: Report
    b: Report
    changes: tuple[Change, ...]

    @property
    def by_step(self) -> bool:
        """Whether times are of one step rather than of the whole trace."""
        return self.a.steps != self.b.steps

    @property
    def gpu_us(self) -> tuple[float, float]:
        """GPU time of A and of B, of one step where `by_step`."""
        return _share(self.a, self.by_step) * self.a.gpu_us, _share(self.b, self.by_step) * self.b.gpu_us

    def to_dict(self) -> dict[str, Any]:
        """JSON of `pipewave trace A B`."""
        sides: dict[str, Any] = {side: report.to_dict() for side, report in (("a", self.a), ("b", self.b))}
        sides["by_step"] = self.by_step
        changes = [asdict(change) | {"change_us": change.change_us} for change in self.changes]
        return {"schema_version": 1, **sides, "changes": changes}


@dataclass(slots=True)
class _Sum:
    count: float = 0
    measured_us: float = 0.0
    predicted_us: float | None = 0.0

    def add(self, count: float, measured_us: float, predicted_us: float | None) -> None:
        self.count += count
        self.measured_us += measured_us
        known = self.predicted_us is not None and predicted_us is not None
        self.predicted_us = (self.predicted_us or 0.0) + (predicted_us or 0.0) if known else None


def compare(a: Report, b: Report) -> Comparison:
    """Join two reports on family and name."""
    by_step = a.steps != b.steps
    left, right = _sums(a, _share(a, by_step)), _sums(b, _share(b, by_step))
    changes = [_change(key, left.get(key, _Sum()), right.get(key, _Sum())) for key in dict.fromkeys([*left, *right])]
    return Comparison(a, b, tuple(sorted(changes, key=lambda change: -abs(change.change_us))))


def _share(report: Report, by_step: bool) -> float:
    """What part of a trace the comparison looks at."""
    return 1.0 / report.steps if by_step else 1.0


def _change(key: tuple[str, str], one: _Sum, other: _Sum) -> Change:
    counts = [int(n) if n == int(n) else n for n in (one.count, other.count)]
    return Change(*key, counts[0], counts[1], one.measured_us, other.measured_us, one.predicted_us, other.predicted_us)


def _sums(report: Report, share: float) -> dict[tuple[str, str], _Sum]:
    sums: dict[tuple[str, str], _Sum] = {}
    for key, (count, measured_us, predicted_us) in _rows(report):
        predicted = None if predicted_us is None else share * predicted_us
        sums.setdefault(key, _Sum()).add(share * count, share * measured_us, predicted)
    return sums


def _rows(report: Report) -> Iterable[tuple[tuple[str, str], tuple[int, float, float | None]]]:
    for entry in report.entries:
        yield _key(entry), (entry.count, entry.total_measured_us, entry.latency_us * entry.count)
    for left in (*report.unshaped, *report.unknown):
        yield _key(left), (left.count, left.total_measured_us, None)


def _key(row: Entry | UnpredictedKernel) -> tuple[str, str]:
    return row.family or "unknown", row.name

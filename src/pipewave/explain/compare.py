"""Two traces side by side: where the time went, call by call."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from pipewave.explain.report import Entry, Left, Report


@dataclass(frozen=True, slots=True)
class Change:
    """GPU time (µs, all calls) of one kind of call in two traces; predictions are None where there was no shape."""

    family: str
    name: str
    count_a: int
    count_b: int
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
    """Changes ranked by their size."""

    a: Report
    b: Report
    changes: tuple[Change, ...]

    def to_dict(self) -> dict[str, Any]:
        """JSON of `pipewave trace A B`."""
        sides = {side: report.to_dict() for side, report in (("a", self.a), ("b", self.b))}
        changes = [asdict(change) | {"change_us": change.change_us} for change in self.changes]
        return {"schema_version": 1, **sides, "changes": changes}


@dataclass(slots=True)
class _Sum:
    count: int = 0
    measured_us: float = 0.0
    predicted_us: float | None = 0.0

    def add(self, count: int, measured_us: float, predicted_us: float | None) -> None:
        self.count += count
        self.measured_us += measured_us
        known = self.predicted_us is not None and predicted_us is not None
        self.predicted_us = (self.predicted_us or 0.0) + (predicted_us or 0.0) if known else None


def compare(a: Report, b: Report) -> Comparison:
    """Join two reports on family and name."""
    left, right = _sums(a), _sums(b)
    changes = []
    for key in dict.fromkeys([*left, *right]):
        one, other = left.get(key, _Sum()), right.get(key, _Sum())
        changes.append(
            Change(
                *key,
                one.count,
                other.count,
                one.measured_us,
                other.measured_us,
                one.predicted_us,
                other.predicted_us,
            )
        )
    return Comparison(a, b, tuple(sorted(changes, key=lambda change: -abs(change.change_us))))


def _sums(report: Report) -> dict[tuple[str, str], _Sum]:
    sums: dict[tuple[str, str], _Sum] = {}
    for key, row in _rows(report):
        sums.setdefault(key, _Sum()).add(*row)
    return sums


def _rows(report: Report) -> Iterable[tuple[tuple[str, str], tuple[int, float, float | None]]]:
    for entry in report.entries:
        yield _key(entry), (entry.count, entry.total_measured_us, entry.latency_us * entry.count)
    for left in (*report.unshaped, *report.unknown):
        yield _key(left), (left.count, left.total_measured_us, None)


def _key(row: Entry | Left) -> tuple[str, str]:
    return row.family or "unknown", row.name

"""What `pipewave trace` prints: calls, sums by operator or layer, idle time, two traces side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pipewave.cli.streams import print_notes

if TYPE_CHECKING:
    from pipewave.traces import Report
    from pipewave.traces.compare import Comparison
    from pipewave.traces.idle import Idle
    from pipewave.traces.report import Entry, UnpredictedKernel

GAPS = 5


def print_report(report: Report, top: int, by: str = "call") -> None:
    """The whole answer, the wall clock first; `by`: call, operator or layer."""
    print("\n".join(report.headline))
    if by == "call":
        _calls(report, top)
    else:
        _sums(report, top, by)
    _unpredicted("shape unknown", report.unshaped, report.gpu_us)
    _unpredicted("not recognised", report.unknown, report.gpu_us)
    _totals(report)
    if report.idle:
        _idle(report.idle)
    _hints(report)


def _calls(report: Report, top: int) -> None:
    counted, assumed = ([one for one in report.entries if one.counted is sure] for sure in (True, False))
    title = f"{report.source} on {report.gpu} [{report.protocol}]: µs of one call; recoverable of all of them"
    _entries(counted, report, top, title)
    if assumed:
        _entries(assumed, report, top, "resting on an assumption or a stand-in, not counted as recoverable")


def _sums(report: Report, top: int, by: str) -> None:
    from pipewave.cli.render import table
    from pipewave.traces.flame import by_layer, by_operator

    found = by_operator(report.ran) if by == "operator" else by_layer(report.ran)
    rows = [
        {
            by: one.name,
            "calls": one.calls,
            "measured": one.measured_us,
            "predicted": one.predicted_us,
            "recoverable": one.recoverable_us,
            "share": f"{one.measured_us / (report.gpu_us or 1.0):5.1%}",
        }
        for one in found[: top or None]
    ]
    if rows:
        table(rows, title=f"{report.source} on {report.gpu} [{report.protocol}]: µs of all calls of a {by}")
    else:
        remedy = f"and no kernels match {report.model} in order" if report.model else "pass --model"
        print(f"no layers: neither modules nor ranges name any; {remedy}")


def _idle(idle: Idle) -> None:
    """Waits of the GPU by cause."""
    from pipewave.traces.idle import CAUSES

    share = idle.idle_us / (idle.span_us or 1.0)
    print(f"{'idle':16} {idle.idle_us / 1e3:,.3f} ms ({share:.1%} of {idle.span_us / 1e3:,.3f} ms from first to last)")
    for cause, us in idle.causes.items():
        if us > 0:
            print(f"{'  ' + cause:16} {us / 1e3:,.3f} ms: {CAUSES[cause]}")
    for gap in idle.gaps[:GAPS]:
        print(
            f"{'  longest':16} {gap.idle_us:,.1f} µs at {gap.start_us / 1e3:,.3f} ms, {gap.cause}, before {gap.before}"
        )


def _entries(entries: Sequence[Entry], report: Report, top: int, title: str) -> None:
    from pipewave.cli.render import ends, table

    shown = entries[: top or None]
    rows = [
        {
            "call": entry.name,
            "×": entry.count,
            "measured": entry.measured_us,
            "predicted": entry.latency_us,
            "90 % interval": ends(entry.low_us, entry.high_us),
            "ceiling": entry.ceiling_us,
            "floor": entry.floor_us,
            "bound": entry.bound,
            "recoverable": entry.total_recoverable_us,
            "share": f"{entry.total_measured_us / report.gpu_us:5.1%}",
        }
        for entry in shown
    ]
    table(rows, title=title, droppable=("90 % interval", "bound", "floor", "share"))
    if len(shown) < len(entries):
        print(f"{len(entries) - len(shown)} more calls; --top 0 shows all")


def _unpredicted(title: str, rows: Sequence[UnpredictedKernel], whole: float) -> None:
    if rows:
        listed = ", ".join(f"{row.name} ×{row.count} {row.total_measured_us:.4g} µs" for row in rows[:6])
        more = f", and {len(rows) - 6} more" if len(rows) > 6 else ""
        share = sum(row.total_measured_us for row in rows) / (whole or 1.0)
        print(f"{title} ({share:.1%}): {listed}{more}")


def _totals(report: Report) -> None:
    won = f"{report.recoverable_us / 1e3:,.3f} ms ({report.recoverable_us / (report.gpu_us or 1.0):.1%})"
    facts = {
        "GPU time": f"{report.gpu_us / 1e3:,.3f} ms",
        "recoverable": won if report.judged else "not known",
        "if assumed holds": f"{report.assumed_us / 1e3:,.3f} ms more" if report.assumed_us and report.judged else "",
        "recognised": f"{report.recognized_share:.1%} of GPU time",
        "with shapes": f"{report.shaped_share:.1%} of GPU time",
        "within 10 %": f"{report.close_share:.1%} of recognised time",
    }
    for name, value in facts.items():
        if value:
            print(f"{name:16} {value}")


def _hints(report: Report) -> None:
    if not report.judged:
        print("hint: inside CUDA graphs no shapes are recorded; they come from the model: pass --model")
    print_notes((*(entry.note for entry in report.entries if entry.note), *report.notes))


def print_comparison(found: Comparison, top: int) -> None:
    """Changes, largest first."""
    from pipewave.cli.render import table

    of = "a step" if found.by_step else "all"
    rows: list[dict[str, Any]] = [
        {
            "call": change.name,
            "family": change.family,
            "× A": change.count_a,
            "× B": change.count_b,
            "A each": change.a_us / (change.count_a or 1),
            "B each": change.b_us / (change.count_b or 1),
            f"A {of}": change.a_us,
            f"B {of}": change.b_us,
            "B − A": change.change_us,
            "predicted B − A": None if change.predicted_us is None else round(change.predicted_us, 3),
        }
        for change in found.changes[: top or None]
    ]
    title = f"µs of A {found.a.source} on {found.a.gpu} and B {found.b.source} on {found.b.gpu}"
    table(rows, title=title, droppable=("family", "× A", "× B", "predicted B − A"))
    (a, b), unit = found.gpu_us, " a step" if found.by_step else ""
    if found.a.idle and found.b.idle:
        one, other = ((report.idle.idle_us if report.idle else 0.0) / 1e3 for report in (found.a, found.b))
        print(f"idle: A {one:,.3f} ms, B {other:,.3f} ms")
    print(f"GPU time{unit}: A {a / 1e3:,.3f} ms, B {b / 1e3:,.3f} ms, B / A {b / a if a else 0.0:.3f}")

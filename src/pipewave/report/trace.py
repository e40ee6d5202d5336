"""The report of a trace: calls ranked by the time that could be won back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pipewave.report import svg
from pipewave.report.document import Block, Chart, Code, Document, Fact, Facts, Notes, Table, ms, number, percent
from pipewave.report.svg import Part
from pipewave.traces.shape_text import shape_text

NOTHING = (
    "No call could be predicted: no shape was recorded. Inside CUDA graphs they come from the model: pass --model."
)
ASSUMED = "Resting on an assumption or a stand-in, not counted"
BARS, ROWS, LEFT = 15, 60, 20


def document(answer: Mapping[str, Any]) -> Document:
    """Everything a trace says. Raises KeyError or TypeError where it is not one."""
    source = str(answer["source"]).rsplit("/", 1)[-1]
    subtitle = f"Measured, predicted and reachable time of every kernel call; protocol {answer['protocol']}."
    return Document(f"{source} on {answer['gpu']}", subtitle, tuple(_blocks(answer)))


def _blocks(answer: Mapping[str, Any]) -> Iterator[Block]:
    calls = answer["calls"]
    yield _facts(answer)
    counted = [call for call in calls if call.get("counted", True)]
    if counted:
        yield _chart(counted)
        yield _table("Calls", counted)
    if len(counted) < len(calls):
        yield _table(ASSUMED, [call for call in calls if not call.get("counted", True)])
    if not calls:
        yield Notes((NOTHING,))
    for field, title in (("unshaped", "Recognised, shape unknown"), ("unrecognized", "Not recognised")):
        if answer[field]:
            yield _left(title, answer[field])
    notes = tuple(dict.fromkeys(str(call["note"]) for call in calls if call["note"]))
    if notes:
        yield Notes(notes)
    if answer.get("command"):
        yield Code("The same numbers again", str(answer["command"]))


def _facts(answer: Mapping[str, Any]) -> Facts:
    whole = answer["gpu_us"] or 1.0
    return Facts((
        Fact("GPU time", ms(answer["gpu_us"] / 1e3), "sum of all kernels"),
        Fact("could be won back", ms(answer["recoverable_us"] / 1e3), percent(answer["recoverable_us"] / whole)),
        Fact("recognised", percent(answer["recognized_share"]), "of GPU time"),
        Fact("predicted within 10 %", percent(answer["close_share"]), "of recognised time"),
    ))  # fmt: skip


def _chart(calls: Sequence[Mapping[str, Any]]) -> Chart:
    rows = [(f"{call['name']} ×{call['count']}", _parts(call), _said(call)) for call in calls[:BARS]]
    drawing = svg.ranked(rows, "recoverable time by call")
    drawing += svg.legend([("what a good kernel needs", 0), ("could be won back", 5)])
    return Chart("Largest gains", drawing, "All calls of a kind together, ranked by what a good kernel would save.")


def _parts(call: Mapping[str, Any]) -> list[Part]:
    lost, whole = float(call["total_recoverable_us"]), float(call["total_measured_us"])
    return [Part("needed", whole - lost, 0), Part("recoverable", lost, 5)]


def _said(call: Mapping[str, Any]) -> str:
    lost, whole = float(call["total_recoverable_us"]), float(call["total_measured_us"])
    return f"{number(lost)} of {number(whole)} µs" if lost else f"{number(whole)} µs"


def _table(title: str, calls: Sequence[Mapping[str, Any]]) -> Table:
    columns = ("call", "shape", "×", "measured", "predicted", "90 %", "ceiling", "floor", "bound by", "recoverable")
    rows = tuple((call["name"], _shape(call["call"]), call["count"], float(call["measured_us"]),
                  float(call["latency_us"]), f"{number(float(call['low_us']))} – {number(float(call['high_us']))}",
                  float(call["ceiling_us"]), float(call["floor_us"]), call["bound"],
                  float(call["total_recoverable_us"])) for call in calls[:ROWS])  # fmt: skip
    more = f"{number(len(calls) - ROWS)} smaller ones are left out." if len(calls) > ROWS else ""
    return Table(title, columns, rows, f"µs of one call; recoverable of all of them. {more}".strip())


def _shape(call: Mapping[str, Any]) -> str:
    return shape_text({name: value for name, value in call.items() if value != 0})


def _left(title: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    body = tuple((row["name"], row["family"] or "", row["count"], float(row["total_measured_us"]))
                 for row in rows[:LEFT])  # fmt: skip
    more = f"{number(len(rows) - LEFT)} more." if len(rows) > LEFT else ""
    return Table(title, ("kernel", "family", "×", "µs, all"), body, more)

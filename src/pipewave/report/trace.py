"""The report of a trace: calls ranked by the time that could be won back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pipewave.report import svg
from pipewave.report.document import Block, Chart, Code, Document, Fact, Facts, Notes, Table, ms, number, percent
from pipewave.report.svg import Part
from pipewave.traces.report import shape_text

NOTHING = "No call could be predicted: no shape was recorded. Inside CUDA graphs they come from the model: name it."
ASSUMED = "Resting on an assumption or a stand-in, not counted"
BARS, ROWS, LEFT = 15, 60, 20


def document(answer: Mapping[str, Any]) -> Document:
    """Everything a trace says. Raises KeyError or TypeError where it is not one."""
    source = str(answer["source"]).rsplit("/", 1)[-1]
    subtitle = f"Measured, predicted and reachable time of every kernel call; protocol {answer['protocol']}."
    return Document(f"{source} on {answer['gpu']}", subtitle, tuple(_blocks(answer)))


def _blocks(answer: Mapping[str, Any]) -> Iterator[Block]:
    calls = answer["calls"]
    if answer.get("headline"):
        yield Notes(tuple(map(str, answer["headline"])))
    yield _facts(answer)
    counted = [call for call in calls if call.get("counted", True)]
    if counted:
        yield _chart(counted)
        yield _table("Calls", counted)
    if len(counted) < len(calls):
        yield _table(ASSUMED, [call for call in calls if not call.get("counted", True)])
    if not calls:
        yield Notes((NOTHING,))
    if answer.get("idle"):
        yield _idle(answer["idle"])
    for field, title in (("by_operator", "By operator"), ("by_layer", "By layer")):
        if answer.get(field):
            yield _sums(title, answer[field])
    for field, title in (("unshaped", "Recognised, shape unknown"), ("unrecognized", "Not recognised")):
        if answer[field]:
            yield _left(title, answer[field])
    notes = tuple(
        dict.fromkeys(map(str, (*(call["note"] for call in calls if call["note"]), *answer.get("notes", ()))))
    )
    if notes:
        yield Notes(notes)
    if answer.get("command"):
        yield Code("The same numbers again", str(answer["command"]))


def _facts(answer: Mapping[str, Any]) -> Facts:
    whole = answer["gpu_us"] or 1.0
    return Facts((
        Fact("GPU time", ms(answer["gpu_us"] / 1e3), "sum of all kernels"),
        _won(answer, whole) if answer.get("judged", True) else Fact("could be won back", "not known", "no shapes"),
        Fact("recognised", percent(answer["recognized_share"]), "of GPU time"),
        Fact("predicted within 10 %", percent(answer["close_share"]), "of recognised time"),
    ))  # fmt: skip


def _won(answer: Mapping[str, Any], whole: float) -> Fact:
    return Fact("could be won back", ms(answer["recoverable_us"] / 1e3), percent(answer["recoverable_us"] / whole))


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


def _idle(idle: Mapping[str, Any]) -> Table:
    """Waits of the GPU by cause, then the longest ones."""
    whole = float(idle["span_us"]) or 1.0
    causes = [(cause, float(us), percent(float(us) / whole), "") for cause, us in idle["causes"].items() if us]
    gaps = [(gap["cause"], float(gap["idle_us"]), percent(float(gap["idle_us"]) / whole), f"before {gap['before']}")
            for gap in idle["gaps"][:LEFT]]  # fmt: skip
    note = f"Of {ms(whole / 1e3)} from the first kernel to the end of the last. launch: from the call to the kernel's "
    note += "start; sync: the host had waited for the GPU; cpu: it ran its own code; device: queued work waited."
    return Table("Idle time of the GPU", ("cause", "µs", "share", "one wait"), (*causes, *gaps), note)


def _sums(title: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    columns = (title.removeprefix("By "), "×", "measured", "predicted", "recoverable")
    body = tuple((row["name"], row["calls"], float(row["measured_us"]), row["predicted_us"],
                  float(row["recoverable_us"])) for row in rows[:ROWS])  # fmt: skip
    more = f" {number(len(rows) - ROWS)} more." if len(rows) > ROWS else ""
    return Table(title, columns, body, f"µs of all calls.{more}")


def _shape(call: Mapping[str, Any]) -> str:
    return shape_text({name: value for name, value in call.items() if value != 0})


def _left(title: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    body = tuple((row["name"], row["family"] or "", row["count"], float(row["total_measured_us"]))
                 for row in rows[:LEFT])  # fmt: skip
    more = f"{number(len(rows) - LEFT)} more." if len(rows) > LEFT else ""
    return Table(title, ("kernel", "family", "×", "µs, all"), body, more)

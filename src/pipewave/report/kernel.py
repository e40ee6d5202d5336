"""The report of a kernel over sizes: curves with band, floor and ceiling, waves, and the tuner's choices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pipewave.report import svg
from pipewave.report.document import Block, Chart, Code, Document, Notes, Table, words

SHOWN = 12  # sizes in the table


def document(answer: Mapping[str, Any]) -> Document:
    """Everything a sweep says. Raises KeyError or TypeError where it is not one."""
    x = answer["x"]
    title = f"{words(answer['kernel'])} over {words(answer['field'])}"
    subtitle = f"{answer['field']} from {x[0]:,} to {x[-1]:,}, protocol {answer['protocol']}."
    return Document(title, subtitle, tuple(_blocks(answer)))


def _blocks(answer: Mapping[str, Any]) -> Iterator[Block]:
    series = [one for one in answer["series"] if "error" not in one]
    yield _latency(answer, series)
    waved = [one for one in series if one["waves"]]
    if waved:
        yield _waves(answer, series, waved)
    yield from (_table(answer, one) for one in series)
    yield from (_tuned(answer["field"], tuned) for tuned in answer["tuner"] or ())
    said = [f"{one['gpu']}: {one['error']['message']}" for one in answer["series"] if "error" in one]
    said += [f"{one['gpu']}: {note}" for one in series for note in one["notes"]]
    if said:
        yield Notes(tuple(said))
    if answer.get("command"):
        yield Code("The same numbers again", str(answer["command"]))


def _wide(values: Sequence[float]) -> bool:
    return min(values) > 0 and max(values) / min(values) > 30


def _latency(answer: Mapping[str, Any], series: Sequence[Mapping[str, Any]]) -> Chart:
    x = [float(value) for value in answer["x"]]
    every = [value for one in series for name in ("floor_us", "high_us") for value in one[name]]
    axes = svg.frame(x, every, (words(answer["field"]), "µs"), logs=(_wide(x), _wide(every)), zero=True)
    body = [axes.grid()]
    for i, one in enumerate(series):
        body.append(svg.tag("path", d=axes.band(x, one["low_us"], one["high_us"]), cls=f"{svg.colour(i)} band"))
        for name, style in (("floor_us", "dots"), ("ceiling_us", "dash"), ("latency_us", "curve")):
            body.append(svg.tag("path", d=axes.path(x, one[name]), cls=f"{style} l{i % svg.COLOURS}"))
    drawing = svg.canvas(svg.HEIGHT, "".join(body), "latency over size")
    return Chart("Latency", drawing + svg.legend([(one["gpu"], i) for i, one in enumerate(series)]),
                 "Line: prediction with its 90 % band; dashes: a good kernel; dots: physical floor.")  # fmt: skip


def _waves(answer: Mapping[str, Any], series: Sequence[Mapping[str, Any]], waved: Sequence[Mapping[str, Any]]) -> Chart:
    x = [float(value) for value in answer["x"]]
    every = [value for one in waved for value in one["waves"]]
    axes = svg.frame(x, every, (words(answer["field"]), "waves"), logs=(_wide(x), _wide(every)), zero=True)
    curves = [svg.tag("path", d=axes.path(x, one["waves"]), cls=f"curve l{i % svg.COLOURS}")
              for i, one in enumerate(series) if one["waves"]]  # fmt: skip
    drawing = svg.canvas(svg.HEIGHT, axes.grid() + "".join(curves), "waves over size")
    return Chart(
        "Waves",
        drawing,
        "Tasks over the places that the SMs offer at a time; a product's are tiles of one size throughout.",
    )


def _table(answer: Mapping[str, Any], one: Mapping[str, Any]) -> Table:
    last = len(answer["x"]) - 1
    chosen = sorted({round(i * last / (SHOWN - 1)) for i in range(SHOWN)})
    names = ("latency_us", "low_us", "high_us", "ceiling_us", "floor_us")
    rows = tuple((answer["x"][i], *(float(one[name][i]) for name in names), one["waves"][i] if one["waves"] else None,
                  one["bound"][i], words(one["basis"][i])) for i in chosen)  # fmt: skip
    columns = (answer["field"], "µs", "90 % low", "high", "ceiling", "floor", "waves", "bound by", "basis")
    return Table(str(one["gpu"]), columns, rows)


def _tuned(field: str, tuned: Mapping[str, Any]) -> Table:
    rows = tuple((run["from"], run["to"], " ".join(f"{k}={v}" for k, v in run["config"].items()))
                 for run in tuned["runs"])  # fmt: skip
    title = f"The tuner's choices for {tuned['kernel']} on {tuned['gpu']}"
    return Table(title, (f"{field} from", "to", "configuration"), rows)

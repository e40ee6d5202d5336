"""A kernel: one call on several GPUs, and over sizes with band, floor, ceiling, waves and the tuner's choices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pipewave.view import document as doc
from pipewave.view import svg

SHOWN = 12  # sizes in the table
PREDICTED: Mapping[str, str] = doc.LABELS["predicted"]
DROPPABLE = ("impl", "stack", "software", "bound", "basis", "ceiling", "floor")  # by a narrow terminal, in order
BUSY = "busy_"  # begins a pipe's share in an answer


def predictions(answer: Mapping[str, Any]) -> doc.Document:
    """One call on each GPU. Raises KeyError or TypeError where it is no answer of `predict`."""
    from pipewave.prediction.notes import compared

    rows = [row for row in answer["predictions"] if "error" not in row]
    known = all(row["software"] == "measured" for row in rows)
    shown = [row | {"range": doc.ends(row["low_us"], row["high_us"]), "software": None if known else row["software"]}
             for row in rows]  # fmt: skip
    pipes = [name for name in (rows[0] if rows else ()) if name.startswith(BUSY) and any(row[name] for row in rows)]
    shares = [[f"{doc.bar(row[name], 8):8} {row[name]:4.0%}" if row[name] else "" for name in pipes] for row in rows]
    busy = tuple((row["gpu"], *texts) for row, texts in zip(rows, shares, strict=True))
    refused = tuple(str(row["error"]["message"]) for row in answer["predictions"] if "error" in row)
    blocks = (
        doc.table_of("", shown, PREDICTED, droppable=DROPPABLE),
        doc.Table("busy share of each pipe", ("GPU", *(name.removeprefix(BUSY) for name in pipes)), busy),
        doc.Notes(refused, detail=False),
        doc.Notes(tuple(compared([(row["gpu"], row["notes"]) for row in rows]))),
    )
    sure = _evidence([str(row["basis"]) for row in rows])
    return doc.Document(str(answer.get("call", "One kernel call")), "", blocks, sure)


def _evidence(basis: Sequence[str]) -> str:
    """What the answers rest on: of several GPUs, how many on what."""
    if len(basis) == 1:
        return doc.BASIS.get(basis[0], doc.words(basis[0]))
    counts = {name: basis.count(name) for name in dict.fromkeys(basis)}
    said = {**doc.BASIS, "measured_gpu": "measured"}
    return ", ".join(f"{n} of {len(basis)} GPUs {said.get(name, doc.words(name))}" for name, n in counts.items())


def document(answer: Mapping[str, Any]) -> doc.Document:
    """Everything a sweep says. Raises KeyError or TypeError where it is not one."""
    x = answer["x"]
    title = f"{doc.words(answer['kernel'])} over {doc.words(answer['field'])}"
    subtitle = f"{answer['field']} from {x[0]:,} to {x[-1]:,}, protocol {answer['protocol']}."
    return doc.Document(title, subtitle, tuple(_blocks(answer)))


def _blocks(answer: Mapping[str, Any]) -> Iterator[doc.Block]:
    series = [one for one in answer["series"] if "error" not in one]
    yield _latency(answer, series)
    if any(one["waves"] for one in series):
        yield _waves(answer, series)
    yield from (_table(answer, one) for one in series)
    for tuned in answer["tuner"] or ():
        runs = tuple((run["from"], run["to"], " ".join(f"{k}={v}" for k, v in run["config"].items()))
                     for run in tuned["runs"])  # fmt: skip
        title = f"The tuner's choices for {tuned['kernel']} on {tuned['gpu']}"
        yield doc.Table(title, (f"{answer['field']} from", "to", "configuration"), runs)
    said = [f"{one['gpu']}: {one['error']['message']}" for one in answer["series"] if "error" in one]
    said += [f"{one['gpu']}: {note}" for one in series for note in one["notes"]]
    yield from doc.notes_and_command({**answer, "notes": said})


def _latency(answer: Mapping[str, Any], series: Sequence[Mapping[str, Any]]) -> doc.Chart:
    x = [float(value) for value in answer["x"]]
    every = [value for one in series for name in ("floor_us", "high_us") for value in one[name]]
    axes = svg.frame(x, every, (doc.words(answer["field"]), "µs"), zero=True)
    body = [axes.grid()]
    for i, one in enumerate(series):
        body.append(svg.tag("path", d=axes.band(x, one["low_us"], one["high_us"]), cls=f"{svg.colour(i)} band"))
        for name, style in (("floor_us", "dots"), ("ceiling_us", "dash"), ("latency_us", "curve")):
            body.append(svg.tag("path", d=axes.path(x, one[name]), cls=f"{style} l{i % svg.COLOURS}"))
    drawing = svg.canvas(svg.HEIGHT, "".join(body), "latency over size")
    return doc.Chart("Latency", drawing + svg.legend([(one["gpu"], i) for i, one in enumerate(series)]),
                 "Line: prediction with its 90 % band; dashes: a good kernel; dots: physical floor.")  # fmt: skip


def _waves(answer: Mapping[str, Any], series: Sequence[Mapping[str, Any]]) -> doc.Chart:
    x = [float(value) for value in answer["x"]]
    every = [value for one in series for value in one["waves"] or ()]
    axes = svg.frame(x, every, (doc.words(answer["field"]), "waves"), zero=True)
    curves = [svg.tag("path", d=axes.path(x, one["waves"]), cls=f"curve l{i % svg.COLOURS}")
              for i, one in enumerate(series) if one["waves"]]  # fmt: skip
    drawing = svg.canvas(svg.HEIGHT, axes.grid() + "".join(curves), "waves over size")
    note = "Tasks over the places that the SMs offer at a time; a product's are tiles of one size throughout."
    return doc.Chart("Waves", drawing, note)


def _table(answer: Mapping[str, Any], one: Mapping[str, Any]) -> doc.Table:
    last = len(answer["x"]) - 1
    chosen = sorted({round(i * last / (SHOWN - 1)) for i in range(SHOWN)})
    names = ("latency_us", "low_us", "high_us", "ceiling_us", "floor_us")
    rows = tuple((answer["x"][i], *(float(one[name][i]) for name in names), one["waves"][i] if one["waves"] else None,
                  one["bound"][i], doc.words(one["basis"][i])) for i in chosen)  # fmt: skip
    columns = (answer["field"], "µs", "90 % low", "high", "ceiling", "floor", "waves", "bound by", "basis")
    return doc.Table(str(one["gpu"]), columns, rows)

"""A deployment under traffic: percentiles, what the means are made of, and the run over time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pipewave.view import document as doc
from pipewave.view import svg
from pipewave.view.svg import Part

TIMES: Mapping[str, str] = doc.LABELS["run_times"]
COLUMNS = ("mean", "p50", "p90", "p95", "p99")
RATES: Mapping[str, str] = doc.LABELS["rates"]
RUN: Mapping[str, str] = doc.LABELS["run"]
STEADY = "steady"  # a verdict that is not worth words
OVER_TIME: Mapping[str, str] = doc.LABELS["over_time"]
CURVE = {"ttft_mean_ms": "mean TTFT, ms", "tpot_mean_ms": "mean TPOT, ms"}
CURVE_COLUMNS: Mapping[str, str] = doc.LABELS["rate_curve"]


def document(answer: Mapping[str, Any]) -> doc.Document:
    """Everything that `serve` says. Raises KeyError or TypeError where it is not one."""
    title = f"{answer['model']} on {answer['gpus']} × {answer['gpu']}"
    count = doc.number(int(answer.get("figures_of", answer["requests"])))
    title = ": ".join([f"{title}, {answer['engine']}", *filter(None, [answer.get("traffic")])])
    title = f"{title}; {verdict}" if (verdict := answer.get("verdict", STEADY)) != STEADY else title
    subtitle = f"{count} requests over time under {answer['engine']}."
    sure = doc.confidence_of(answer.get("basis", {}), answer)
    return doc.Document(title, subtitle, tuple(_blocks(answer)), sure)


def _blocks(answer: Mapping[str, Any]) -> Iterator[doc.Block]:
    yield _facts(answer)
    shown = {name: said for name, said in TIMES.items() if f"{name}_mean_ms" in answer}
    rows = [(said, *(float(answer[f"{name}_{column}_ms"]) for column in COLUMNS)) for name, said in shown.items()]
    yield doc.Table("Percentiles, ms", ("", *COLUMNS), tuple(rows))
    if "ttft_mean_ms_low" in answer:
        both = [(said, *(doc.interval(answer, f"{name}_{column}_ms") for column in COLUMNS))
                for name, said in shown.items()]  # fmt: skip
        yield doc.Table("90 % intervals, ms", ("", *COLUMNS), tuple(both), detail=True)
    if "where" in answer:
        yield from _where(answer["where"])
    if "timeline" in answer:
        seconds = [float(one) for one in answer["timeline"]["time_s"]]
        for name, said in OVER_TIME.items():
            values = [float(one) for one in answer["timeline"][name]]
            yield _curve("seconds", seconds, said, values, f"At most {doc.number(max(values))}.")
    rest = [doc.Fact(RUN[name], doc.number(answer[name]), doc.interval(answer, name))
            for name in RUN if answer.get(name) is not None]  # fmt: skip
    yield doc.Facts((*rest, *doc.costs_of(answer)))
    yield from doc.notes_and_command(answer)


def _facts(answer: Mapping[str, Any]) -> doc.Facts:
    names = {"ttft": "mean time to first token", "tpot": "mean time per later token", "e2e": "mean end to end"}
    times = [doc.Fact(said, doc.ms(answer[f"{name}_mean_ms"]), doc.interval(answer, f"{name}_mean_ms", "ms"))
             for name, said in names.items() if f"{name}_mean_ms" in answer]  # fmt: skip
    rates = [doc.Fact(said, doc.number(float(answer[name]))) for name, said in RATES.items() if name in answer]
    return doc.Facts((*times, *rates))


def _where(parts: Mapping[str, Mapping[str, float]]) -> Iterator[doc.Block]:
    """A bar and a table of what each mean is made of."""
    names = list(dict.fromkeys(name for each in parts.values() for name in each))
    by_head = {name.removesuffix("_ms").upper(): each for name, each in parts.items()}
    bars = [(head, [Part(doc.words(name), each.get(name, 0.0), i) for i, name in enumerate(names)])
            for head, each in by_head.items()]  # fmt: skip
    drawing = svg.bars(bars, "what the means are made of")
    yield doc.Chart("Where the time goes", drawing, "Waiting: until the first step with a piece of the prompt begins.")
    yield doc.shares_of("part", names, by_head, whole="in all")


def _curve(along: str, xs: Sequence[float], said: str, values: Sequence[float], note: str) -> doc.Chart:
    """A quantity from zero up, over seconds or rates."""
    axes = svg.frame(xs, [0.0, *values], (along, said), log=False)
    line = svg.tag("path", d=axes.path(xs, values), cls="curve l0")
    drawing = svg.canvas(svg.HEIGHT, axes.grid() + line, f"{said} over {along.split()[0]}")
    return doc.Chart(said[:1].upper() + said[1:], drawing, note)


def rate_document(answer: Mapping[str, Any]) -> doc.Document:
    """Everything that `serve --find-rate` says."""
    title = f"{answer['model']} on {answer['gpus']} × {answer['gpu']}, {answer['engine']}: {answer['verdict']}"
    within = ", ".join(answer["limits"]) or "that is kept up with"
    found = doc.Fact(f"requests per second, {within}", doc.number(float(answer["rate_per_s"])),
                 f"90 % between {doc.ends(answer['rate_per_s_low'], answer['rate_per_s_high'])}")  # fmt: skip
    most = doc.Fact("requests per second at most", doc.number(float(answer["capacity_per_s"])))
    blocks: list[doc.Block] = [doc.Facts((found, most, doc.Fact("bound by", str(answer["bound_by"]))))]
    rows = [row for row in answer["curve"] if "rate" in row]
    cells = [(*(row.get(name, "") for name in CURVE_COLUMNS), "saturated" if row["saturated"] else "") for row in rows]
    blocks.append(doc.Table("Rate against times, ms", (*CURVE_COLUMNS.values(), ""), tuple(cells)))
    if len(rows) > 1:
        rates = [float(row["rate"]) for row in rows]
        blocks += [_curve("requests a second", rates, said, [float(row[name]) for row in rows], "")
                   for name, said in CURVE.items() if name in rows[0]]  # fmt: skip
    return doc.Document(title, "", (*blocks, *doc.notes_and_command(answer)), doc.confidence_of({}, answer))

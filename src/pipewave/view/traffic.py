"""A deployment under traffic: percentiles, what the means are made of, and the run over time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pipewave.view import svg
from pipewave.view.document import (
    Block,
    Chart,
    Document,
    Fact,
    Facts,
    Notes,
    Table,
    again,
    between,
    ends,
    ms,
    number,
    percent,
    rests_on_what_is_open,
    words,
)
from pipewave.view.svg import Part

TIMES = {"ttft": "time to first token", "tpot": "time per later token", "itl": "between tokens", "e2e": "end to end"}
COLUMNS = ("mean", "p50", "p90", "p95", "p99")
RATES = {"requests_per_s": "requests per second", "output_tokens_per_s": "output tokens per second",
         "goodput_per_s": "requests per second within the limits"}  # fmt: skip
RUN = {"requests": "requests", "duration_s": "seconds in all", "total_tokens_per_s": "tokens in and out per second",
       "output_tokens_per_s_per_gpu": "output tokens per second and GPU", "good_share": "share within the limits",
       "kv_tokens": "tokens that the KV cache holds",
       "prefix_found_share": "share of prompt tokens found in the cache",
       "preemptions": "preemptions", "steps": "engine steps",
       "busy_share": "share of the time that engines are busy", "energy_j_per_output_token": "J an output token",
       "power_w": "W of a GPU"}  # fmt: skip
STEADY = "steady"  # a verdict that is not worth words
OVER_TIME = {"running": "requests in a step", "waiting": "requests that wait", "kv_share": "share of the KV cache"}


def document(answer: Mapping[str, Any]) -> Document:
    """Everything that `serve` says. Raises KeyError or TypeError where it is not one."""
    title = f"{answer['model']} on {answer['gpus']} × {answer['gpu']}"
    count = number(int(answer.get("figures_of", answer["requests"])))
    title = ": ".join([f"{title}, {answer['engine']}", *filter(None, [answer.get("traffic")])])
    title = f"{title}; {verdict}" if (verdict := answer.get("verdict", STEADY)) != STEADY else title
    subtitle = f"{count} requests over time under {answer['engine']}."
    return Document(title, subtitle, tuple(_blocks(answer)), rests_on_what_is_open(answer.get("basis", {}), answer))


def _blocks(answer: Mapping[str, Any]) -> Iterator[Block]:
    yield _facts(answer)
    yield _percentiles(answer)
    yield from _intervals(answer)
    if "where" in answer:
        yield from _where(answer["where"])
    if "timeline" in answer:
        yield from _over_time(answer["timeline"])
    yield _rest(answer)
    yield Notes(tuple(map(str, answer.get("notes", ()))))
    yield from again(answer)


def _facts(answer: Mapping[str, Any]) -> Facts:
    names = {"ttft": "mean time to first token", "tpot": "mean time per later token", "e2e": "mean end to end"}
    times = [Fact(said, ms(answer[f"{name}_mean_ms"]), _interval(answer, f"{name}_mean_ms"))
             for name, said in names.items() if f"{name}_mean_ms" in answer]  # fmt: skip
    rates = [Fact(said, number(float(answer[name]))) for name, said in RATES.items() if name in answer]
    return Facts((*times, *rates))


def _interval(answer: Mapping[str, Any], field: str) -> str:
    low, high = answer.get(f"{field}_low"), answer.get(f"{field}_high")
    return "" if low is None or high is None else between(low, high, "ms")


def _percentiles(answer: Mapping[str, Any]) -> Table:
    rows = tuple((said, *(float(answer[f"{name}_{column}_ms"]) for column in COLUMNS))
                 for name, said in TIMES.items() if f"{name}_mean_ms" in answer)  # fmt: skip
    return Table("Percentiles, ms", ("", *COLUMNS), rows)


def _intervals(answer: Mapping[str, Any]) -> Iterator[Table]:
    """The 90 % interval of each figure, where there are any."""
    if "ttft_mean_ms_low" in answer:
        rows = tuple((said, *(_ends(answer, f"{name}_{column}_ms") for column in COLUMNS))
                     for name, said in TIMES.items() if f"{name}_mean_ms" in answer)  # fmt: skip
        yield Table("90 % intervals, ms", ("", *COLUMNS), rows, detail=True)


def _ends(answer: Mapping[str, Any], field: str) -> str:
    low, high = answer.get(f"{field}_low"), answer.get(f"{field}_high")
    return "" if low is None or high is None else ends(low, high)


def _where(parts: Mapping[str, Mapping[str, float]]) -> Iterator[Block]:
    """A bar and a table of what each mean is made of."""
    names = list(dict.fromkeys(name for each in parts.values() for name in each))
    bars = [(name.removesuffix("_ms").upper(), [Part(words(n), each.get(n, 0.0), i) for i, n in enumerate(names)])
            for name, each in parts.items()]  # fmt: skip
    drawing = svg.stacks(bars, "what the means are made of")
    drawing += svg.legend([(words(name), i) for i, name in enumerate(names)])
    yield Chart("Where the time goes", drawing, "Waiting: until the first step with a piece of the prompt begins.")
    heads = [name.removesuffix("_ms").upper() for name in parts]
    columns = ("part", *(text for head in heads for text in (f"{head}, ms", "share")))
    sums = [sum(each.values()) for each in parts.values()]
    rows = [(words(name), *_shared([each.get(name, 0.0) for each in parts.values()], sums)) for name in names]
    yield Table("", columns, (*rows, ("in all", *_shared(sums, sums))))


def _shared(values: Sequence[float], sums: Sequence[float]) -> list[Any]:
    return [cell for value, whole in zip(values, sums, strict=True) for cell in (value, percent(value / (whole or 1)))]


def _over_time(timeline: Mapping[str, Sequence[float]]) -> Iterator[Chart]:
    """One curve a quantity, all over the same seconds."""
    seconds = [float(one) for one in timeline["time_s"]]
    for name, said in OVER_TIME.items():
        values = [float(one) for one in timeline[name]]
        axes = svg.frame(seconds, [0.0, *values], ("seconds", said), logs=(False, False))
        line = svg.tag("path", d=axes.path(seconds, values), cls="curve l0")
        drawing = svg.canvas(svg.HEIGHT, axes.grid() + line, f"{said} over time")
        yield Chart(said.capitalize(), drawing, f"At most {number(max(values))}.")


def _rest(answer: Mapping[str, Any]) -> Facts:
    """The other figures of the run."""
    told = [name for name in RUN if answer.get(name) is not None]
    return Facts(tuple(Fact(RUN[name], number(answer[name])) for name in told))


CURVE = {"ttft_mean_ms": "mean TTFT, ms", "tpot_mean_ms": "mean TPOT, ms"}
CURVE_COLUMNS = {"rate": "sent a second", "requests_per_s": "done a second", "ttft_mean_ms": "TTFT mean",
                 "ttft_p90_ms": "p90", "ttft_p99_ms": "p99", "tpot_mean_ms": "TPOT mean", "tpot_p90_ms": "p90",
                 "tpot_p99_ms": "p99", "output_tokens_per_s": "tokens/s"}  # fmt: skip


def rate_document(answer: Mapping[str, Any]) -> Document:
    """Everything that `serve --find-rate` says."""
    title = f"{answer['model']} on {answer['gpus']} × {answer['gpu']}, {answer['engine']}: {answer['verdict']}"
    within = ", ".join(answer["limits"]) or "that is kept up with"
    found = Fact(f"requests per second, {within}", number(float(answer["rate_per_s"])),
                 f"90 % between {ends(answer['rate_per_s_low'], answer['rate_per_s_high'])}")  # fmt: skip
    most = Fact("requests per second at most", number(float(answer["capacity_per_s"])))
    blocks: list[Block] = [Facts((found, most, Fact("bound by", str(answer["bound_by"]))))]
    rows = [row for row in answer["curve"] if "rate" in row]
    cells = [(*(row.get(name, "") for name in CURVE_COLUMNS), SATURATED[bool(row["saturated"])]) for row in rows]
    blocks.append(Table("Rate against times, ms", (*CURVE_COLUMNS.values(), ""), tuple(cells)))
    blocks += [_curve(rows, name, said) for name, said in CURVE.items() if len(rows) > 1 and name in rows[0]]
    notes = Notes(tuple(map(str, answer.get("notes", ()))))
    return Document(title, "", (*blocks, notes, *again(answer)), rests_on_what_is_open({}, answer))


SATURATED = ("", "saturated")


def _curve(rows: Sequence[Mapping[str, Any]], name: str, said: str) -> Chart:
    rates, values = ([float(row[key]) for row in rows] for key in ("rate", name))
    axes = svg.frame([0.0, *rates], [0.0, *values], ("requests a second", said), logs=(False, False))
    line = svg.tag("path", d=axes.path(rates, values), cls="curve l0")
    return Chart(said, svg.canvas(svg.HEIGHT, axes.grid() + line, f"{said} over rate"), "")

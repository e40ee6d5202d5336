"""A plan: the winner, the Pareto front, what would move it, what does not fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from pipewave.view import document as doc
from pipewave.view import svg

FRONT: Mapping[str, str] = doc.LABELS["designs"]
USUAL: Sequence[str] = doc.LABELS["usual_settings"]  # columns that often say the same in every row
DROPPABLE = tuple(FRONT[name] for name in ("ttft_range", "range", "power_w", "tokens_per_s_per_gpu"))
MOST_REFUSED = 8  # lines of what is not possible
COST, RATE, SPEED = "usd_per_million_tokens", "tokens_per_s_per_gpu", "tokens_per_s_per_user"


def document(answer: Mapping[str, Any]) -> doc.Document:
    """Everything a plan says. Raises KeyError or TypeError where it is not one."""
    designs, met = int(answer["designs"]), int(answer["meet_the_limits"])
    subtitle = f"{doc.number(designs)} design{'s'[: designs != 1]}, {doc.number(met)} meet{'s'[: met == 1]} the limits."
    return doc.Document(f"Serving {answer['model']}: {subtitle}", subtitle, tuple(_blocks(answer)), _evidence(answer))


def _blocks(answer: Mapping[str, Any]) -> Iterator[doc.Block]:
    if answer["winner"]:
        yield _winner(answer)
        yield doc.Code("Launch one replica", str(answer["launch"]))
        if all(row[SPEED] for row in answer["front"]):  # one token has none
            yield _front(answer["front"], answer.get("all", ()))
        yield _table("Designs: the best of each GPU first, then the others, cheapest first", answer["rows"])
        yield from _fleet(answer.get("fleet") or {})
        yield from _elasticities(answer["elasticities"])
    else:
        shortest = answer.get("shortest")
        least = f" The shortest first token takes {doc.ms(shortest['ttft_ms'])}, the shortest later token " \
                f"{doc.ms(shortest['tpot_ms'])}." if shortest else ""  # fmt: skip
        yield doc.Notes((f"No design meets the limits.{least}",), detail=False)
    if left := answer.get("left_out"):
        said = ", ".join(f"{row['option']} ({round(row['rate_change_percent']):+} % of the rate)" for row in left)
        yield doc.Notes((f"not tried for the winner: {said}; KV offload",), detail=False)
    yield from _refused(answer)
    if answer["prices"]:
        yield doc.table_of("Prices", answer["prices"], doc.LABELS["prices"], detail=True)
    if missing := answer["without_price"]:
        yield doc.Notes((f"no price known, so not ranked: {', '.join(missing)} (give one with --price)",), detail=False)
    yield from doc.notes_and_command(answer)


def _refused(answer: Mapping[str, Any]) -> Iterator[doc.Block]:
    """What is not possible and why; where that is long, first the GPUs on which nothing is."""
    rows = tuple((row["why"], ", ".join(row["splits"])) for row in answer["does_not_fit"])
    long = len(rows) > MOST_REFUSED
    if long:
        splits = sum(len(row["splits"]) for row in answer["does_not_fit"])
        nowhere = (f"not possible on {gpu}: {why}" for gpu, why in answer.get("impossible", {}).items())
        yield doc.Notes((*nowhere, f"not possible: {splits} splits in all; --verbose says why of each"), detail=False)
    if rows:
        yield doc.Table("Not possible", ("why", "splits"), rows, detail=long)


def _evidence(answer: Mapping[str, Any]) -> str:
    """What the ranking rests on: runs, limits, and prices of some day."""
    dates = sorted({str(price["date"]) for price in answer["prices"] if price.get("date")})
    verified = sum(bool(price["verified"]) for price in answer["prices"])
    days = " to ".join(dict.fromkeys((dates[0], dates[-1]))) if dates else ""
    said = f"; prices of {days}, {verified} of {len(answer['prices'])} verified" if dates else ""
    limits = ", ".join(answer.get("asked", {}).get("limits", ())) or "no limits"
    return f"{limits}; each design was served with Poisson arrivals at the rate shown{said}"


def _table(title: str, front: Sequence[Mapping[str, Any]]) -> doc.Table:
    """Designs without columns that say the same in every row."""
    from pipewave.planning.plan import PERHAPS, STRADDLES

    doubt = any(row.get("sure") == PERHAPS for row in front)
    rows = [{**row, "ttft_range": doc.ends(row["ttft_ms_low"], row["ttft_ms_high"]),
             "range": doc.ends(row["tpot_ms_low"], row["tpot_ms_high"]), "sure": row.get("sure") if doubt else None}
            for row in front]  # fmt: skip
    alike = [name for name in USUAL if len({str(row.get(name)) for row in rows}) == 1]
    columns = {name: head for name, head in FRONT.items() if name not in alike}
    same = ", ".join(f"{FRONT[name]} {rows[0][name]}" for name in alike if rows[0].get(name) not in (None, "", "none"))
    told = [f"All with {same}."] * bool(same) + [f"{PERHAPS}: {STRADDLES}."] * doubt
    return doc.table_of(title, rows, columns, " ".join(told), droppable=DROPPABLE)


def _winner(answer: Mapping[str, Any]) -> doc.Facts:
    row, fleet = answer["winner"], answer["fleet"]
    name = "cheapest design" + ("" if row["sure"] == "yes" else ", which may miss a limit")
    split = f"TP {row['tp']}, PP {row['pp']}, EP {row['ep']}, DP {row['dp']}, {row['engine']}"
    split += f", DCP {row['dcp']}" if row["dcp"] else ""
    split += "" if row["drafts"] == "none" else f", drafts {row['drafts']}"
    split += "" if row["engines"] == "one" else f", engines apart: {row['engines']}"
    used = f"{100 * fleet['utilisation']:.0f} % of what it serves within the limits"
    facts = [doc.Fact(name, _boards(row), split), doc.Fact("requests per second", _real(row["requests_per_s"]), used)]
    for name, key in (("first token", "ttft_ms"), ("a later token", "tpot_ms")):
        facts.append(doc.Fact(name, doc.ms(row[key]), doc.interval(row, key, "ms")))
    return doc.Facts((*facts, *_cost(row, fleet), *_energy(row), *_others(answer)))


def _cost(row: Mapping[str, Any], fleet: Mapping[str, Any]) -> Iterator[doc.Fact]:
    """Of the whole fleet and of tokens."""
    if fleet["usd_per_hour"] is None:
        yield doc.Fact("cost", "no price known")
        return
    month = f"{_real(fleet['usd_per_month'])} USD a month of 730 hours"
    yield doc.Fact("cost", f"{_real(fleet['usd_per_hour'])} USD an hour", month)
    read, written = (_real(fleet[f"usd_per_million_{side}_tokens"]) for side in ("input", "output"))
    apart = f"apart: {read} a million tokens in, {written} out"
    yield doc.Fact("a million output tokens", f"{_real(row[COST])} USD, prompts included", apart)


def _energy(row: Mapping[str, Any]) -> Iterator[doc.Fact]:
    """Joules, watts and carbon, where they are known."""
    if "power_w" in row:
        co2 = row.get("kg_co2_per_million_tokens")
        carbon = "" if co2 is None else f", {_real(co2)} kg CO2 a million tokens"
        meter = f"{doc.number(round(row['tokens_per_mwh'] / 1e6))} M tokens a MWh{carbon}"
        joules = f"{_real(row['energy_j_per_output_token'])} J an output token"
        yield doc.Fact("energy", joules, f"{_real(row['power_w'])} W of a GPU, {meter}")


def _others(answer: Mapping[str, Any]) -> Iterator[doc.Fact]:
    """Designs that are better in something else than the winner."""
    for name, field, key, said in (
        ("least energy", "least_energy", "energy_j_per_output_token", "J an output token"),
        ("cheapest likely one", "likely", COST, "USD; may miss a limit"),
    ):
        if (other := answer.get(field)) and other != answer["winner"]:
            limit = f" at {doc.number(other['power_limit_w'])} W" if other.get("power_limit_w") else ""
            yield doc.Fact(name, f"{_boards(other)}{limit}", f"{other['engine']}, {doc.number(other[key])} {said}")


def _boards(row: Mapping[str, Any]) -> str:
    return f"{row['replicas']} × {row['gpus']} × {row['gpu']}"


def _real(value: Any) -> str:
    return doc.number(float(value))


def _fleet(fleet: Mapping[str, Any]) -> Iterator[doc.Block]:
    """Budget and autoscaler, where they were asked for; and what the search left out."""
    if budget := fleet.get("budget"):
        no, count = "not " * (not budget["enough"]), budget["replicas"]
        replicas = "1 replica" if count == 1 else f"{count} replicas"
        usd, rate = (doc.number(budget[name]) for name in ("usd_per_month", "requests_per_s"))
        pays = f"{usd} USD a month is {no}enough: it pays {replicas}, {rate} requests a second"
        yield doc.Notes((pays,), detail=False)
    if scaled := fleet.get("autoscaler"):
        late, hours, fixed = (doc.number(scaled[name])
                              for name in ("scale_delay_s", "replica_hours", "fixed_replica_hours"))  # fmt: skip
        yield doc.Notes((f"an autoscaler {late} s late runs {min(scaled['replicas'])} to {max(scaled['replicas'])} "
                         f"replicas, {hours} replica hours in place of {fixed}; "
                         f"{doc.percent(scaled['share_of_requests_while_short'])} of requests come while it has too "
                         "few",), detail=False)  # fmt: skip
        columns = ("start_s", "requests_per_s", "needed", "replicas")
        rows = tuple(zip(*(scaled[name] for name in columns), strict=True))
        yield doc.Table("Replicas over time", ("from s", "requests/s", "needed", "running"), rows, detail=True)


def _front(front: Sequence[Mapping[str, Any]], cloud: Sequence[Mapping[str, Any]]) -> doc.Chart:
    """Speed for a user against cost; every GPU a colour, the front joined."""
    priced = all(row.get(COST) is not None for row in front)
    field, name = (COST, "USD per million tokens") if priced else (RATE, "tokens per second and GPU")
    rows = [row for row in (*cloud, *front) if row.get(field) is not None]
    xs, ys = [float(row[SPEED]) for row in rows], [float(row[field]) for row in rows]
    axes = svg.frame(xs, ys, ("tokens per second for a user", name), log=True)
    gpus = list(dict.fromkeys(row["gpu"] for row in (*front, *rows)))
    dots = [_dot(axes, row, field, gpus.index(row["gpu"]), front=False) for row in rows[: len(rows) - len(front)]]
    dots += [_dot(axes, row, field, gpus.index(row["gpu"]), front=True) for row in front]
    line = svg.tag("path", d=axes.path([row[SPEED] for row in front], [row[field] for row in front]), cls="line")
    drawing = svg.canvas(svg.HEIGHT, axes.grid() + line + "".join(dots), f"{name} against speed")
    return doc.Chart("Speed against cost", drawing + svg.legend([(gpu, i) for i, gpu in enumerate(gpus)]),
                 "Large points are the front: no design beats them in both. " +
                 ("Faint ones miss a limit or are beaten." if cloud else ""))  # fmt: skip


def _dot(axes: svg.Frame, row: Mapping[str, Any], field: str, colour: int, *, front: bool) -> str:
    said = (f"{row['gpus']} × {row['gpu']}, TP {row['tp']}, batch {row['max_num_seqs']}: "
            f"{doc.number(float(row[SPEED]))} tokens/s/user, {doc.number(float(row[field]))}")  # fmt: skip
    return svg.tag("circle", svg.tag("title", escape(said)), cx=axes.x.at(row[SPEED]), cy=axes.y.at(row[field]),
                   r=5 if front else 2.2, cls=f"{svg.colour(colour)}{'' if front else ' faint'}")  # fmt: skip


def _elasticities(rows: Sequence[Mapping[str, Any]]) -> Iterator[doc.Block]:
    if rows:
        columns = ("with", "TTFT %", "TPOT %", "tokens/s/GPU %")
        changes = [[row[f"{name}_change_percent"] for name in ("ttft_ms", "tpot_ms", RATE)] for row in rows]
        body = tuple((row["more"], *(f"{value:+.1f}" if value else "0" for value in each))
                     for row, each in zip(rows, changes, strict=True))  # fmt: skip
        yield doc.Table("What would move the winner", columns, body)

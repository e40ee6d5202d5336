"""`python -m qa.find_rates`: the largest rate within a limit, beside published curves.

A series is a deployment that was published at four loads or more of the same requests. The truth is one of its loads:
the limit is the time per later token that was measured there, the rate what Little's law gives of the requests in
flight and the measured times. `find_rate` is asked for the largest rate within that limit, under Poisson arrivals.
Printed: errors of each group (mean over its series), and their mean; the bar is 15 % at the knee. Published clients
kept so many requests in flight, which takes less time a token than Poisson arrivals at the same rate: `--client closed`
asks for the rate at which such a client meets the limit, on a line (of logarithms) through two runs of it.

The knee of a curve is the load of most power, throughput over the time of a request (Kleinrock, "Power and
deterministic rules of thumb for probabilistic problems in computer communications", ICC 1979): up to there throughput
grows faster than that time. A series has one where that load is neither its first nor its last. `--at middle` takes
the middle load of every series: where tokens take hardly longer with more requests, a small error of their time is a
large one of the rate.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from pipewave.errors import PipewaveError
from pipewave.face import find_rate, serve
from pipewave.simulate.traffic import TURNS
from studies.published_rows import Group, Row, corpus, read

LOADS = 4  # of a series, at least
APART = ("id", "mode", "model", "gpu", "concurrency", "requests", "isl", "osl")  # asked by name, or not at all


def series(rows: Sequence[Row]) -> dict[Group, list[list[Row]]]:
    """Rows that differ in their load alone, in its order, by group."""
    alike: dict[Any, list[Row]] = defaultdict(list)
    for row in rows:
        asked = row.answerable and not row.apart and row.case["mode"] == "serve" and row.case.get("concurrency")
        if asked and {"ttft_ms", "tpot_ms"} <= row.measured.keys():
            said = {name: value for name, value in row.case.items() if name not in ("id", "concurrency", "requests")}
            alike[row.group, str(sorted(said.items()))].append(row)
    found: dict[Group, list[list[Row]]] = defaultdict(list)
    for (group, _), members in alike.items():
        if len({row.case["concurrency"] for row in members}) >= LOADS:
            found[group].append(sorted(members, key=lambda row: row.case["concurrency"]))
    return found


def busy_ms(row: Row) -> float:
    """Measured time of a request."""
    ms: float = row.measured["ttft_ms"] + row.measured["tpot_ms"] * (row.case["osl"] - 1)
    return ms


def middle(members: Sequence[Row]) -> Row | None:
    """The middle load of a series."""
    return members[len(members) // 2]


def knee(members: Sequence[Row]) -> Row | None:
    """The load of most power where the series has lower and higher ones: most requests in flight over time squared."""
    at = int(np.argmax([row.case["concurrency"] / busy_ms(row) ** 2 for row in members]))
    return members[at] if 0 < at < len(members) - 1 else None


PLACES = {"knee": knee, "middle": middle}


def found_per_s(row: Row) -> float:
    """What `find_rate` says of the load's limit."""
    rate: float = find_rate(tpot_ms=row.measured["tpot_ms"], **asked(row)).rate_per_s
    return rate


def closed_per_s(row: Row) -> float:
    """The rate of a client that keeps as many requests in flight as meet the load's limit."""
    flight, limit = row.case["concurrency"], row.measured["tpot_ms"]
    tpot_ms, rate = _kept(row, flight)
    other = max(round(flight * (1.5 if tpot_ms < limit else 1 / 1.5)), 1)
    other_ms, other_rate = _kept(row, other if other != flight else flight + 1)
    slope = np.log(other_rate / rate) / np.log(other_ms / tpot_ms)
    return float(rate * (limit / tpot_ms) ** slope)


def _kept(row: Row, flight: int) -> tuple[float, float]:
    """Predicted ms a later token, and requests a second, with so many in flight."""
    ran = serve(concurrency=flight, requests=TURNS * flight, **asked(row))
    ttft_ms, tpot_ms = float(ran.ttft_ms), float(ran.tpot_ms or 0.0)
    return tpot_ms, 1e3 * flight / (ttft_ms + tpot_ms * (row.case["osl"] - 1))


def asked(row: Row) -> dict[str, Any]:
    """The deployment and the lengths of its requests, for calls of Python."""
    case = row.case
    lengths = {"model": case["model"], "gpu": case["gpu"], "input_len": case["isl"], "output_len": case["osl"]}
    return lengths | {name: value for name, value in case.items() if name not in APART}


CLIENTS = {"poisson": found_per_s, "closed": closed_per_s}


def off(row: Row, client: str = "poisson") -> float:
    """Predicted over measured rate at a load, minus one."""
    measured_per_s: float = 1e3 * row.case["concurrency"] / busy_ms(row)
    return CLIENTS[client](row) / measured_per_s - 1.0


def scored(
    most: int, place: Callable[[Sequence[Row]], Row | None], client: str = "poisson"
) -> Iterator[tuple[Group, list[float]]]:
    """Of every group, what so many of its series are off by at that place, spread over it."""
    for group, members in sorted(series(read(corpus())).items(), key=str):
        rows = [row for one in members if (row := place(one))]
        errors = []
        for number in np.unique(np.linspace(0, max(len(rows) - 1, 0), most).astype(int))[: len(rows)]:
            try:
                errors.append(off(rows[number], client))
            except PipewaveError as error:
                print(f"{rows[number].id}: {error}")
        if errors:
            yield group, errors


def main(argv: Sequence[str] | None = None) -> None:
    """Print."""
    parser = argparse.ArgumentParser(prog="python -m qa.find_rates", description=__doc__)
    parser.add_argument("--series", type=int, default=3, help="of a group, at most")
    parser.add_argument("--at", choices=PLACES, default="knee", help="which load of a series")
    parser.add_argument("--client", choices=CLIENTS, default="poisson", help="how requests come")
    means, given = [], parser.parse_args(argv)
    for group, errors in scored(given.series, PLACES[given.at], given.client):
        means.append(100 * float(np.mean(np.abs(errors))))
        listed = ", ".join(f"{100 * one:+.0f}" for one in errors)
        print(f"{group.engine} {group.gpu} {group.model} {group.precision}: {means[-1]:.1f} % ({listed})", flush=True)
    print(f"mean of {len(means)} groups: {np.mean(means):.1f} %")


if __name__ == "__main__":
    main()

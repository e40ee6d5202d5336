"""`python -m qa.find_rates [--series N]`: the largest rate within a limit, beside published curves of throughput.

A series is a deployment that was published at four loads or more of the same requests. What it served at its middle
load is the truth: the limit is the time per later token that was measured there, the rate what Little's law gives of
the requests in flight and the measured times. `find_rate` is asked for the largest rate within that limit, under
Poisson arrivals. Printed: errors of each group (mean over its series), and their mean; the bar is 15 %.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from pipewave.errors import PipewaveError
from pipewave.face import find_rate
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


def off(members: Sequence[Row]) -> float:
    """Predicted over measured rate at the middle load of a series, minus one."""
    row = members[len(members) // 2]
    case, seen = row.case, row.measured
    busy_ms = seen["ttft_ms"] + seen["tpot_ms"] * (case["osl"] - 1)
    asked = {name: value for name, value in case.items() if name not in APART}
    lengths = {"input_len": case["isl"], "output_len": case["osl"]}
    ours = find_rate(case["model"], case["gpu"], tpot_ms=seen["tpot_ms"], **lengths, **asked).rate_per_s
    measured_per_s: float = 1e3 * case["concurrency"] / busy_ms
    return ours / measured_per_s - 1.0


def scored(most: int) -> Iterator[tuple[Group, list[float]]]:
    """Of every group, what so many of its series are off by, spread over it."""
    for group, members in sorted(series(read(corpus())).items(), key=str):
        errors = []
        for number in np.unique(np.linspace(0, len(members) - 1, most).astype(int)):
            try:
                errors.append(off(members[number]))
            except PipewaveError as error:
                print(f"{members[number][0].id}: {error}")
        if errors:
            yield group, errors


def main(argv: Sequence[str] | None = None) -> None:
    """Print."""
    parser = argparse.ArgumentParser(prog="python -m qa.find_rates", description=__doc__)
    parser.add_argument("--series", type=int, default=3, help="of a group, at most")
    means = []
    for group, errors in scored(parser.parse_args(argv).series):
        means.append(100 * float(np.mean(np.abs(errors))))
        listed = ", ".join(f"{100 * one:+.0f}" for one in errors)
        print(f"{group.engine} {group.gpu} {group.model} {group.precision}: {means[-1]:.1f} % ({listed})", flush=True)
    print(f"mean of {len(means)} groups: {np.mean(means):.1f} %")


if __name__ == "__main__":
    main()

"""Knees of published throughput curves against `serve --find-rate`: `python -m studies.find_rate`.

A series is one deployment and one load at four concurrencies or more. Its knee is the rate at which mean TPOT is half
way, in logarithms, between the least and the most that were measured, read off the measured curve; a closed loop's rate
is its concurrency over TTFT and all later tokens. It is compared with the largest rate within that mean TPOT under
Poisson arrivals. One series of each group (source, engine, GPU, model, precision), the one with the most levels; the
error is the mean over groups.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from pipewave.errors import PipewaveError
from pipewave.files import whole
from pipewave.published.answers import deploy
from pipewave.published.cases import from_dict
from pipewave.published.find_rate import find_rate
from pipewave.simulate.report import Limit
from studies.published_rows import Group, Row, corpus, read

RESULTS = Path(__file__).parent / "results" / "find_rate.json"
LEVELS = ("concurrency", "requests", "max_num_seqs")  # what differs between the levels of a series
FEWEST = 4


@dataclass(frozen=True, slots=True)
class Knee:
    """Where a series crosses a TPOT, ms, and at how many requests a second."""

    group: Group
    case: dict[str, Any]
    tpot_ms: float
    rate: float


def knees(rows: Sequence[Row]) -> list[Knee]:
    """The knee of the longest series of each group."""
    levels = defaultdict(list)
    for row in rows:
        closed = row.case["mode"] == "serve" and "concurrency" in row.case and "rate" not in row.case
        if closed and {"ttft_ms", "tpot_ms"} <= row.measured.keys() and row.answerable and not row.apart:
            fixed = {name: value for name, value in row.case.items() if name not in (*LEVELS, "id")}
            levels[row.group, json.dumps(fixed, sort_keys=True)].append(row)
    longest: dict[Group, list[Row]] = {}
    for (group, _), found in sorted(levels.items(), key=lambda one: (len(one[1]), one[0][1])):
        if len({row.case["concurrency"] for row in found}) >= FEWEST:
            longest[group] = found
    return [_knee(group, found) for group, found in longest.items()]


def _knee(group: Group, rows: Sequence[Row]) -> Knee:
    case = {name: value for name, value in rows[0].case.items() if name not in (*LEVELS, "id")}
    whole_ms = [row.measured["ttft_ms"] + (row.case["osl"] - 1) * row.measured["tpot_ms"] for row in rows]
    rates = [math.log(1e3 * row.case["concurrency"] / ms) for row, ms in zip(rows, whole_ms, strict=True)]
    tpots = [math.log(row.measured["tpot_ms"]) for row in rows]
    order = np.argsort(rates)
    middle = 0.5 * (min(tpots) + max(tpots))
    rising = np.maximum.accumulate(np.array(tpots)[order])
    return Knee(group, case, math.exp(middle), math.exp(float(np.interp(middle, rising, np.array(rates)[order]))))


def predicted(knee: Knee) -> float:
    """The largest rate within the knee's TPOT."""
    case = from_dict({**knee.case, "rate": 1.0, "requests": 1})
    found = find_rate(
        lambda rate, count: deploy(case.stated(), replace(case, rate=rate, requests=count).traffic()),
        (Limit("tpot_ms", knee.tpot_ms),), curve=False, interval=False,
    )  # fmt: skip
    return found.rate_per_s


def main(argv: Sequence[str] | None = None) -> int:
    """Print a line a group and the mean; write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args(argv)
    rows = []
    for knee in knees(read(corpus())):
        name = " ".join(vars_of(knee.group))
        try:
            rate = predicted(knee)
        except PipewaveError as problem:
            sys.stderr.write(f"{name}: {problem}\n")
            continue
        error = rate / knee.rate - 1
        rows.append({"group": name, "tpot_ms": round(knee.tpot_ms, 3), "measured_per_s": round(knee.rate, 4),
                     "predicted_per_s": round(rate, 4), "error": round(error, 4)})  # fmt: skip
        print(f"{name:80} {knee.rate:9.3f} {rate:9.3f} {100 * error:+6.1f} %", flush=True)
    errors = np.array([row["error"] for row in rows])
    summary = {"groups": len(rows), "mean_error": round(float(np.abs(errors).mean()), 4),
               "median_signed": round(float(np.median(errors)), 4)}  # fmt: skip
    print(summary)
    whole.write(given.out, (json.dumps({**summary, "rows": rows}, indent=1) + "\n").encode())
    return 0


def vars_of(group: Group) -> list[str]:
    """The words of a group."""
    return [group.source.split(" ")[0], group.engine, group.gpu, group.model, group.precision]


if __name__ == "__main__":
    sys.exit(main())

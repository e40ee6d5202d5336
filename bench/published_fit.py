"""Constants of published servers, fitted on groups other than those they score: `python -m bench.published_fit`.

A server's front end (`software/front.json`) has two constants that no source states: how long a request is on its way
to the engine (`transit_us`), and how fast the engine's host is beside the one that engine times were measured on
(`host`). Every candidate pair answers a few rows of each group; a group's constants are the pair with the least error
on all other groups of its engine, error being the mean over groups of |log(predicted / measured)| of TTFT and TPOT.
`--write` puts the pair that is best on all groups into `software/front.json`.
"""

from __future__ import annotations

import argparse
import json
import math
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from bench.published_rows import OLD, Row, corpus, read
from pipewave.errors import PipewaveError
from pipewave.serving.answers import answer
from pipewave.serving.cases import from_dict
from pipewave.software import front

HOSTS = (1.0, 0.5)
TRANSITS_US = (2_000.0, 12_000.0)
LEAST = 3  # rows of a group that is asked
SCORED = ("ttft_ms", "tpot_ms")
Pair = tuple[float, float]
PAIRS: tuple[Pair, ...] = tuple(product(HOSTS, TRANSITS_US))
RESULTS = Path(__file__).parent / "results" / "published_fit.json"


def chosen_rows(rows: Sequence[Row], most: int) -> list[Row]:
    """Served rows of today's engines, at most so many of each group, spread over it."""
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        if row.case["mode"] == "serve" and not row.needs and row.group.source != OLD:
            groups.setdefault(row.group, []).append(row)
    large = [group for group in groups.values() if len(group) >= LEAST]
    spread = [np.unique(np.linspace(0, len(group) - 1, most).astype(int)) for group in large]
    return [group[i] for group, picks in zip(large, spread, strict=True) for i in picks]


def errors(row: Row) -> list[float] | None:
    """Mean |log error| of a row under each pair; None where it cannot be answered."""
    try:
        return [_error(row, pair) for pair in PAIRS]
    except PipewaveError:
        return None


def _error(row: Row, pair: Pair) -> float:
    found = answer(from_dict(row.case), with_pair(row.group.engine, pair))
    logs = [abs(math.log(found[name] / row.measured[name])) for name in SCORED if name in row.measured]
    return float(np.mean(logs)) if logs else 0.0


def with_pair(engine: str, pair: Pair) -> front.Front:
    """The front end of an engine with other fitted constants."""
    host, transit_us = pair
    return replace(front.of(engine), host=host, transit_us=transit_us)


def fit(rows: Sequence[Row], found: Sequence[list[float] | None]) -> dict[str, Any]:
    """For each engine the best pair on all groups, and for each group the best pair on the others."""
    table: dict[str, dict[Any, list[list[float]]]] = {}
    for row, error in zip(rows, found, strict=True):
        if error is not None:
            table.setdefault(row.group.engine, {}).setdefault(row.group, []).append(error)
    return {engine: _fit(groups) for engine, groups in table.items()}


def _fit(groups: dict[Any, list[list[float]]]) -> dict[str, Any]:
    means = {group: np.mean(errors, axis=0) for group, errors in groups.items()}
    everywhere = np.mean(list(means.values()), axis=0)
    out = []
    for group, own in means.items():
        others = np.mean([mean for key, mean in means.items() if key != group] or [own], axis=0)
        pair = int(np.argmin(others))
        out.append(asdict(group) | {"pair": PAIRS[pair], "error": round(float(own[pair]), 4)})
    best = int(np.argmin(everywhere))
    left_out = float(np.mean([row["error"] for row in out]))
    each = dict(zip(map(str, PAIRS), np.round(everywhere, 4).tolist(), strict=True))
    error = round(float(everywhere[best]), 4)
    return {"pair": PAIRS[best], "error": error, "left_out": round(left_out, 4), "every_pair": each, "groups": out}


def write(found: dict[str, Any]) -> None:
    """Put the pairs into the engines' front ends."""
    table = json.loads(front.FILE.read_text("utf-8"))
    for engine, one in found.items():
        table[engine] |= dict(zip(("host", "transit_us"), one["pair"], strict=True))
    front.FILE.write_text(json.dumps(table, indent=2) + "\n", "utf-8")


def main() -> None:
    """Fit, print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=None, help="corpus folder (default: PIPEWAVE_DATA)")
    parser.add_argument("--rows", type=int, default=4, help="of each group, at most")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--write", action="store_true", help="write the constants that ship")
    asked = parser.parse_args()
    rows = sorted(chosen_rows(read(asked.data or corpus()), asked.rows), key=lambda row: str(row.group))
    with ProcessPoolExecutor(asked.workers) as pool:
        found = fit(rows, list(pool.map(errors, rows, chunksize=asked.rows)))
    for engine, one in found.items():
        print(f"{engine}: host, transit {one['pair']}: error {one['error']}, left out {one['left_out']}")
        print("   ", one["every_pair"])
    if asked.write:
        write(found)
        RESULTS.write_text(json.dumps(found, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()

"""What two measurements of a call on a card differ by: again on one machine, on another, and in another run.

`loaded` rows were taken 64 calls at a time without rests, so that most of what they differ by is the SM clock; pairs
whose clocks agree within 2 % count as two.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipewave.measure.row_files import clock_mhz, rows
from qa.accuracy import family_name

# Kinds of second measurements: folders of the first and of the second. A data set has some of them. The H100's were
# taken in three leases; which card each gave is not known, so that `another machine` may be the same card.
OTHERS = {
    "again": ("", "repeats/same_card"),
    "another card": ("", "repeats/other_card"),
    "another run, loaded": ("", "loaded"),
    "another day": ("", "repeats/another_day"),
    "another start": ("repeats/another_day", "repeats/another_start"),
    "minutes later": ("repeats/other_machine", "repeats/same_machine"),
    "another machine": ("", "repeats/other_machine"),
    "ragged batches, another machine": ("ragged", "repeats/ragged"),
}
ONE_CLOCK = 0.02
TYPED = ("gemm", "fused_moe")
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Pair:
    """Second over first time of a call, less one, and whether both had the same SM clock."""

    difference: float
    one_clock: bool


def cold(found: Iterable[Row]) -> dict[str, Row]:
    """Rows under `cold` with L2 flushed by writing, by call and place of its pages."""
    wanted = (row for row in found if row["protocol"] == "cold" and row.get("flush", "write") == "write")
    return {call(row): row for row in wanted}


def call(row: Row) -> str:
    """What a row timed, whatever the protocol."""
    return json.dumps([row["case"], row["impl"], row.get("pages")], sort_keys=True)


def paired(first: Mapping[str, Row], second: Mapping[str, Row]) -> dict[str, list[Pair]]:
    """Pairs of the same call by family."""
    found: dict[str, list[Pair]] = defaultdict(list)
    for key in sorted(first.keys() & second.keys()):
        found[_family(first[key]["case"])].append(_pair(first[key], second[key]))
    return found


def _family(case: Mapping[str, Any]) -> str:
    return f"{family_name(case)} {case['dtype']}" if case["kernel"] in TYPED else family_name(case)


def _pair(first: Row, second: Row) -> Pair:
    clocks = clock_mhz(first), clock_mhz(second)
    same = all(clocks) and abs(math.log(clocks[0] / clocks[1])) < ONE_CLOCK  # type: ignore[operator]
    return Pair(second["latency_us"] / first["latency_us"] - 1, bool(same))


def table(folder: Path) -> list[dict[str, str | None]]:
    """One row a family: mean difference in % (calls) of each kind of second measurement, then at one clock."""
    kinds = {name: places for name, places in OTHERS.items() if all((folder / place).exists() for place in places)}
    read = {place: cold(rows(folder / place)) for places in kinds.values() for place in places}
    found = {name: paired(read[first], read[second]) for name, (first, second) in kinds.items()}
    families = sorted({family for pairs in found.values() for family in pairs})
    return [dict[str, str | None](family=family) | dict(_cells(family, found)) for family in families]


def _cells(family: str, found: Mapping[str, Mapping[str, list[Pair]]]) -> Iterator[tuple[str, str | None]]:
    for name, pairs in found.items():
        yield name, _mean(pairs.get(family, []))
    for name, pairs in found.items():
        yield f"{name}, one clock", _mean([pair for pair in pairs.get(family, []) if pair.one_clock])


def _mean(pairs: list[Pair]) -> str | None:
    if not pairs:
        return None
    return f"{100 * np.mean([abs(pair.difference) for pair in pairs]):.1f} % ({len(pairs):,})"

"""False alarms of `pipewave check`, and slow-downs that it misses: `python -m studies.told_gate [--write]`.

Published runs of one deployment, version and load that were made more than once, as baseline and result in both
orders; a slow-down is the same pair with every time 15 % longer. Deployments without a version are left out: nothing
tells whether two of their runs are of one.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from itertools import permutations
from pathlib import Path
from typing import Any

from pipewave.told.answers import RATE
from pipewave.told.check import Means, changes_of
from studies.published_rows import OLD, Row, corpus, read

LOAD = ("isl", "osl", "concurrency", "rate", "requests", "max_num_seqs")
SLOWER = 1.15
FILE = Path(__file__).parent / "results" / "told_gate.json"
Pairs = list[tuple[Means, Means]]


def repeated(rows: Sequence[Row]) -> Iterator[Pairs]:
    """Loads that two runs of a deployment have in common; each order of the two."""
    runs: dict[str, dict[tuple[str, int], dict[str, Means]]] = {}
    for row in rows:
        case = {name: value for name, value in row.case.items() if name != "id"}
        if row.group.source == OLD or not case.get("version") or "disagg" in row.needs or len(row.measured) < 2:
            continue
        load = str({name: case.pop(name, None) for name in LOAD})
        of = runs.setdefault(f"{row.group} {case}", {})
        turn = next(i for i in range(len(rows)) if load not in of.get((row.day, i), {}))
        of.setdefault((row.day, turn), {})[load] = row.measured
    for of in runs.values():
        for before, after in permutations(of.values(), 2):
            if common := sorted(before.keys() & after.keys()):
                yield [(before[load], after[load]) for load in common]


def slowed(means: Means) -> Means:
    """The same run, every time longer."""
    return {name: value / SLOWER if name == RATE else value * SLOWER for name, value in means.items()}


def score(pairs: Sequence[Pairs]) -> dict[str, Any]:
    """Percent of pairs that are found slower, as they are and slowed down."""

    def found(many: Sequence[Pairs]) -> float:
        return round(100.0 * sum(any(one.beyond for one in changes_of(each)) for each in many) / len(many), 1)

    return {
        "pairs": len(pairs),
        "false alarms": found(pairs),
        "slow-downs found": found([[(before, slowed(after)) for before, after in each] for each in pairs]),
    }


def main() -> None:
    """Score by number of loads, print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=None, help="corpus folder (default: PIPEWAVE_DATA)")
    parser.add_argument("--write", action="store_true", help=f"write {FILE.name}")
    options = parser.parse_args()
    pairs = list(repeated(read(options.data or corpus())))
    found = {
        "one load": score([one for one in pairs if len(one) == 1]),
        "two loads": score([one for one in pairs if len(one) == 2]),
        "three loads and more": score([one for one in pairs if len(one) > 2]),
        "all": score(pairs),
    }
    print(json.dumps(found, indent=1))
    if options.write:
        FILE.write_text(json.dumps(found, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()

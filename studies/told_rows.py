"""Published runs with what they hinge on, for `train.told_fit` and `studies.told`: `python -m studies.told_rows FILE`.

Each row is asked as it is and with each cause a little slower, with constants fitted without its group. FILE keeps what
is there; the same command again goes on.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipewave.errors import PipewaveError
from pipewave.physics.demand import Array
from pipewave.published.answers import answer
from pipewave.published.cases import Case, from_dict
from pipewave.software.front import Front
from pipewave.told.figures import MEASURED, Figures, measured_by, of
from pipewave.told.posterior import Points
from studies.published import left_out_constants
from studies.published_rows import OLD, Group, Row, corpus, read
from train.published_fit import with_constants

MOST = 36  # rows of a group, spread over it
LEAST = 4


@dataclass(frozen=True, slots=True, eq=False)
class Told:
    """A group's rows as points: what each figure is off by (log measured over predicted), its name and half-width."""

    group: Group
    points: Points  # run: number of the row
    off: Array
    names: tuple[str, ...]
    half: Array  # of the interval before anything is told

    @property
    def rows(self) -> int:
        """How many rows."""
        return int(self.points.run.max()) + 1


def chosen(rows: Sequence[Row]) -> list[Row]:
    """Rows of today's engines that a case says all of, at most so many of each group."""
    groups: dict[Group, list[Row]] = {}
    for row in rows:
        if row.answerable and not row.apart and row.group.source != OLD:
            groups.setdefault(row.group, []).append(row)
    picks = {group: np.unique(np.linspace(0, len(many) - 1, MOST).astype(int)) for group, many in groups.items()}
    return [many[i] for group, many in sorted(groups.items(), key=str) if len(many) >= LEAST for i in picks[group]]


def told(rows: Sequence[Row], file: Path) -> list[Told]:
    """Groups of rows with the figures that a file holds of them; rows that cannot be answered are left out."""
    known = {one["id"]: one for one in map(json.loads, file.read_text("utf-8").splitlines()) if "answer" in one}
    groups: dict[Group, list[tuple[Row, Figures]]] = {}
    for row in chosen(rows):
        if one := known.get(row.id):
            slopes = {name: np.array(each) for name, each in one["slopes"].items()}
            groups.setdefault(row.group, []).append((row, of(from_dict(row.case), one["answer"], slopes)))
    return [_told(group, many) for group, many in groups.items() if len(many) >= LEAST]


def _told(group: Group, many: Sequence[tuple[Row, Figures]]) -> Told:
    every = [
        (i, name, row, found)
        for i, (row, found) in enumerate(many)
        for name in MEASURED
        if name in row.measured and name in found.slopes
    ]
    points = Points.of([(f.slopes[name], f.parts[name], f.place, i, *f.kin) for i, name, _, f in every])
    off = np.array([math.log(row.measured[name] / f.answer[name]) for _, name, row, f in every])
    half = np.array([math.log(f.answer[f"{name}_high"] / f.answer[f"{name}_low"]) / 2 for _, name, _, f in every])
    return Told(group, points, off, tuple(name for _, name, *_ in every), half)


def _ask(task: tuple[dict[str, Any], Front | None]) -> dict[str, Any]:
    case, front = task
    try:
        found = measured_by(from_dict(case), lambda pace: answer(from_dict(case), front, pace))
    except PipewaveError as problem:
        return {"id": case["id"], "error": problem.message}
    numbers = {name: value for name, value in found.answer.items() if isinstance(value, (int, float))}
    return {"id": case["id"], "answer": numbers, "slopes": {name: one.tolist() for name, one in found.slopes.items()}}


def _deployment(task: tuple[dict[str, Any], Front | None]) -> str:
    """Rows of one deployment follow each other: its tables are kept."""
    case: Case = from_dict(task[0])
    return str(case.deployment)


def main() -> None:
    """Ask what FILE does not hold yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--data", type=Path, default=None, help="corpus folder (default: PIPEWAVE_DATA)")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=600)
    options = parser.parse_args()
    until, own = time.monotonic() + options.seconds, left_out_constants()
    done = {json.loads(line)["id"] for line in options.file.read_text("utf-8").splitlines()} if options.file.exists() else set()
    rows = [row for row in chosen(read(options.data or corpus())) if row.id not in done]
    tasks = sorted(((row.case, _front(row, own)) for row in rows), key=_deployment)
    with ProcessPoolExecutor(options.workers) as pool, options.file.open("a", encoding="utf-8") as file:
        for at in range(0, len(tasks), 64):
            if time.monotonic() > until:
                break
            for found in pool.map(_ask, tasks[at : at + 64], chunksize=16):
                file.write(json.dumps(found) + "\n")
            file.flush()
    print(f"{len(rows)} rows were left")


def _front(row: Row, own: dict[tuple[str, ...], Any]) -> Front | None:
    constants = own.get(tuple(getattr(row.group, name) for name in Group.__slots__))
    return with_constants(row.group.engine, constants) if constants and row.case["mode"] == "serve" else None


if __name__ == "__main__":
    main()

"""What three told rows of a published server do for answers about it: `python -m studies.told_rows FIGURES`.

FIGURES holds published rows as answered, and how each figure moves with every cause; `--ask` works out what it does not
hold yet, with constants fitted without a row's group. Of each group, three rows are drawn at random, told, and all its
other rows scored, twenty times; by priors that `train.told_fit` fitted without that machine. Beside them stand the
answers as they were, and all of them times the one factor that fits what was told.
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
from pipewave.published.cases import MEASURED, from_dict
from pipewave.software.front import Front
from pipewave.told.answers import RATE, Figures, figures_of, measured_by
from pipewave.told.posterior import NORMAL, PLACES, Points, Posterior, Prior
from studies.published import left_out_constants
from studies.published_rows import OLD, Group, Row, corpus, read
from train.published_fit import with_constants

MOST = 36  # rows of a group, spread over it
LEAST = 4
TOLD = 3  # rows
DRAWS = 20
FOLDS = 5
WORSE = 1.1  # times the error before telling
SLICE = 64  # rows asked before they are written
RESULTS = Path(__file__).parent / "results"
LEFT_OUT = RESULTS / "told_fit.json"  # priors by fold
FILE = RESULTS / "told_rows.json"


@dataclass(frozen=True, slots=True, eq=False)
class Told:
    """A group's rows as points: what each figure is off by (log measured over predicted), its name and half-width."""

    group: Group
    points: Points  # run: number of the row
    off: Array
    names: Array  # of the figures
    half: Array  # of the interval before anything is told

    @property
    def rows(self) -> int:
        """How many rows."""
        return int(self.points.run.max()) + 1

    @property
    def machine(self) -> tuple[str, str, str]:
        """Whose servers it is of."""
        return self.group.source, self.group.engine, self.group.gpu


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
            groups.setdefault(row.group, []).append((row, figures_of(from_dict(row.case), one["answer"], slopes)))
    return [_told(group, many) for group, many in groups.items() if len(many) >= LEAST]


def _told(group: Group, many: Sequence[tuple[Row, Figures]]) -> Told:
    every = [
        (i, name, row, found)
        for i, (row, found) in enumerate(many)
        for name in MEASURED
        if name in row.measured and name in found.slopes
    ]
    points = Points.of([(f.slopes[name], f.parts[name], f.place, i, *f.siblings) for i, name, _, f in every])
    off = np.array([math.log(row.measured[name] / f.answer[name]) for _, name, row, f in every])
    half = np.array([math.log(f.answer[f"{name}_high"] / f.answer[f"{name}_low"]) / 2 for _, name, _, f in every])
    return Told(group, points, off, np.array([name for _, name, *_ in every]), half)


def folds(groups: Sequence[Told]) -> list[int]:
    """Which fold each group is in; a machine is in one, and folds are about alike."""
    machines: dict[tuple[str, str, str], int] = {}
    for group in groups:
        machines[group.machine] = machines.get(group.machine, 0) + 1
    loads, where = [0] * FOLDS, {}
    for machine, count in sorted(machines.items(), key=lambda item: (-item[1], item[0])):
        where[machine] = loads.index(min(loads))
        loads[where[machine]] += count
    return [where[group.machine] for group in groups]


def siblings(groups: Sequence[Told]) -> list[tuple[Told, int]]:
    """Pairs of groups of one machine and two models as one, and how many rows the first of them has."""
    pairs = [(a, b) for a in groups for b in groups if a.machine == b.machine and a.group.model != b.group.model]
    return [(_joined(a, b), a.rows) for a, b in pairs]


def splits(groups: Sequence[Told]) -> list[tuple[Told, int]]:
    """Rows of two numbers of GPUs of a group, and how many are of the first of them."""
    found = []
    for group in groups:
        gpus = group.points.place[:, PLACES.index("gpus")]
        every = [(a, b) for a in np.unique(gpus) for b in np.unique(gpus) if a != b]
        parts = [(_taken(group, gpus == a), _taken(group, gpus == b)) for a, b in every]
        found += [(_joined(a, b), a.rows) for a, b in parts if a.rows >= LEAST]
    return found


def _taken(group: Told, which: Array) -> Told:
    points = renumbered(group.points.take(which))
    return Told(group.group, points, group.off[which], group.names[which], group.half[which])


def _joined(a: Told, b: Told) -> Told:
    """Two groups as one."""
    columns = {name: np.concatenate([getattr(a.points, name), getattr(b.points, name)]) for name in Points.__slots__}
    columns["run"] = np.concatenate([a.points.run, b.points.run + a.rows])
    off, names, half = (np.concatenate([getattr(a, n), getattr(b, n)]) for n in ("off", "names", "half"))
    return Told(b.group, Points(**columns), off, names, half)


def renumbered(points: Points) -> Points:
    """Points whose runs are numbered from zero."""
    numbers: Any = np.unique(points.run, return_inverse=True)[1]
    return Points(points.slopes, points.parts, points.place, numbers, points.software, points.model)


@dataclass(slots=True)
class Score:
    """Of one group: errors by figure before, by one factor and after; how often intervals hold, and their width."""

    before: dict[str, float]
    factor: dict[str, float]
    after: dict[str, float]
    held: float
    width: float  # over that before


def score(group: Told, prior: Prior, *, first: int | None = None) -> Score:
    """Of rows that are not told, or, with `first`, of those after the first, told by some of the first."""
    rng = np.random.default_rng(0)
    many = [_one(group, prior, rng.choice(first or group.rows, TOLD, replace=False), first) for _ in range(DRAWS)]
    before, factor, after = (_means([one[k] for one in many]) for k in range(3))
    return Score(
        before, factor, after, float(np.mean([one[3] for one in many])), float(np.median([one[4] for one in many]))
    )


def _means(many: Sequence[dict[str, float]]) -> dict[str, float]:
    """Means by name, each over those that have it."""
    names = dict.fromkeys(name for one in many for name in one)
    return {name: float(np.mean([one[name] for one in many if name in one])) for name in names}


def _one(group: Told, prior: Prior, picked: Any, first: int | None) -> tuple[Any, ...]:
    is_told = np.isin(group.points.run, picked)
    asked = ~is_told if first is None else group.points.run >= first
    found = Posterior(prior, renumbered(group.points.take(is_told)), group.off[is_told])
    mean, variance = found.at(group.points.take(asked))
    half = NORMAL * prior.width[0] * np.sqrt(variance)
    sign = np.where(group.names == RATE, -1.0, 1.0)
    one = float(np.median(group.off[is_told] * sign[is_told])) * sign[asked]
    truth, names = group.off[asked], group.names[asked]

    def errors(guess: Array) -> dict[str, float]:
        each = np.abs(np.exp(guess - truth) - 1.0)
        return {str(name): 100.0 * float(each[names == name].mean()) for name in np.unique(names)}

    held = np.mean(np.abs(truth - mean) <= half)
    return errors(np.zeros_like(truth)), errors(one), errors(mean), held, np.median(half / group.half[asked])


def table(scores: Sequence[tuple[Told, Score]]) -> dict[str, Any]:
    """Means over groups by engine and figure, and of all groups what telling does."""
    engines = sorted({group.group.engine for group, _ in scores})
    out: dict[str, Any] = {
        name: _engine([one for group, one in scores if group.group.engine == name]) for name in engines
    }
    alone = [one for _, one in scores]
    mean = np.array([[np.mean([*one.before.values()]), np.mean([*one.after.values()])] for one in alone])
    figures = [one.after[name] > WORSE * one.before[name] for one in alone for name in one.after]
    shares: dict[str, Any] = {
        "groups made worse by a tenth": mean[:, 1] > WORSE * mean[:, 0],
        "figures made worse by a tenth": figures,
        "groups made better": mean[:, 1] < mean[:, 0],
        "intervals hold": [one.held for one in alone],
    }
    percent = {name: round(100 * float(np.mean(each)), 1) for name, each in shares.items()}
    return out | percent | {"width over that before": round(float(np.median([one.width for one in alone])), 2)}


def _engine(scores: Sequence[Score]) -> dict[str, Any]:
    """Mean errors of each figure before telling, by one factor, and after; in percent."""
    columns = [_means([getattr(one, when) for one in scores]) for when in ("before", "factor", "after")]
    return {"groups": len(scores)} | {name: [round(column[name], 1) for column in columns] for name in columns[2]}


def scores(groups: Sequence[Told], priors: Sequence[Prior]) -> dict[str, Any]:
    """Of groups told by their own rows, by those of another number of GPUs, and by another model's at that source."""
    fold = {group.machine: k for group, k in zip(groups, folds(groups), strict=True)}
    own = [(group, score(group, priors[fold[group.machine]])) for group in groups]
    pairs = siblings(groups)
    other = [(both, score(both, priors[fold[both.machine]], first=first)) for both, first in pairs]
    split = [(both, score(both, priors[fold[both.machine]], first=first)) for both, first in splits(groups)]
    return {
        "own rows": table(own),
        "rows of another number of GPUs": table(split),
        "rows of another model": table(other),
    }


def ask(rows: Sequence[Row], file: Path, workers: int, seconds: float) -> int:
    """Append what the file does not hold yet, as far as there is time; how many rows are left."""
    until, own = time.monotonic() + seconds, left_out_constants()
    done = {json.loads(line)["id"] for line in file.read_text("utf-8").splitlines()} if file.exists() else set()
    tasks = [(row.case, _front(row, own)) for row in rows if row.id not in done]
    # rows of one deployment follow each other: its tables are kept
    tasks.sort(key=lambda task: str(from_dict(task[0]).deployment))
    at = 0
    with ProcessPoolExecutor(workers) as pool, file.open("a", encoding="utf-8") as out:
        while at < len(tasks) and time.monotonic() < until:
            out.writelines(json.dumps(found) + "\n" for found in pool.map(_ask, tasks[at : at + SLICE], chunksize=16))
            out.flush()
            at += SLICE
    return max(len(tasks) - at, 0)


def _ask(task: tuple[dict[str, Any], Front | None]) -> dict[str, Any]:
    case, front = task
    try:
        found = measured_by(from_dict(case), lambda pace: answer(from_dict(case), front, pace))
    except PipewaveError as problem:
        return {"id": case["id"], "error": problem.message}
    numbers = {name: value for name, value in found.answer.items() if isinstance(value, (int, float))}
    return {"id": case["id"], "answer": numbers, "slopes": {name: one.tolist() for name, one in found.slopes.items()}}


def _front(row: Row, own: dict[tuple[str, ...], Any]) -> Front | None:
    constants = own.get(tuple(getattr(row.group, name) for name in Group.__slots__))
    return with_constants(row.group.engine, constants) if constants and row.case["mode"] == "serve" else None


def main() -> None:
    """Ask what FIGURES does not hold, or score."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("figures", type=Path)
    parser.add_argument("--data", type=Path, default=None, help="corpus folder (default: PIPEWAVE_DATA)")
    parser.add_argument("--ask", action="store_true", help="work out what FIGURES does not hold yet")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--write", action="store_true", help=f"write the scores to {FILE.name}")
    options = parser.parse_args()
    rows = read(options.data or corpus())
    if options.ask:
        print(f"{ask(chosen(rows), options.figures, options.workers, options.seconds)} rows are left")
        return
    priors = [Prior.of(one) for one in json.loads(LEFT_OUT.read_text("utf-8"))]
    found = scores(told(rows, options.figures), priors)
    print(json.dumps(found, indent=1))
    if options.write:
        FILE.write_text(json.dumps(found, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()

"""What published deployments leave open, as half-widths of intervals: `python -m train.published_cover ANSWERS`.

ANSWERS are those of `studies.published --answers`; of those with `--recipes "no model"` it says what a deployment needs
whose launch is not known. Four parts of `pipewave.simulate.interval`:

* `servers`: for each engine and mean, the half-width beside what kernels (and an assumed version) leave open that holds
  nine rows in ten of groups that it was not read off, each group counting alike. It is a quantile of rows whose version
  is given. Groups differ more than their rows do, so the quantile is that of `LEVELS` that, read off all other groups,
  comes nearest to holding nine in ten of the group left out.
* `older`: the same of engines before today's generation (Argonne's runs: vLLM V0, TensorRT-LLM 0.x).
* `ranks`: what runs with data-parallel attention need beside the rest, all engines together, read off groups as that of
  servers is (`--ranks`, with ANSWERS of `studies.published --needs --only "attention DP"`).
* `version`: how far answers move when the version is left out of the case (`--versions`), nine in ten of them.

`--write` puts the half-widths of all groups into `simulate/interval.json`.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipewave.errors import PipewaveError
from pipewave.published.answers import answer
from pipewave.published.cases import from_dict
from pipewave.published.unstated import fill
from pipewave.simulate import interval
from pipewave.simulate.interval import Uncertainty, server_of
from pipewave.step import find_engine
from studies.published_rows import OLD, Group, Row, corpus, read
from train import cards
from train.two_levels import weighted_quantile

HELD = 0.9
LEVELS = tuple(round(0.7 + 0.025 * i, 3) for i in range(13))
LEAST_GROUPS = 5  # that a half-width is read off; with fewer that of TPOT stands in
LEAST_ROWS = 3  # of a group that counts: one row alone would weigh as much as ninety
ASKED = 3  # rows of a group that are asked without their version


@dataclass(frozen=True, slots=True)
class Point:
    """One mean of one row: its group, |log error|, what kernels and an assumed version leave open."""

    group: Group
    metric: str
    error: float
    known: float
    version_given: bool = True

    @property
    def needed(self) -> float:
        """The half-width beside the known one that would just hold it."""
        return math.sqrt(max(self.error**2 - self.known**2, 0.0))


def points(rows: Sequence[Row], answers: dict[str, dict[str, Any]]) -> list[Point]:
    """Every scored mean of today's engines and of those before."""
    old = [row for row in rows if not row.needs and row.group.source == OLD and not row.apart]
    return _points([*filter(_counts, rows), *old], answers)


def _points(rows: Sequence[Row], answers: dict[str, dict[str, Any]]) -> list[Point]:
    good = [row for row in rows if "ttft_ms" in answers.get(row.id, {})]
    every = [_point(row, name, value, answers[row.id]) for row in good for name, value in _measured(row).items()
             if name in answers[row.id]]  # fmt: skip
    sizes = Counter((point.group, point.metric) for point in every)
    return [point for point in every if sizes[point.group, point.metric] >= LEAST_ROWS]


def _measured(row: Row) -> dict[str, float]:
    """The means of a run; a request's whole time is its first token's and all later ones', where it is not stated."""
    means = row.measured
    if {"ttft_ms", "tpot_ms"} <= set(means) and "e2e_ms" not in means and "osl" in row.case:
        return means | {"e2e_ms": means["ttft_ms"] + (row.case["osl"] - 1) * means["tpot_ms"]}
    return means


def _counts(row: Row) -> bool:
    """Today's servers, also of families that could not be read when the rows were collected; ranks have their own."""
    plain = row.answerable and row.ranks == 1
    return plain and row.group.source != OLD and not row.apart


def _point(row: Row, name: str, value: float, found: dict[str, Any]) -> Point:
    """A mean of a row; its interval less what its server leaves open is what was known."""
    case = from_dict(row.case)
    setup, ranks = fill(case.stated(), case.traffic()).setup, row.ranks > 1
    named, asked = not setup.version_assumed, find_engine(setup.engine)
    half, open_ = math.log(found[f"{name}_high"] / found[name]), Uncertainty(0.0, server_of(asked), named, ranks)
    read_off = open_.uneven(name) if ranks else open_.server(name)
    known = math.sqrt(max(half**2 - read_off**2, 0.0))
    return Point(row.group, name, abs(math.log(found[name] / value)), known, named)


def quantile(found: Sequence[Point], level: float) -> float:
    """The half-width that holds such a share, each group counting alike."""
    sizes = Counter(point.group for point in found)
    needed, weight = np.array([(point.needed, 1.0 / sizes[point.group]) for point in found]).T
    return weighted_quantile(needed, weight, level)


def coverage(found: Sequence[Point], level: float) -> float:
    """Mean share of each group that the others' half-width of a level holds."""
    shares = []
    for group in dict.fromkeys(point.group for point in found):
        half = quantile([point for point in _given(found) if point.group != group], level)
        shares.append(np.mean([point.needed <= half for point in found if point.group == group]))
    return float(np.mean(shares))


def level(found: Sequence[Point]) -> float:
    """The level of the others that comes nearest to holding nine in ten of groups left out."""
    return min(LEVELS, key=lambda one: abs(coverage(found, one) - HELD))


def _given(found: Sequence[Point]) -> list[Point]:
    return [point for point in found if point.version_given]


def widths(found: Sequence[Point]) -> dict[str, float]:
    """Half-widths by mean, of the points of one engine; a mean of too few groups has that of TPOT, else
    the widest; throughput that of a whole request, by whose time clients that wait send the next.
    """
    own = {name: [point for point in found if point.metric == name] for name in interval.METRICS}
    enough = {name: many for name, many in own.items() if len({p.group for p in many}) >= LEAST_GROUPS}
    known = {name: round(quantile(_given(many), level(many)), 4) for name, many in enough.items()}
    usual = known.get("tpot_ms", max(known.values()))
    known = {"e2e_ms": usual} | known
    return {
        name: known.get(name, known["e2e_ms"] if name == "output_tokens_per_s" else usual) for name in interval.METRICS
    }


def version_widths(rows: Sequence[Row]) -> dict[str, float]:
    """How far means move, nine in ten, when the version is not given; each group counts alike."""
    groups: dict[Group, list[Row]] = {}
    for row in rows:
        case = from_dict(row.case)
        if _counts(row) and case.mode == "serve" and not fill(case.stated(), case.traffic()).setup.version_assumed:
            groups.setdefault(row.group, []).append(row)
    asked = [row for many in groups.values() for row in many[:: max(len(many) // ASKED, 1)][:ASKED]]
    moved = [point for row in asked for point in _moved(row)]
    own = {name: [point for point in moved if point.metric == name] for name in interval.METRICS}
    return {name: round(quantile(many, HELD), 4) for name, many in own.items()}


def _moved(row: Row) -> list[Point]:
    case = {name: value for name, value in row.case.items() if name != "version"}
    try:
        named, unnamed = (answer(from_dict(one)) for one in (row.case, case))
    except PipewaveError:
        return []
    names = [name for name in interval.METRICS if name in named and name in unnamed]
    return [Point(row.group, name, abs(math.log(unnamed[name] / named[name])), 0.0) for name in names]


def _servers(table: dict[str, Any], found: Sequence[Point]) -> Iterator[tuple[str, dict[str, Any], list[Point]]]:
    """Where the half-widths of each engine's servers are kept, today's and older ones', and the points they rest on."""
    for engine in dict.fromkeys(point.group.engine for point in found):
        for old in (False, True):
            own = [point for point in found if point.group.engine == engine and (point.group.source == OLD) == old]
            if own:
                yield engine, table["older"][engine] if old else table["servers"].setdefault(engine, {}), own


def _show(label: str, place: dict[str, Any], own: Sequence[Point]) -> None:
    for name in interval.METRICS:
        many = [point for point in own if point.metric == name]
        if len({p.group for p in many}) >= LEAST_GROUPS:
            print(f"{label:8} {name:20} {len({p.group for p in many}):3d} groups, level {level(many)}, "
                  f"held when left out {100 * coverage(many, level(many)):.1f} %, "
                  f"half-width {place[name]}")  # fmt: skip


def main() -> None:
    """Print coverage on groups left out, and write the half-widths where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("answers", type=Path)
    parser.add_argument("--data", type=Path, default=None, help="corpus folder (default: PIPEWAVE_DATA)")
    parser.add_argument("--versions", action="store_true", help="ask some rows without their version, too")
    parser.add_argument("--ranks", action="store_true", help="ANSWERS are of runs with data-parallel attention")
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    answers = {one["id"]: one for one in map(json.loads, asked.answers.read_text("utf-8").splitlines())}
    rows = read(asked.data or corpus())
    table = cards.read(interval.FILE)
    if asked.versions:
        table["version"] = version_widths(rows)
    if asked.ranks:
        of_ranks = [row for row in rows if row.ranks > 1 and not row.apart]
        parts = [("ranks", table["ranks"], _points(of_ranks, answers))]
    else:
        parts = list(_servers(table, points(rows, answers)))
    for label, place, own in parts:
        place |= widths(own)
        _show(label, place, own)
    print(json.dumps(table, indent=1))
    if asked.write:
        cards.ship(interval.FILE, table, indent=2)


if __name__ == "__main__":
    main()

"""What published deployments leave open, as half-widths of intervals: `python -m bench.published_cover ANSWERS`.

ANSWERS are those of `bench.published --answers`. For each mean, the half-width that holds nine rows in ten of all other
groups, each group counting alike, is tried on the group left out; the mean over groups of the share it holds is the
coverage. `--write` puts the half-widths of all groups into `serving/interval.json`.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.published_rows import OLD, Group, Row, corpus, of_peak, read
from pipewave.files import manifest
from pipewave.serving import interval
from pipewave.serving.answers import version_given
from pipewave.serving.cases import from_dict

HELD = 0.9
LEAST_GROUPS = 3  # that a half-width is read off, or that of TPOT stands in
LEAST_ROWS = 3  # of a group that counts: one row alone would weigh as much as ninety


@dataclass(frozen=True, slots=True)
class Point:
    """One mean of one row: its group, whether the version was given, |log error|, and what the kernels leave open."""

    group: Group
    metric: str
    version_given: bool
    error: float
    kernels: float

    @property
    def needed(self) -> float:
        """The half-width beside the kernels' that would just hold it."""
        return math.sqrt(max(self.error**2 - self.kernels**2, 0.0))


def points(rows: Sequence[Row], answers: dict[str, dict[str, Any]]) -> list[Point]:
    """Every scored mean of today's engines."""
    good = [
        row
        for row in rows
        if not row.needs and row.group.source != OLD and of_peak(row) <= 1.0 and "ttft_ms" in answers.get(row.id, {})
    ]
    every = [_point(row, name, value, answers[row.id]) for row in good for name, value in row.measured.items()
             if name in answers[row.id]]  # fmt: skip
    sizes = Counter((point.group, point.metric) for point in every)
    return [point for point in every if sizes[point.group, point.metric] >= LEAST_ROWS]


def _point(row: Row, name: str, value: float, answer: dict[str, Any]) -> Point:
    known = version_given(from_dict(row.case))
    half = math.log(answer[f"{name}_high"] / answer[name])
    kernels = math.sqrt(max(half**2 - interval.half_width(name, 0.0, version_given=known) ** 2, 0.0))
    return Point(row.group, name, known, abs(math.log(answer[name] / value)), kernels)


def quantile(found: Sequence[Point]) -> float:
    """The half-width that holds nine in ten, each group counting alike."""
    sizes: dict[Group, int] = {}
    for point in found:
        sizes[point.group] = sizes.get(point.group, 0) + 1
    ranked = sorted(found, key=lambda point: point.needed)
    weight = np.cumsum([1.0 / sizes[point.group] for point in ranked])
    return ranked[int(np.searchsorted(weight, HELD * weight[-1]))].needed


def width(found: Sequence[Point], metric: str, version_given: bool) -> float:
    """The half-width of a mean, never less where less is known; without enough groups of its kind, that of all rows of
    the mean, and without those, that of TPOT."""
    own = [point for point in found if point.metric == metric]
    if _groups(own) < LEAST_GROUPS:
        return width(found, "tpot_ms", version_given) if metric != "tpot_ms" else quantile(own)
    kinds = [
        [point for point in own if point.version_given == kind] for kind in (True, False)[: 1 if version_given else 2]
    ]
    enough = [quantile(kind) for kind in kinds if _groups(kind) >= LEAST_GROUPS]
    return max(enough) if enough else quantile(own)


def _groups(found: Sequence[Point]) -> int:
    return len({point.group for point in found})


def coverage(found: Sequence[Point], metric: str) -> tuple[int, float]:
    """Groups, and the mean share of each that the others' half-width holds."""
    shares = []
    for group in dict.fromkeys(point.group for point in found if point.metric == metric):
        others = [point for point in found if point.group != group]
        own = [point for point in found if point.group == group and point.metric == metric]
        shares.append(np.mean([point.needed <= width(others, metric, point.version_given) for point in own]))
    return len(shares), float(np.mean(shares)) if shares else math.nan


def main() -> None:
    """Print coverage on groups left out, and write the half-widths where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("answers", type=Path)
    parser.add_argument("--data", type=Path, default=None, help="corpus folder (default: PIPEWAVE_DATA)")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    answers = {one["id"]: one for one in map(json.loads, options.answers.read_text("utf-8").splitlines())}
    found = points(read(options.data or corpus()), answers)
    for name in interval.METRICS:
        groups, share = coverage(found, name)
        print(f"{name:20} {groups:3d} groups, held when left out {100 * share:.1f} %")
    half = {kind: {name: round(width(found, name, kind == "version_given"), 4) for name in interval.METRICS}
            for kind in ("version_given", "version_assumed")}  # fmt: skip
    print(json.dumps(half, indent=1))
    if options.write:
        table = {"source": "published runs of today's engines; python -m bench.published_cover --write"}
        interval.FILE.write_text(json.dumps(table | {"half_widths": half}, indent=2) + "\n", "utf-8")
        manifest.write()


if __name__ == "__main__":
    main()

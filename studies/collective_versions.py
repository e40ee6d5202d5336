"""`python -m studies.collective_versions --runs DIR [--json FILE]`: collectives of older versions.

DIR is where `python -m train fit` left its runs. Sizes are held out, or whole versions. Rows are of the graph protocol
and of versions that the tables of newest versions do not count. A cell is a GPU and version; means are over cells.
Intervals of a version left out
are those of known software, and at least the half-width that the other thirds of versions of operations alike call for.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from pipewave.kernels.collective.family import SMALL_ALL_REDUCE
from pipewave.nets.weights_metadata import BASES, Interval, half_width, intervals_of
from studies.collective_sizes import answered, show
from train.evaluate import Errors, held_out, macro, scored, table
from train.intervals import calibrated, informative
from train.nets.collective import NETS as SMALL
from train.nets.collective import OPS
from train.rows import Rows, load
from train.run import Predictions, Scored, load_predictions
from train.software import one_width
from train.splits import by_name, meet

CONDITIONS = ("protocol=graph", "counted=no")
NETS = (*(op for op in OPS if op != "send_recv"), SMALL_ALL_REDUCE)  # sends were measured with one version each


@dataclass(frozen=True, slots=True)
class Run:
    """What members of a net say of rows that they do not know."""

    net: str
    rows: Rows
    predictions: Predictions

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read what a run left."""
        return cls(folder.name, load(folder / "rows.npz"), load_predictions(folder / "net"))

    def thirds(self) -> list[str]:
        """The splits that leave out a third of the versions."""
        return [name for name in self.predictions if name.startswith("ver:")]

    def scored(self, name: str) -> NDArray[np.int64]:
        """Which rows a split scores that count here, as places in its predictions: none that another net answers."""
        counted = meet(self.rows, CONDITIONS) & answered(self.net, self.rows)
        return np.flatnonzero(counted[by_name(name, self.rows).score])

    def errors(self, name: str) -> tuple[NDArray[np.float64], list[str]]:
        """Absolute log errors of a split's rows, and the operation, GPU and version of each."""
        at = self.scored(name)
        index = by_name(name, self.rows).score[at]
        gpu, stack = (self.rows.columns[column].text()[index] for column in ("gpu", "stack"))
        cells = [f"{self.net}|{one}|{other}" for one, other in zip(gpu, stack, strict=True)]
        return np.abs(self.rows.residual[index] - self.predictions[name][0][at]), cells

    def known(self) -> tuple[Interval, ...]:
        """Intervals of known software, from sizes held out."""
        folds = {name: one for name, one in self.predictions.items() if name.startswith("fold:")}
        found = calibrated(informative(held_out(self.rows, folds)))
        return intervals_of(found, BASES[0], "graph")


def others(name: str, runs: Sequence[Run]) -> Interval:
    """The half-width that the thirds of versions other than `name` call for, of these operations."""
    found = [run.errors(third) for run in runs for third in run.thirds() if third != name]
    return one_width(np.concatenate([error for error, _ in found]), [cell for _, cells in found for cell in cells])


def least_of(run: Run, runs: Sequence[Run]) -> dict[str, Interval]:
    """The least interval of each third of a run's versions."""
    alike = [one for one in runs if SMALL[one.net].one_width == SMALL[run.net].one_width]
    return {name: others(name, alike) for name in run.thirds()}


def left_out(run: Run, least: Mapping[str, Interval]) -> Iterator[Scored]:
    """Rows of each third of versions, in the intervals of known software and of the other thirds."""
    known = run.known()
    for name in run.thirds():
        at, (mean, scale) = run.scored(name), run.predictions[name]
        half = half_width([*known, least[name]], scale[at])
        yield Scored(name, by_name(name, run.rows).score[at], mean[at], half)


def figures(run: Run, least: Mapping[str, Interval]) -> dict[str, Errors]:
    """Means over GPUs and versions: sizes held out, versions left out."""
    kept = meet(run.rows, CONDITIONS) & answered(run.net, run.rows)
    parts = {"sizes": scored("fold", run.rows, run.predictions, kept), "versions": [*left_out(run, least)]}
    return {name: macro(table(found, run.rows, ["gpu", "stack"])) for name, found in parts.items()}


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    runs = [Run.read(options.runs / net) for net in NETS]
    lines = [
        {"net": run.net, "left out": kind, "rows": one.rows, "mape": one.mape, "inside": one.coverage}
        for run in runs
        for kind, one in figures(run, least_of(run, runs)).items()
    ]
    show(lines, options.json)


if __name__ == "__main__":
    main()

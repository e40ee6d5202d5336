"""`python -m bench.collective_versions --runs DIR [--json FILE]`: collectives of older versions.

DIR is where `python -m train fit` left its runs. Sizes are held out, or whole versions. Rows are of the graph protocol
and of versions that the tables of newest versions do not count. A cell is a GPU and version; means are over cells.
Intervals of a version left out are those that the other thirds of versions call for.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.collective_sizes import show
from pipewave.kernels.collective.analyse import SMALL_ALL_REDUCE
from train.evaluate import Errors, macro, scored, table
from train.intervals import LEVEL, balance
from train.nets.collective import OPS
from train.predictions import Predictions, load_predictions
from train.rows import Rows, load
from train.scored import Scored
from train.splits import by_name, meet
from train.two_levels import weighted_quantile

CONDITIONS = ("protocol=graph", "counted=no")
NETS = (*(op for op in OPS if op != "send_recv"), SMALL_ALL_REDUCE)  # sends were measured with one version each


def left_out(rows: Rows, predictions: Predictions, kept: NDArray[np.bool_]) -> Iterator[Scored]:
    """Rows of each third of versions, with a multiple of the net's scale that holds the other thirds."""
    parts = {name: by_name(name, rows).score for name in predictions if name.startswith("ver:")}
    for name, index in parts.items():
        others = [_needed(rows, predictions, other, at, kept) for other, at in parts.items() if other != name]
        ratio, weight = (np.concatenate(each) for each in zip(*others, strict=True))
        mean, scale = predictions[name]
        at, half = kept[index], weighted_quantile(ratio, weight, LEVEL) * scale
        yield Scored(name, index[at], mean[at], half[at])


def _needed(
    rows: Rows, predictions: Predictions, name: str, index: NDArray[np.int64], kept: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Multiples of the scale that rows of a third call for, GPUs counting alike."""
    (mean, scale), at = predictions[name], kept[index]
    ratio = np.abs(rows.residual[index] - mean) / scale
    return ratio[at], balance(rows.columns["gpu"].codes[index][at])


def figures(folder: Path) -> dict[str, Errors]:
    """Means over GPUs and versions: sizes held out, versions left out."""
    rows, predictions = load(folder / "rows.npz"), load_predictions(folder / "net")
    kept = meet(rows, CONDITIONS)
    parts = {"sizes": scored("fold", rows, predictions, kept), "versions": [*left_out(rows, predictions, kept)]}
    return {name: macro(table(found, rows, ["gpu", "stack"])) for name, found in parts.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    lines = [
        {"net": net, "left out": kind, "rows": one.rows, "mape": one.mape, "inside": one.coverage}
        for net in NETS
        for kind, one in figures(options.runs / net).items()
    ]
    show(lines, options.json)


if __name__ == "__main__":
    main()

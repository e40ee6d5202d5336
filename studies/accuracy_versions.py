"""`python -m studies.accuracy_versions [--runs DIR] [--json FILE]`: errors version by version, every version alike.

Rows of the public corpus on shapes that shipped weights never saw, of every version of every framework on every GPU,
asked by stack, without the implementation's name, and (`named`) with it. A cell is a GPU, framework and version; means
are over cells, by what `software` says of the answer. With `--runs`, what members trained without a version say of it
as well (`python -m train versions`): `left out`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from corpus.select import HELD_OUT, by_default
from train.outcomes import KNOWN, TABLES, Outcome, by_weights, rows

AWAY = (0, 1, 2, 3)  # places of versions from the one that was measured
EACH = 100  # rows of a GPU, version and type, groups of shapes alike
Frames = Mapping[str, pd.DataFrame]
NAMES = ("evaluation", "gpu", "stack", "software")


def figures(found: Sequence[Outcome]) -> dict[str, float]:
    """Mean absolute error, bias and share inside the interval in %, of rows of one cell."""
    off, half = np.array([(one.off, one.half) for one in found]).T
    error = np.expm1(off)
    means = {"mape": np.abs(error).mean(), "bias": error.mean(), "inside": (np.abs(off) <= half).mean()}
    return {"rows": len(found)} | {name: round(100 * float(value), 2) for name, value in means.items()}


def cells(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """Figures of every cell."""
    grouped: dict[tuple[str, ...], list[Outcome]] = defaultdict(list)
    for one in outcomes:
        grouped[tuple(getattr(one, name) for name in NAMES)].append(one)
    return [dict(zip(NAMES, cell, strict=True)) | figures(found) for cell, found in sorted(grouped.items())]


def left_out(runs: Path, frames: Frames) -> Iterator[Outcome]:
    """What members without some software say of it, of rows that the software runs by default."""
    frames = {table: by_default(table, frame) for table, frame in frames.items()}
    for folder in sorted((runs / "weights").glob("ver:*")):
        there = {path.stem for path in folder.glob("*.json")}
        found = by_weights(folder, frames)
        yield from (one for one in found if one.software != KNOWN and one.net in there)


def distances(frames: Frames, weights: Path | None) -> list[dict[str, Any]]:
    """Means over cells of rows that are asked for another version of the framework, so many places away."""
    means = []
    for away in AWAY:
        found = by_weights(weights, frames, away)
        known = cells([one for one in found if one.software == KNOWN])
        means += [{"away": away} | mean for mean in macro(known)]
    return means


def macro(found: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Means over cells, each alike, by evaluation and what software says."""
    grouped: dict[tuple[str, str], list[Mapping[str, Any]]] = defaultdict(list)
    for cell in found:
        grouped[(cell["evaluation"], cell["software"])].append(cell)
    return [
        {"evaluation": evaluation, "software": software, "cells": len(same)}
        | {name: round(float(np.mean([cell[name] for cell in same])), 2) for name in ("mape", "bias", "inside")}
        for (evaluation, software), same in sorted(grouped.items())
    ]


def shown(title: str, means: Sequence[Mapping[str, Any]]) -> None:
    """Print a table of means."""
    print(f"{title:24} {'software':16} cells   MAPE   bias inside")
    for row in means:
        numbers = f"{row['cells']:5} {row['mape']:6.2f} {row['bias']:6.2f} {row['inside']:6.1f}"
        print(f"{row['evaluation']:24} {row['software']:16} {numbers}")


def main(argv: list[str] | None = None) -> int:
    """Run the command; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m studies.accuracy_versions", description=__doc__)
    parser.add_argument("--table", action="append", choices=TABLES)
    parser.add_argument("--runs", type=Path, help="where `python -m train versions` left its weights")
    parser.add_argument("--weights", type=Path, help="weights in the place of those that ship")
    parser.add_argument("--each", type=int, default=EACH, help="rows of a GPU, version and type")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(argv)
    tables = options.table or list(TABLES)
    frames = {table: rows(table, None, [HELD_OUT], options.each) for table in tables}
    parts = {"shipped": cells(by_weights(options.weights, frames))}
    parts["named"] = cells(by_weights(options.weights, frames, with_impl=True))
    if options.runs:
        parts["left out"] = cells([*left_out(options.runs, frames)])
    for title, found in parts.items():
        shown(title, macro(found))
    if options.json:
        parts["away"] = distances(frames, options.weights)
        options.json.write_text(json.dumps(parts, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

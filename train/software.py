"""`python -m train.software [--runs DIR]`: how wide intervals are where other software than the one asked for answers.

Members that know nothing of some versions, or know them from other GPUs only (`python -m train versions`), are asked
for these as a user asks, on shapes that are not held out of the weights that ship. An interval is a multiple of a power
of the width that known software would have, chosen and covered as `train.intervals` does, every GPU and version alike.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd

from pipewave.residual.card import Interval, half_width
from pipewave.software.known import LEVELS
from train.__main__ import RUNS, WEIGHTS
from train.intervals import LEVEL, POWERS, TOLERANCE, balance
from train.outcomes import KNOWN, TABLES, Outcome, by_default, by_weights, rows
from train.splits import FOLDS, HELD_OUT
from train.two_levels import weighted_quantile

EACH = 120  # rows of a GPU, version and type: a level that one of them makes up still has an interval of its own
ENOUGH = 100  # of a level for an interval of its own; levels share their rows below that
CELLS = 5  # GPUs and versions that tell a type of a level apart: kernels of types change by themselves
CALIBRATED, FURTHEST = LEVELS[1:], LEVELS[-1]
BASIS, PROTOCOL = "measured_gpu", "graph"
SHAPES = [number for number in range(FOLDS) if number != HELD_OUT]


def intervals_of(outcomes: Sequence[Outcome], known: Mapping[str, Mapping[str, float]]) -> dict[str, Interval]:
    """The interval of each level of `software`, and of `level|type` where enough GPUs and versions tell, from a card's
    interval of known software."""
    usual = Interval(**known.get(f"{BASIS}|{PROTOCOL}", known[BASIS]))
    every = [one for one in outcomes if one.software in LEVELS[1:]]
    own = {level: [one for one in every if one.software == level] for level in CALIBRATED}
    pooled = {level: found if len(found) >= ENOUGH else every for level, found in own.items() if level != FURTHEST}
    if len({one.dtype for one in own[FURTHEST]}) > 1:  # what one type's kernels do says nothing of another's
        pooled[FURTHEST] = own[FURTHEST]
    typed = {
        f"{level}|{dtype}": [one for one in found if one.dtype == dtype]
        for level, found in own.items()
        for dtype in sorted({one.dtype for one in found})
    }
    told = {name: found for name, found in typed.items() if len(set(map(_cell, found))) >= CELLS}
    return {name: _interval(found, usual) for name, found in (pooled | told).items() if len(found) >= ENOUGH}


def _cell(one: Outcome) -> str:
    """A GPU and version, which count alike."""
    return f"{one.gpu}|{one.stack}"


def _interval(found: Sequence[Outcome], usual: Interval) -> Interval:
    """The best multiple and power by interval score, cells of a GPU and version counting alike.

    No interval is narrower than that of known software: what this holds already needs no multiple.
    """
    error, half = np.array([(abs(one.off), one.half) for one in found]).T
    scale = (half / usual.multiple) ** (1.0 / usual.power)
    known = half_width([usual], scale)
    cells = np.unique([_cell(one) for one in found], return_inverse=True)[1]
    weight = balance(cells)
    tried = []
    for power in POWERS:
        multiple = weighted_quantile(np.where(error <= known, 0.0, error / scale**power), weight, LEVEL)
        width = np.maximum(multiple * scale**power, known)
        score = np.average(width + np.maximum(error - width, 0.0) / (1.0 - LEVEL), weights=weight)
        tried.append((score, Interval(round(float(multiple), 4), power)))
    best = min(score for score, _ in tried)
    chosen = next(interval for score, interval in tried if score <= TOLERANCE * best)
    return chosen if chosen.multiple else usual


def left_out(runs: Path, tables: Sequence[str]) -> dict[str, list[Outcome]]:
    """What members without some software say of it, by the folder of their weights; and those that ship."""
    frames = {table: by_default(table, rows(table, None, SHAPES, EACH)) for table in tables}
    folders = sorted(folder for folder in (runs / "weights").glob("ver:*") if folder.is_dir())
    return {folder.name: [*_answered(folder, frames)] for folder in (WEIGHTS, *folders)}


def _answered(folder: Path, frames: Mapping[str, pd.DataFrame]) -> Iterator[Outcome]:
    """Outcomes with the intervals of known software, as if none had been settled for other."""
    with TemporaryDirectory() as name:
        for path in folder.glob("*.json"):
            card = json.loads(path.read_text(encoding="utf-8"))
            card["intervals"] = _of_known(card["intervals"])
            (Path(name) / path.name).write_text(json.dumps(card), encoding="utf-8")
            weights = path.with_suffix(".safetensors")
            (Path(name) / weights.name).symlink_to(weights.resolve())
        yield from _unknown(by_weights(Path(name), frames), folder)


def _of_known(intervals: Mapping[str, Any]) -> dict[str, Any]:
    """A card's intervals without those of other software."""
    return {key: one for key, one in intervals.items() if key.partition("|")[0] not in CALIBRATED}


def _unknown(outcomes: Sequence[Outcome], folder: Path) -> Iterator[Outcome]:
    """Outcomes of nets that this folder has, of software that they do not know."""
    there = {path.stem for path in folder.glob("*.json")}
    return (one for one in outcomes if one.net in there and one.software != KNOWN and one.basis == BASIS)


def update(card_paths: Sequence[Path], outcomes: Sequence[Outcome]) -> str:
    """Put the intervals into cards of a net: the shipped one first, whose interval of known software counts, then those
    of the members that were asked; what they are."""
    found = intervals_of(outcomes, json.loads(card_paths[0].read_text(encoding="utf-8"))["intervals"])
    for path in card_paths:
        card = json.loads(path.read_text(encoding="utf-8"))
        card["intervals"] = _of_known(card["intervals"]) | {name: one.given() for name, one in found.items()}
        path.write_text(json.dumps(card, indent=1) + "\n", encoding="utf-8")
    return f"{card_paths[0].stem}: {len(outcomes):,} rows, " + ", ".join(f"{k} {v}" for k, v in found.items())


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m train.software", description=__doc__)
    parser.add_argument("--runs", type=Path, default=RUNS)
    parser.add_argument("--weights", type=Path, default=WEIGHTS, help="cards that get the intervals")
    parser.add_argument("--table", action="append", choices=TABLES)
    options = parser.parse_args(argv)
    by_net = defaultdict(list)
    for one in (one for found in left_out(options.runs, options.table or TABLES).values() for one in found):
        by_net[one.net].append(one)
    for net, found in sorted(by_net.items()):
        members = sorted((options.runs / "weights").glob(f"ver:*/{net}.json"))
        print(update([options.weights / f"{net}.json", *members], found))
    return 0


if __name__ == "__main__":
    sys.exit(main())

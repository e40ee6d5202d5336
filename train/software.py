"""`python -m train.software [--runs DIR]`: how wide intervals are where other software than the one asked for answers.

Members that know nothing of some versions, or know them from other GPUs only (`python -m train versions`), are asked
for these as a user asks, on shapes that are not held out of the weights that ship. An interval is a multiple of a power
of the width that known software would have, chosen and covered as `train.intervals` does, every GPU and version alike.

No member lacks a whole framework. How far another one's kernels are from those asked for, two frameworks on one GPU
show: rows of each are asked as the other's newest version there (`--crossed`), and settle `other_framework`. A type
that one framework alone has rows of gets the widest that any net of those tables needs: its kernels are its own.

Nets that one library answers as a whole (those of one `one_width` of `train.net.Net`) get one half-width, from the
rows of all.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from corpus.select import FOLDS, HELD_OUT, by_default
from pipewave.nets.weights_metadata import LEVELS, Interval, TrainingRows, from_nested, half_width
from pipewave.software.stacks import framework, version
from train.cards import RUNS, WEIGHTS, altered, put, read, write
from train.intervals import LEVEL, POWERS, TOLERANCE, Floats, balance
from train.net import nets
from train.outcomes import KNOWN, TABLES, Outcome, by_weights, rows
from train.two_levels import weighted_quantile

EACH = 120  # rows of a GPU, version and type: a level that one of them makes up still has an interval of its own
ENOUGH = 100  # of a level for an interval of its own; levels share their rows below that
CELLS = 5  # GPUs and versions that tell a type of a level apart: kernels of types change by themselves
CALIBRATED, FURTHEST = LEVELS[1:], LEVELS[-1]
BASIS, PROTOCOL = "measured_gpu", "graph"
SHAPES = [number for number in range(FOLDS + 1) if number != HELD_OUT]


def intervals_of(outcomes: Sequence[Outcome], known: Mapping[str, Mapping[str, float]]) -> dict[str, Interval]:
    """The interval of each level of `software`, and of `level|type` where enough GPUs and versions tell, from a card's
    interval of known software.
    """
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


def together(outcomes: Sequence[Outcome]) -> dict[str, Interval]:
    """One half-width for the operations of these outcomes, and for all levels that they are of: a neighbour known here
    and the version itself known elsewhere tell as much.
    """
    found = [one for one in outcomes if one.software in CALIBRATED]
    cells = [f"{one.net}|{_cell(one)}" for one in found]
    if len(set(cells)) < CELLS:
        return {}
    return dict.fromkeys(
        sorted({one.software for one in found}), one_width(np.array([abs(one.off) for one in found]), cells)
    )


def of_nets_alike(by_net: Mapping[str, Sequence[Outcome]]) -> dict[str, dict[str, Interval]]:
    """By net that shares its half-width, this, for every level that outcomes of any such net are of."""
    kind = {net: small.one_width for net, small in nets().items() if small.one_width}
    alike = {name: sorted(net for net in kind if kind[net] == name) for name in sorted(set(kind.values()))}
    found = {name: together([one for net in members for one in by_net.get(net, ())]) for name, members in alike.items()}
    levels = sorted({level for each in found.values() for level in each})
    return {net: dict.fromkeys(levels, next(iter(found[name].values()))) for net, name in kind.items() if found[name]}


def crossed(frames: Mapping[str, pd.DataFrame]) -> dict[str, list[Outcome]]:
    """By net, what rows asked as another framework's are answered."""
    asked = {table: asked_as_others(frame) for table, frame in frames.items()}
    found: dict[str, list[Outcome]] = defaultdict(list)
    for one in by_weights(WEIGHTS, asked):
        if one.software == KNOWN:  # else what stands in is itself another version's
            found[one.net].append(one)
    return found


def one_width_of(outcomes: Sequence[Outcome]) -> Interval:
    """The half-width that holds answers for a framework from another's rows, GPUs and frameworks asked for alike."""
    return one_width(np.array([abs(one.off) for one in outcomes]), [_cell(one) for one in outcomes])


def of_one_framework(rows: TrainingRows) -> tuple[str, ...]:
    """Types of which a single framework has rows: nothing shows how far another's kernels are from them."""
    frameworks: dict[str, set[str]] = defaultdict(set)
    for row in rows.rows:
        frameworks[row.kind.partition(",")[0]].add(framework(row.stack))
    return tuple(sorted(dtype for dtype, known in frameworks.items() if len(known) == 1))


def settle_crossed(weights: Path, tables: Sequence[str]) -> Iterator[str]:
    """Put what answers from another framework are off by into the cards; a line for each net."""
    found = crossed(_frames(tables))
    width = {net: one_width_of(outcomes) for net, outcomes in found.items()}
    widest = max(width.values(), key=lambda one: one.multiple)
    for net, outcomes in found.items():
        card = weights / f"{net}.json"
        alone = of_one_framework(from_nested(read(card)["software"]))
        told = put(card, {FURTHEST: width[net]} | {f"{FURTHEST}|{dtype}": widest for dtype in alone})
        yield f"{told}; a GPU left out: {inside_on_others(outcomes):.1f} % inside"


def inside_on_others(outcomes: Sequence[Outcome]) -> float:
    """Share of outcomes, %, inside the half-width that the other GPUs settle, GPUs and frameworks alike."""
    cells: dict[str, list[bool]] = defaultdict(list)
    for gpu in {one.gpu for one in outcomes}:
        half = one_width_of([one for one in outcomes if one.gpu != gpu]).multiple
        for one in (one for one in outcomes if one.gpu == gpu):
            cells[_cell(one)].append(abs(one.off) <= half)
    return 100.0 * float(np.mean([np.mean(each) for each in cells.values()]))


def asked_as_others(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows of the newest version of each framework on a GPU, once for each other framework, under its newest's name."""
    stack, gpu = frame["stack"].astype(str), frame["gpu"].astype(str)
    newest: dict[tuple[str, str], str] = {}
    for name, card in sorted(set(zip(stack, gpu, strict=True)), key=lambda pair: version(pair[0])):
        newest[card, framework(name)] = name
    pairs = [
        (card, name, other)
        for (card, one), name in newest.items()
        for (there, two), other in newest.items()
        if there == card and one != two
    ]
    return pd.concat([frame[(gpu == card) & (stack == name)].assign(stack=other) for card, name, other in pairs])


def one_width(error: Floats, cells: Sequence[Any]) -> Interval:
    """The half-width that holds `LEVEL` of absolute log errors, cells counting alike."""
    codes = np.unique(cells, return_inverse=True)[1]
    return Interval(round(weighted_quantile(error, balance(codes), LEVEL), 4), 0.0)


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
    frames = _frames(tables)
    folders = sorted(folder for folder in (runs / "weights").glob("ver:*") if folder.is_dir())
    return {folder.name: [*_answered(folder, frames)] for folder in (WEIGHTS, *folders)}


def _frames(tables: Sequence[str]) -> dict[str, pd.DataFrame]:
    """Rows of shapes that are not held out of the weights that ship, by table."""
    return {table: by_default(table, rows(table, None, SHAPES, EACH)) for table in tables}


def _answered(folder: Path, frames: Mapping[str, pd.DataFrame]) -> Iterator[Outcome]:
    """Outcomes with the intervals of known software, as if none had been settled for other."""
    there = {path.stem for path in folder.glob("*.json")}
    with altered(folder.glob("*.json"), _of_known) as known:
        for one in by_weights(known, frames):
            if one.net in there and one.software != KNOWN and one.basis == BASIS:
                yield one


def _of_known(card: dict[str, Any]) -> dict[str, Any]:
    """A card without the intervals of other software."""
    kept = {key: one for key, one in card["intervals"].items() if key.partition("|")[0] not in CALIBRATED}
    return card | {"intervals": kept}


def update(card_paths: Sequence[Path], outcomes: Sequence[Outcome], found: Mapping[str, Interval]) -> str:
    """Put intervals into the cards of a net, the shipped one and those of members; what they are."""
    for path in card_paths:
        write(path, _of_known(read(path)))
        put(path, found)
    return f"{card_paths[0].stem}: {len(outcomes):,} rows, " + ", ".join(f"{k} {v}" for k, v in found.items())


def main(argv: list[str] | None = None) -> int:
    """Run the command; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m train.software", description=__doc__)
    parser.add_argument("--runs", type=Path, default=RUNS)
    parser.add_argument("--weights", type=Path, default=WEIGHTS, help="cards that get the intervals")
    parser.add_argument("--table", action="append", choices=TABLES)
    parser.add_argument("--crossed", action="store_true", help="settle answers from another framework alone")
    options = parser.parse_args(argv)
    if options.crossed:
        for line in settle_crossed(options.weights, options.table or TABLES):
            print(line)
        return 0
    by_net = defaultdict(list)
    for one in (one for found in left_out(options.runs, options.table or TABLES).values() for one in found):
        by_net[one.net].append(one)
    shared = of_nets_alike(by_net)
    for net, outcomes in sorted(by_net.items()):
        members = sorted((options.runs / "weights").glob(f"ver:*/{net}.json"))
        card = options.weights / f"{net}.json"
        known = read(card)["intervals"]
        found = shared[net] if net in shared else intervals_of(outcomes, known)
        print(update([card, *members], outcomes, found))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""`python -m qa.coverage [NET ...] [--outside] [--json FILE]`: shares of rows inside their intervals, never seen.

From the samples of `train/heldout`, so neither corpus nor training is needed. Every share is nested: the card, the
architecture or the shapes that are scored had no part in settling the interval. A GPU, stack and type count alike.

Chance: a unit (a group of shapes, a card, an architecture) is held well or badly as a whole, and there are few. `±` is
what 90 % of such means are off by, from how far units of the cell and of all cells of this kind differ. A cell that
is outside 85 to 95 % by less cannot be told from one inside (`chance`).

Versions are counted by `studies.accuracy_versions`, on shapes that settled nothing; a version and GPU are a unit. All
of them settle one multiple a level and type, the one that is counted among them: of dozens, so this part is nearly
nested.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipewave.nets.weights_metadata import Interval
from pipewave.prediction.kernel_latency import WIDEST
from train.cards import WEIGHTS
from train.evaluate import held_out
from train.intervals import Held, given, widths
from train.kept import ALIKE, FOLDER, load, nets
from train.rows import Rows

KINDS = {"fold": "unseen shapes", "logo": "unseen GPU", "lofo": "unseen family"}
SOFTWARE = {"nearest_version": "unseen version", "other_gpu": "version elsewhere", "other_framework": "other framework"}
TITLES = KINDS | SOFTWARE
VERSIONS = Path(__file__).parents[1] / "studies" / "results" / "accuracy_versions.json"
LOW, HIGH = 85.0, 95.0
WORTH = 3  # units that the spread of all cells of a kind counts as, beside a cell's own
NINETY = 1.645  # standard deviations that hold 90 %
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Cell:
    """Shares inside (%) of a net's rows under a protocol: of each unit, with its weight; full widths in % (median)."""

    net: str
    protocol: str
    kind: str
    units: tuple[str, ...]
    inside: Floats
    weight: Floats
    width: float  # NaN where it was not counted

    @property
    def mean(self) -> float:
        """Share inside, %."""
        return float(np.average(self.inside, weights=self.weight))

    def chance(self, usual: float) -> float:
        """What nine in ten means of so many units are off by at most; `usual` is how far units of such cells differ."""
        own = ((self.inside - self.mean) ** 2).sum()
        spread = np.sqrt((own + WORTH * usual**2) / (len(self.inside) - 1 + WORTH))
        return float(NINETY * spread * np.sqrt((self.weight**2).sum()) / self.weight.sum())

    def outside(self) -> float:
        """Points beyond the band, below zero where the share is too low."""
        return min(self.mean - LOW, 0.0) + max(self.mean - HIGH, 0.0)


def cells_of(net: str, folder: Path = FOLDER) -> Iterator[Cell]:
    """Every cell of a net whose sample is there."""
    rows, predictions = load(net, folder)
    parts = held_out(rows, predictions)
    folds = [name for name in parts if name.startswith("fold:")]
    for kind in KINDS:
        names = [name for name in parts if name.partition(":")[0] == kind]
        half = {name: _settled(net, parts[name]) if folds == [name] else widths(name, parts) for name in names}
        for protocol in sorted({str(one) for name in names for one in np.unique(parts[name].protocol)}):
            yield from _cell(net, protocol, kind, rows, [(parts[name], half[name]) for name in names])


def _settled(net: str, part: Held) -> Floats:
    """What the card that ships gives rows of the one fold that its weights and intervals never saw."""
    card = json.loads((WEIGHTS / f"{net}.json").read_text(encoding="utf-8"))
    return given(part, {name: Interval(**one) for name, one in card["intervals"].items()})


def _cell(net: str, protocol: str, kind: str, rows: Rows, parts: Sequence[tuple[Held, Floats]]) -> Iterator[Cell]:
    """The cell of a protocol where any of its rows were held out and have an interval."""
    kept = [(part.protocol == protocol) & np.isfinite(half) for part, half in parts]
    index = np.concatenate([part.index[at] for (part, _), at in zip(parts, kept, strict=True)])
    half = np.concatenate([half[at] for (_, half), at in zip(parts, kept, strict=True)])
    error = np.concatenate([part.error[at] for (part, _), at in zip(parts, kept, strict=True)])
    if len(index):
        alike = _alike(rows, index)
        unit = _units(kind, rows, index)
        names, code = np.unique(unit, return_inverse=True)
        weight = np.asarray(np.bincount(code, alike), np.float64)
        inside = 100.0 * np.bincount(code, alike * (error <= half)) / weight
        width = 100.0 * 2.0 * np.sinh(np.minimum(half, WIDEST))
        yield Cell(net, protocol, kind, tuple(map(str, names)), inside, weight, _median(width, alike))


def _alike(rows: Rows, index: NDArray[np.int64]) -> Floats:
    """Weights under which every GPU, stack and type counts alike."""
    codes = np.stack([rows.columns[name].codes[index] for name in ALIKE])
    kind = np.unique(codes, axis=1, return_inverse=True)[1].reshape(-1)
    return np.asarray(1.0 / np.bincount(kind)[kind])


def _units(kind: str, rows: Rows, index: NDArray[np.int64]) -> NDArray[np.str_]:
    """What a row is new by: its shapes, its card, its architecture."""
    if kind == "fold":
        return rows.group[index].astype(str)
    return rows.columns["gpu" if kind == "logo" else "family"].text()[index]


def _median(values: Floats, weight: Floats) -> float:
    order = np.argsort(values)
    reached = np.cumsum(weight[order])
    return float(values[order][np.searchsorted(reached, 0.5 * reached[-1])])


def of_versions() -> Iterator[Cell]:
    """Cells of versions that members knew nothing of, or from other GPUs, or from another framework only."""
    found = defaultdict(list)
    for one in json.loads(VERSIONS.read_text(encoding="utf-8"))["left out"]:
        found[one["software"], one["evaluation"]].append((f"{one['gpu']} {one['stack']}", one["inside"]))
    for (software, evaluation), units in sorted(found.items()):
        names, inside = zip(*units, strict=True)
        yield Cell(evaluation, "graph", software, names, np.array(inside), np.ones(len(names)), np.nan)


def usual(cells: Sequence[Cell]) -> float:
    """How far units of a cell differ, root mean square over the cells with more than one."""
    told = [cell for cell in cells if len(cell.inside) > 1]
    squares = sum(float(((cell.inside - cell.mean) ** 2).sum()) for cell in told)
    return float(np.sqrt(squares / max(1, sum(len(cell.inside) - 1 for cell in told))))


def shown(cells: Sequence[Cell]) -> Iterator[dict[str, Any]]:
    """What is said of every cell: `beyond` is what it is outside the band by, `told` whether chance allows no such."""
    spread = {kind: usual([cell for cell in cells if cell.kind == kind]) for kind in TITLES}
    for cell in cells:
        chance, beyond = cell.chance(spread[cell.kind]), cell.outside()
        row = {"net": cell.net, "protocol": cell.protocol, "basis": TITLES[cell.kind], "units": len(cell.units)}
        row |= {"inside": round(cell.mean, 1), "chance": round(chance, 1)}
        row |= {"width": round(cell.width, 1) if np.isfinite(cell.width) else None}
        yield row | {"beyond": round(beyond, 1), "told": bool(abs(beyond) > chance)}


def table(cells: Sequence[Cell], *, outside: bool = False) -> str:
    """Every cell, or those outside the band; then all cells of a kind together."""
    lines, rows = [f"{'net':24} {'protocol':14} {'basis':17} units inside     ± width %"], list(shown(cells))
    for title in TITLES.values():
        mine = [row for row in rows if row["basis"] == title]
        lines += [_line(row) for row in mine if row["beyond"] or not outside]
        lines += [_summary(title, mine)] if mine else []
    return "\n".join(lines)


def _line(row: Mapping[str, Any]) -> str:
    flag = "" if not row["beyond"] else "  OUTSIDE" if row["told"] else "  chance"
    width = "–" if row["width"] is None else f"{row['width']:.1f}"
    name = f"{row['net']:24} {row['protocol']:14} {row['basis']:17}"
    return f"{name} {row['units']:5} {row['inside']:6.1f} {row['chance']:5.1f} {width:>7}{flag}"


def _summary(title: str, rows: Sequence[Mapping[str, Any]]) -> str:
    mean, out = np.mean([row["inside"] for row in rows]), sum(bool(row["beyond"]) for row in rows)
    widths = [row["width"] for row in rows if row["width"] is not None]
    wide = f"; median width {np.median(widths):.1f} %" if widths else ""
    return (
        f"-- {title}: {len(rows)} cells, mean {mean:.1f} %, {out} outside {LOW:.0f} to {HIGH:.0f} %, "
        f"{sum(row['told'] for row in rows)} of them by more than chance{wide}"
    )


def main(argv: list[str] | None = None) -> int:
    """Run the command; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m qa.coverage", description=__doc__)
    parser.add_argument("net", nargs="*", help="these nets (default: all with a sample)")
    parser.add_argument("--outside", action="store_true", help="only cells outside 85 to 95 %%")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args(argv)
    cells = [cell for net in options.net or nets() for cell in cells_of(net)]
    cells += [] if options.net else of_versions()
    print(table(cells, outside=options.outside))
    if options.json:
        options.json.write_text(json.dumps(list(shown(cells)), indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

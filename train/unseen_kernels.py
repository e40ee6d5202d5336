"""`python -m train.unseen_kernels [--write]`: how far off operators are where a kernel was never measured at all.

A GPU that is left out may run kernels that no other GPU's rows hold: MiniMax's sparse attention for Blackwell beside
Triton's elsewhere. Its own net cannot foretell how wrong it is then; other operators' kernels that were left out whole
can. The half-width of such answers is a quantile of those errors: kernels of an operator and card count alike, and the
level is raised until kernels of an operator that are left out of the quantile are covered too (`train.intervals`).

Members' answers are those of the samples in `train/heldout`.

Writes `train/tables/unseen_kernels.json`, and the interval into the cards that ship as that of `other_framework`: the
level of an answer whose kernel has no rows anywhere.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipewave.nets.weights_metadata import LEVELS, Interval
from pipewave.software.stacks import framework
from train.cards import TABLES, WEIGHTS, put, read, write
from train.evaluate import scored
from train.intervals import LEVEL, Floats
from train.kept import FOLDER, load
from train.rows import Rows
from train.splits import by_name
from train.two_levels import weighted_quantile

RAISED = np.array([0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99])  # share of what the level leaves out
FILE = "unseen_kernels.json"
NO_ROWS = LEVELS[-1]  # the level of software of a kernel without rows


@dataclass(frozen=True, slots=True)
class Kernel:
    """Rows of a kernel on the cards that one split leaves out: net, split, name, whether other cards' rows hold it, log
    errors [row], half-widths of the intervals that the net's own left-out cards call for [row], GPU and type [row].
    """

    net: str
    split: str
    name: str
    known: bool
    error: Floats
    half: Floats
    cell: NDArray[np.str_]


def kernels(net: str, folder: Path = FOLDER) -> Iterator[Kernel]:
    """Every kernel of every GPU left out of a net's members."""
    rows, predictions = load(net, folder)
    names, gpus, types = _names(rows), rows.columns["gpu"].text(), rows.columns["dtype"].text()
    cells = np.char.add(np.char.add(gpus, "|"), types)
    for part in scored("logo", rows, predictions):
        split = by_name(part.name, rows)
        seen = set(names[split.train])
        error = part.mean - rows.residual[part.index]
        for name in np.unique(names[part.index]):
            at = names[part.index] == name
            yield Kernel(net, part.name, str(name), name in seen, error[at], part.half[at], cells[part.index][at])


def _names(rows: Rows) -> NDArray[np.str_]:
    """Framework and implementation of each row: `default` of two frameworks are two kernels."""
    stacks, impls = (rows.columns[name] for name in ("stack", "impl"))
    frameworks = np.array([framework(stack) for stack in stacks.values])
    return np.char.add(np.char.add(frameworks, "|")[stacks.codes], np.array(impls.values)[impls.codes])


def half_width(unseen: Sequence[Kernel]) -> float:
    """The half-width, in log time, that holds `LEVEL` of the kernels of an operator that it does not rest on."""
    levels = LEVEL + (1.0 - LEVEL) * RAISED
    others = {net: _others(unseen, net) for net in {one.net for one in unseen}}
    inside = [np.mean([_inside(one, _quantile(others[one.net], level)) for one in unseen]) for level in levels]
    enough = np.flatnonzero(np.array(inside) >= LEVEL)
    return _quantile(unseen, float(levels[enough[0] if len(enough) else -1]))


def _others(unseen: Sequence[Kernel], net: str) -> list[Kernel]:
    return [one for one in unseen if one.net != net]


def _quantile(unseen: Sequence[Kernel], level: float) -> float:
    errors = np.concatenate([np.abs(one.error) for one in unseen])
    weight = np.concatenate([np.full(len(one.error), 1.0 / len(one.error)) for one in unseen])
    return weighted_quantile(errors, weight, level)


def _inside(one: Kernel, half: float) -> float:
    return float(np.mean(np.abs(one.error) <= np.maximum(half, one.half)))


def table(found: Mapping[str, Sequence[Kernel]]) -> dict[str, object]:
    """By net: mean error (%) and share inside (%) of kernels that other cards' rows hold, and of those that none do;
    `all`: the same of all rows, GPUs and types alike, as the errors of a GPU left out are counted.
    """
    unseen = [one for each in found.values() for one in each if not one.known]
    nets = {net: _of_net(each, half_width(_others(unseen, net))) for net, each in found.items()}
    covered = float(np.mean([_inside(one, half_width(_others(unseen, one.net))) for one in unseen]))
    return {"half_width": round(half_width(unseen), 4), "covered": round(100.0 * covered, 1), "nets": nets}


def _of_net(each: Sequence[Kernel], wide: float) -> dict[str, dict[str, float]]:
    """Figures of kernels alike, and of all rows."""
    known, unseen = ([one for one in each if one.known == which] for which in (True, False))
    parts = {"known": [(one.error, one.half) for one in known]}
    parts["unseen"] = [(one.error, np.maximum(wide, one.half)) for one in unseen]
    found = {name: {"kernels": len(some)} | _mean(some) for name, some in parts.items() if some}
    return found | {"all": _by_cell(each, wide)}


def _by_cell(each: Sequence[Kernel], wide: float) -> dict[str, float]:
    """Figures of all rows, every GPU and type alike; rows of kernels never measured have that half-width at least."""
    error, cell = (np.concatenate([getattr(one, name) for one in each]) for name in ("error", "cell"))
    half = np.concatenate([one.half if one.known else np.maximum(one.half, wide) for one in each])
    at = [cell == name for name in np.unique(cell)]
    return _mean([(error[rows], half[rows]) for rows in at])


def _mean(parts: Sequence[tuple[Floats, Floats]]) -> dict[str, float]:
    """Mean error and share inside, %, of parts' log errors and half-widths, parts alike."""
    off = np.mean([np.abs(np.expm1(error)).mean() for error, _ in parts])
    inside = np.mean([np.mean(np.abs(error) <= half) for error, half in parts])
    return {"mape": round(100.0 * float(off), 1), "covered": round(100.0 * float(inside), 1)}


def main(argv: list[str] | None = None) -> int:
    """Run the command; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m train.unseen_kernels", description=__doc__)
    parser.add_argument("--write", action="store_true", help="renew the table and the cards that ship")
    options = parser.parse_args(argv)
    operators = read(TABLES / FILE)["nets"]
    found = {net: list(kernels(net)) for net in operators}
    report = table(found)
    print(json.dumps(report, indent=1))
    if options.write:
        write(TABLES / FILE, report)
        for net in found:
            put(WEIGHTS / f"{net}.json", {NO_ROWS: Interval(float(str(report["half_width"])), 0.0)})
    return 0


if __name__ == "__main__":
    sys.exit(main())

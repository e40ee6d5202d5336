"""`python -m bench.unit_spread --runs DIR [NET ...]`: how far units differ that were left out of training.

A unit is a card or an architecture. Its multiple is the one that 90 % of its held-out rows call for, of a power of the
error scale. Spreads of their logarithms are what `train.two_levels` assumes where too few units tell.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from pipewave.residual.card import BASES
from train.evaluate import held_out
from train.intervals import LEVEL, balance, informative, joined
from train.predictions import load_predictions
from train.rows import load
from train.two_levels import weighted_quantile

POWER = {"same_architecture": 0.5, "new_architecture": 0.0}


def spreads(folder: Path) -> Iterator[tuple[str, int, float]]:
    """Basis, units, and the standard deviation of the logarithm of their multiples."""
    rows = load(folder / "rows.npz")
    runs = [load_predictions(folder / name) for name in ("net", "unseen") if (folder / name).is_dir()]
    parts = held_out(rows, {name: one for run in runs for name, one in run.items() if not name.startswith("few:")})
    found = joined(informative(parts))
    for basis, power in POWER.items():
        mine = found.take(found.basis == BASES.index(basis))
        needed, weight = mine.error / mine.scale**power, balance(mine.gpu)
        units = [mine.unit == unit for unit in np.unique(mine.unit)]
        if len(units) > 1:
            own = np.log([weighted_quantile(needed[at], weight[at], LEVEL) for at in units])
            yield basis, len(own), float(own.std(ddof=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, required=True, help="where `python -m train` left its runs")
    parser.add_argument("net", nargs="*", help="these nets (default: all there)")
    options = parser.parse_args()
    nets = options.net or sorted(path.parent.name for path in options.runs.glob("*/rows.npz"))
    found = [(net, *one) for net in nets for one in spreads(options.runs / net)]
    for net, basis, units, spread in found:
        print(f"{net:24} {basis:18} {units} units  {spread:.2f}")
    print(f"root mean square {np.sqrt(np.mean([spread**2 for *_, spread in found])):.2f}")


if __name__ == "__main__":
    main()

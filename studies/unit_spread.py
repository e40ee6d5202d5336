"""`python -m studies.unit_spread [NET ...]`: how far units differ that were left out of training, and what is usual.

A unit is a card or an architecture. Its multiple is the one that 90 % of its held-out rows call for, of a power of the
error scale. The last line is the prior that `train.two_levels` weighs the few units of a cell with: where the variances
of log multiples are scaled inverse chi-squared, sums of squares are scaled F, and the likeliest scale and degrees of
freedom are printed.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize
from scipy.stats import f as fisher

from pipewave.nets.weights_metadata import BASES
from train.evaluate import held_out
from train.intervals import LEVEL, balance, informative, joined
from train.kept import load, nets
from train.two_levels import weighted_quantile

POWER = {"same_architecture": 0.5, "new_architecture": 0.0}
START = np.log([0.25, 4.0])  # of the search for the prior


@dataclass(frozen=True, slots=True)
class Spread:
    """How many units a cell has, and the standard deviation of the logarithm of their multiples."""

    net: str
    basis: str
    protocol: str
    units: int
    spread: float


def spreads(net: str) -> Iterator[Spread]:
    """Of every basis and protocol of a net with more than one unit."""
    found = joined(informative(held_out(*load(net))))
    for basis, power in POWER.items():
        there = found.basis == BASES.index(basis)
        for protocol in np.unique(found.protocol[there]):
            mine = found.take(there & (found.protocol == protocol))
            needed, weight = mine.error / mine.scale**power, balance(mine.gpu)
            units = [mine.unit == unit for unit in np.unique(mine.unit)]
            if len(units) > 1:
                own = np.log([weighted_quantile(needed[at], weight[at], LEVEL) for at in units])
                yield Spread(net, basis, str(protocol), len(own), float(own.std(ddof=1)))


def prior(found: Sequence[Spread]) -> tuple[float, float]:
    """The likeliest scale and degrees of freedom of the variances that these spreads are draws of."""
    freedom, square = np.array([(one.units - 1, one.spread**2) for one in found]).T

    def unlikely(logs: np.ndarray) -> float:
        scale, own = np.exp(logs)
        return -float(np.sum(fisher.logpdf(square / scale**2, freedom, own) - 2.0 * np.log(scale)))

    scale, own = np.exp(minimize(unlikely, START, method="Nelder-Mead").x)
    return float(scale), float(own)


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("net", nargs="*", help="these nets (default: all with a sample)")
    found = [one for net in parser.parse_args().net or nets() for one in spreads(net)]
    for one in found:
        print(f"{one.net:24} {one.protocol:14} {one.basis:18} {one.units} units  {one.spread:.2f}")
    print("likeliest: spread {:.2f}, counts as {:.1f} units".format(*prior(found)))


if __name__ == "__main__":
    main()

"""`python -m train.hidden_kernels --net NAME`: the net against physics where an architecture lacks a kernel.

An implementation's rows on one architecture are left out of training, all else stays: its GPUs are known, and so is the
kernel from other architectures. That is what an answer for a kernel rests on that nobody measured on such GPUs. Printed
for each: rows, mean absolute error (%) of the net and of the base estimate alone, bias of the net; then the means, each
kernel and architecture alike. Members are few and short: what they tell is which of the two is nearer.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from train.__main__ import RUNS
from train.fit import Plan, fit
from train.registry import plan
from train.rows import Ints, Rows
from train.rows import load as load_rows
from train.splits import by_name

FEWEST = 100  # rows of a kernel on an architecture
PROTOCOL = "graph"
CHEAP: Mapping[str, Any] = {"seeds": 1, "epochs": 6, "rows": 200_000, "by_kind": {}, "members_at_once": 8}


@dataclass(frozen=True, slots=True)
class Hidden:
    """Mean absolute errors, %, of a kernel on an architecture where it was hidden."""

    rows: int
    net: float
    physics: float
    bias: float  # of the net, %


def splits(rows: Rows) -> list[str]:
    """Every kernel on every architecture where it has rows, if another has some as well."""
    text = {name: rows.columns[name].text() for name in ("family", "impl", "protocol")}
    under = text["protocol"] == PROTOCOL
    pairs, counts = np.unique(np.stack([text["impl"][under], text["family"][under]]), axis=1, return_counts=True)
    enough = [(impl, family) for (impl, family), count in zip(pairs.T, counts, strict=True) if count >= FEWEST]
    kernels = [impl for impl, _ in enough]
    return [f"kernel:{family}:{impl}" for impl, family in enough if kernels.count(impl) > 1]


def scored(net: str, rows: Rows, names: Sequence[str]) -> dict[str, Hidden]:
    """Train a member for each split and compare it with the base estimate."""
    wanted = plan(net, "net", rows) | CHEAP | {"splits": list(names)}
    answers = fit(rows, Plan.of(wanted)).predictions
    return {name: _compared(rows, by_name(name, rows).score, mean) for name, (mean, _) in answers.items()}


def _compared(rows: Rows, index: Ints, mean: NDArray[np.float64]) -> Hidden:
    """Errors of the log residuals `mean` of these rows, and of the base estimate alone, under the graph protocol."""
    counted = rows.columns["protocol"].text()[index] == PROTOCOL
    residual = rows.residual[index][counted]
    error = np.expm1(mean[counted] - residual)
    figures = (np.abs(error).mean(), np.abs(np.expm1(-residual)).mean(), error.mean())
    return Hidden(len(residual), *(round(100.0 * float(figure), 1) for figure in figures))


def main(argv: list[str] | None = None) -> int:
    """Run the command; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m train.hidden_kernels", description=__doc__)
    parser.add_argument("--net", required=True)
    parser.add_argument("--runs", type=Path, default=RUNS)
    parser.add_argument("--only", default="", help="splits whose name holds this")
    options = parser.parse_args(argv)
    rows = load_rows(options.runs / options.net / "rows.npz")
    names = [name for name in splits(rows) if options.only in name]
    found = scored(options.net, rows, names)
    for name, hidden in found.items():
        print(f"{name}: {hidden}")
    for one in ("net", "physics"):
        print(one, round(float(np.mean([getattr(each, one) for each in found.values()])), 1))
    return 0


if __name__ == "__main__":
    sys.exit(main())

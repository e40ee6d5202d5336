"""`python -m train.small [--net NAME]`: the nets of norms, streaming kernels and collectives, each in a minute or two.

Reads the corpus, trains all splits on the CPU, prints held-out errors, and writes weights and card.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pipewave.gpus import find
from pipewave.kernels.base import Context, Family
from train.rows import Rows

Features = tuple[dict[str, NDArray[np.float64]], NDArray[np.float64]]
MODULES = ("norm", "elementwise", "collective")
HALVES = ("bf16", "fp16")
RUNS = Path(__file__).resolve().parents[1] / ".cache" / "runs"
WEIGHTS = Path(__file__).resolve().parents[1] / "src" / "pipewave" / "data" / "weights"


@dataclass(frozen=True, slots=True)
class Small:
    """How a small net is trained: `module` offers rows, features, weight and card, each given the net's name."""

    module: str
    categories: tuple[str, ...]
    hidden: tuple[int, ...] = (32, 32)
    seeds: int = 2
    steps: int = 2000
    batch: int = 512
    loss: str = "mape"

    def plan(self, splits: Sequence[str], rows: int) -> dict[str, Any]:
        """Fields of `train.fit.Plan`: so many steps whatever the rows."""
        shape = {"hidden": self.hidden, "seeds": self.seeds, "batch": self.batch, "loss": self.loss}
        shape |= {"splits": tuple(splits), "categories": self.categories, "weight_decay": 0.1}
        return shape | {"epochs": self.steps * self.batch / rows}


def nets() -> dict[str, Small]:
    """All small nets by name."""
    return {name: net for module in MODULES for name, net in import_module(f"train.nets.{module}").NETS.items()}


def both_halves(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows of one 16-bit type also as the other: kernels that only move data do not tell them apart."""
    half = frame["dtype"].isin(HALVES)
    twins = frame[half].assign(dtype=frame.loc[half, "dtype"].map(dict(zip(HALVES, HALVES[::-1], strict=True))))
    return pd.concat([frame.astype({"dtype": "object"}), twins.astype({"dtype": "object"})], ignore_index=True)


def analysed(family: Family, frame: pd.DataFrame, columns: Sequence[str]) -> Features:
    """What the family makes of these rows: features by name, base estimate in µs."""
    options = [*family.options, *(["variant"] if family.variant else [])]
    names = ["gpu", "dtype", "protocol", "stack", "impl", *options]
    found: dict[str, NDArray[np.float64]] = {}
    base_us = np.empty(len(frame))
    groups: Mapping[Any, Any] = frame.groupby(names, observed=True).indices
    for (gpu, dtype, protocol, stack, impl, *rest), index in groups.items():
        ctx = Context(find(gpu), dtype, protocol, stack, impl, tuple(zip(options, rest, strict=True)))
        analysis = family.analyse({name: frame[name].to_numpy(np.float64)[index] for name in columns}, ctx)
        base_us[index] = analysis.base_s * 1e6
        for name, values in analysis.features.items():
            found.setdefault(name, np.empty(len(frame)))[index] = values
    return found, base_us


def packed(name: str, net: Small, data: Path | None) -> tuple[pd.DataFrame, Rows]:
    """The net's rows as a frame and packed for training."""
    from train.pack import balanced, pack

    module = import_module(net.module)
    frame = module.rows(name, data)
    features, base_us = module.features(name, frame)
    return frame, pack(frame, features, base_us, module.weight(name, frame, balanced(frame)))


def present(rows: Rows, patterns: Sequence[str]) -> list[str]:
    """The splits of the patterns that hold out any rows: few sizes leave some folds empty."""
    from train.splits import expand

    folds = {f"fold:{number}" for number in np.unique(rows.fold)}
    return [name for name in expand(patterns, rows) if not name.startswith("fold:") or name in folds]


def train(name: str, net: Small, rows: Rows, splits: Sequence[str]) -> Path:
    """Fit all splits; the folder with the run."""
    from train.fit import Plan, fit, save

    plan = Plan(**net.plan(present(rows, splits), len(rows)))
    run = RUNS / name
    run.mkdir(parents=True, exist_ok=True)
    save(fit(rows, plan), plan, rows, run)
    rows.save(run / "rows.npz")
    return run


def ship(name: str, net: Small, rows: Rows, run: Path, folder: Path) -> Path:
    """Write weights and card, with the net's own word on what stands in when nothing is said."""
    from train.export import export, software
    from train.splits import by_name

    known: Mapping[str, Any] = software(rows.take(by_name("ship", rows).train))
    return export(name, rows, run, folder, **import_module(net.module).card(name, dict(known)))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m train.small", description=__doc__)
    parser.add_argument("--net", action="append", help="only these nets")
    parser.add_argument("--data", type=Path, help="corpus folder (default: PIPEWAVE_DATA or ../shared/data)")
    parser.add_argument("--out", type=Path, default=WEIGHTS)
    parser.add_argument("--splits", default="ship,fold:*,logo:*,lofo:*")
    options = parser.parse_args(argv)
    known = nets()
    for name in options.net or known:
        frame, rows = packed(name, known[name], options.data)
        run = train(name, known[name], rows, options.splits.split(","))
        print(f"{name}: {len(frame):,} rows in {run}")
        if "ship" in options.splits:
            print(ship(name, known[name], rows, run, options.out))
    return 0


if __name__ == "__main__":
    sys.exit(main())

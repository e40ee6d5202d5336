"""LightGBM on the same features, rows and splits as the nets: the baseline that a net has to beat.

`python -m train.trees --in rows.npz --out DIR --splits 'fold:*'`; `train.evaluate` reads the result.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import lightgbm
import numpy as np
from numpy.typing import NDArray

from train.predictions import save_predictions
from train.rows import Rows
from train.rows import load as load_rows
from train.splits import Split, by_name, expand

CATEGORIES = ("stack", "impl", "dtype")


@dataclass(frozen=True, slots=True)
class Trees:
    """Parameters of `baselines.md`, section 4 (unseen shapes)."""

    leaves: int = 127
    learning_rate: float = 0.08
    min_leaf: int = 20
    fraction: float = 0.8
    rounds: int = 300
    threads: int = 1
    seed: int = 0

    def parameters(self) -> dict[str, object]:
        """As LightGBM spells them; absolute error of the log residual, so that the median is learned."""
        sizes = {"num_leaves": self.leaves, "learning_rate": self.learning_rate, "min_data_in_leaf": self.min_leaf}
        draws = {"feature_fraction": self.fraction, "bagging_fraction": self.fraction, "bagging_freq": 1}
        fixed = {"objective": "l1", "verbosity": -1, "deterministic": True, "force_row_wise": True}
        return {**sizes, **draws, **fixed, "num_threads": self.threads, "seed": self.seed}


def matrix(rows: Rows, categories: Sequence[str]) -> tuple[NDArray[np.float64], list[int]]:
    """Features with category codes as last columns, and the numbers of those columns."""
    codes = [rows.columns[name].codes.astype(np.float64) for name in categories if name in rows.columns]
    width = rows.features.shape[1]
    whole = np.column_stack([rows.features.astype(np.float64), *codes])
    return whole, list(range(width, width + len(codes)))


def predict(rows: Rows, split: Split, recipe: Trees, categories: Sequence[str] = CATEGORIES) -> NDArray[np.float64]:
    """Log residual of the rows the split scores, from a model of the rows it trains on."""
    x, columns = matrix(rows, categories)
    train, repeats = np.unique(split.train, return_counts=True)
    weight = rows.weight[train] * repeats
    data = lightgbm.Dataset(x[train], rows.residual[train], weight=weight, categorical_feature=columns)
    model = lightgbm.train(recipe.parameters(), data, num_boost_round=recipe.rounds)
    return np.asarray(model.predict(x[split.score], num_threads=recipe.threads), np.float64)


def main(argv: list[str] | None = None) -> int:
    """Run the command; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m train.trees", description=__doc__)
    parser.add_argument("--in", dest="rows", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--splits", nargs="+", default=["fold:*"])
    parser.add_argument("--categories", nargs="*", default=list(CATEGORIES))
    parser.add_argument("--rounds", type=int, default=Trees().rounds)
    parser.add_argument("--threads", type=int, default=Trees().threads)
    options = parser.parse_args(argv)
    rows, recipe = load_rows(options.rows), Trees(rounds=options.rounds, threads=options.threads)
    predictions = {}
    for name in expand(options.splits, rows):
        split = by_name(name, rows)
        mean = predict(rows, split, recipe, options.categories)
        predictions[name] = (mean, np.ones_like(mean))
    save_predictions(options.out, predictions)
    return 0


if __name__ == "__main__":
    sys.exit(main())

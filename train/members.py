"""The members of a run, to be asked what their hidden layers make of rows they never saw."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipewave.nets.layers import ACTIVATIONS
from train.rows import Ints, Rows

Tensors = Mapping[str, NDArray[np.float32]]
Layer = tuple[NDArray[np.float32], NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class Members:
    """Split of each member, and their tensors as `train.fit` writes them, the member axis leading."""

    splits: NDArray[np.str_]
    tensors: Tensors
    features: tuple[str, ...]
    categories: tuple[str, ...]
    activation: str

    @classmethod
    def read(cls, folder: Path) -> Members | None:
        """Of a folder of `train.fit`; None where there are no weights (trees, say)."""
        if not (folder / "weights.npz").exists():
            return None
        log = json.loads((folder / "log.json").read_text(encoding="utf-8"))
        with np.load(folder / "weights.npz", allow_pickle=False) as file:
            tensors = {name: file[name] for name in file.files}
        splits = tensors.pop("members")
        return cls(splits, tensors, tuple(log["features"]), tuple(log["categories"]), log["plan"]["activation"])

    def units(self, rows: Rows, index: Ints, split: str) -> NDArray[np.float64]:
        """Last hidden layers of a split's members [row, unit], side by side as `estimator.Net.units` has them."""
        mine, active = np.flatnonzero(self.splits == split), ACTIVATIONS[self.activation]
        x = rows.features[index][:, np.array([rows.names.index(name) for name in self.features])]
        hidden = np.matmul(x, self.tensors["w0"][mine]) + self.tensors["b0"][mine][:, None]
        for number, name in enumerate(self.categories):
            hidden += self.tensors[f"table{number}"][mine][:, rows.columns[name].codes[index]]
        for weight, bias in self._between(mine):
            hidden = np.matmul(active(hidden), weight) + bias[:, None]
        units = active(hidden)
        return np.moveaxis(units, 0, 1).reshape(len(index), len(mine) * units.shape[-1]).astype(np.float64)

    def _between(self, mine: Ints) -> list[Layer]:
        depth = next(number for number in count() if f"w{number}" not in self.tensors)
        return [(self.tensors[f"w{i}"][mine], self.tensors[f"b{i}"][mine]) for i in range(1, depth - 1)]

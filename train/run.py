"""A folder that training wrote: what members said of held-out rows, their tensors, and the log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipewave.nets.layers import ACTIVATIONS
from train.cards import read, write
from train.rows import Floats, Ints, Rows

Tensors = Mapping[str, NDArray[np.float32]]
Predictions = Mapping[str, tuple[Floats, Floats]]  # by split: log residual and scale of its scored rows


@dataclass(frozen=True, slots=True)
class Scored:
    """Held-out rows of one split with their predicted log residual and the half-width of their interval in log time."""

    name: str
    index: Ints
    mean: Floats
    half: Floats


def as_one(members: NDArray[np.floating[Any]]) -> tuple[Floats, Floats]:
    """Outputs [member, row, 2] as one answer, as inference does: mean of means, disagreement widens the scale."""
    wide = members.astype(np.float64)
    own = np.exp(2 * np.clip(wide[..., 1], -8.0, 3.0)).mean(0)
    return wide[..., 0].mean(0), np.sqrt(own + wide[..., 0].var(0))


def load_predictions(folder: Path) -> dict[str, tuple[Floats, Floats]]:
    """What was said of the rows that each split scores."""
    with np.load(folder / "predictions.npz", allow_pickle=False) as file:
        return from_arrays(file)


def save_predictions(folder: Path, predictions: Predictions) -> None:
    """Write what `load_predictions` reads, as float32 in the order of each split's scored rows."""
    folder.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(folder / "predictions.npz", allow_pickle=False, **to_arrays(predictions, np.float32))


def from_arrays(file: Mapping[str, NDArray[Any]]) -> dict[str, tuple[Floats, Floats]]:
    """Predictions of what `to_arrays` gave."""
    names = [key.removeprefix("mean|") for key in file if key.startswith("mean|")]
    return {name: (file[f"mean|{name}"].astype(float), file[f"scale|{name}"].astype(float)) for name in names}


def to_arrays(predictions: Predictions, kind: type[np.floating[Any]]) -> dict[str, NDArray[Any]]:
    """As an .npz holds them, in numbers of this kind."""
    arrays: dict[str, NDArray[Any]] = {}
    for name, (mean, scale) in predictions.items():
        arrays |= {f"mean|{name}": mean.astype(kind), f"scale|{name}": scale.astype(kind)}
    return arrays


@dataclass(frozen=True, slots=True)
class Run:
    """Members of a run: the split of each, their tensors with the member axis leading, and the log."""

    log: Mapping[str, Any]
    splits: NDArray[np.str_]
    tensors: Tensors

    @classmethod
    def read(cls, folder: Path) -> Run:
        """All members of a folder."""
        log = read(folder / "log.json")
        with np.load(folder / "weights.npz", allow_pickle=False) as file:
            tensors = {name: file[name] for name in file.files}
        return cls(log, tensors.pop("members"), tensors)

    @staticmethod
    def write(folder: Path, members: Sequence[str], tensors: Tensors, log: Mapping[str, Any]) -> None:
        """Write what `read` reads; `members` are the splits."""
        write(folder / "log.json", log)
        arrays: dict[str, Any] = {"members": np.asarray(members), **tensors}
        np.savez(folder / "weights.npz", **arrays)

    def of(self, split: str) -> Run:
        """The members of a split; ValueError when the plan had no such split."""
        mine = self.splits == split
        if not mine.any():
            raise ValueError(f"no member of split {split!r}; add it to the plan")
        return replace(self, splits=self.splits[mine], tensors={name: one[mine] for name, one in self.tensors.items()})

    def spec(self) -> dict[str, Any]:
        """The net's part of the card."""
        plan, categories = self.log["plan"], self.log["categories"]
        return {
            "features": list(self.log["features"]),
            "categories": {name: list(values) for name, values in categories.items()},
            "layers": sum(name.startswith("w") for name in self.tensors),
            "activation": plan["activation"],
            "loss": plan["loss"],
        }

    def named(self, prefix: str) -> dict[str, NDArray[np.float32]]:
        """Tensors as the estimator calls them: `net/w0`, `net/table_stack`."""
        names = {f"table{i}": f"table_{column}" for i, column in enumerate(self.log["categories"])}
        return {f"{prefix}/{names.get(name, name)}": np.ascontiguousarray(t) for name, t in self.tensors.items()}

    def units(self, rows: Rows, index: Ints) -> Floats:
        """Last hidden layers [row, unit], the members' side by side as `pipewave.nets` has them."""
        active, tensors = ACTIVATIONS[self.log["plan"]["activation"]], self.tensors
        x = rows.features[index][:, np.array([rows.names.index(name) for name in self.log["features"]])]
        hidden = np.matmul(x, tensors["w0"]) + tensors["b0"][:, None]
        for number, name in enumerate(self.log["categories"]):
            hidden += tensors[f"table{number}"][:, rows.columns[name].codes[index]]
        layers = next(number for number in count() if f"w{number}" not in tensors)
        for number in range(1, layers - 1):
            hidden = np.matmul(active(hidden), tensors[f"w{number}"]) + tensors[f"b{number}"][:, None]
        units = active(hidden)
        return np.moveaxis(units, 0, 1).reshape(len(index), -1).astype(np.float64)

"""The rows of one net as plain arrays: what travels to a GPU machine that has numpy and torch and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

UNKNOWN = "?"  # code 0 of every column: what a net answers for values it never saw
# Arrays of a row each, and the type in which an .npz holds them.
STORED = {"features": "f4", "base_us": "f8", "latency_us": "f8", "weight": "f4", "group": "i4", "fold": "i1"}


@dataclass(frozen=True, slots=True)
class Column:
    """A text column as codes; `values[0]` is UNKNOWN."""

    codes: Ints
    values: tuple[str, ...]

    @classmethod
    def of(cls, text: Sequence[str] | NDArray[Any]) -> Column:
        """Encode text; codes follow the alphabet, so equal data give equal codes."""
        unique, codes = np.unique(np.asarray(text, dtype=str), return_inverse=True)
        return cls(codes.reshape(-1).astype(np.int64) + 1, (UNKNOWN, *map(str, unique)))

    def text(self) -> NDArray[np.str_]:
        """Back to strings, one a row."""
        return np.asarray(self.values)[self.codes]


@dataclass(frozen=True, slots=True)
class Rows:
    """Features [row, feature], the physical base estimate and the measurement, and what rows are distinguished by.

    `columns` needs `gpu` and `family` (its architecture) for the splits; a plan names those the net may see.
    """

    features: NDArray[np.float32]
    names: tuple[str, ...]
    base_us: Floats
    latency_us: Floats
    weight: Floats
    group: Ints
    fold: Ints
    columns: Mapping[str, Column] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.latency_us)

    @property
    def residual(self) -> Floats:
        """Log of measured over base time: what a net learns."""
        return np.log(self.latency_us / self.base_us)

    def take(self, index: NDArray[np.int64] | NDArray[np.bool_]) -> Rows:
        """These rows only; codes keep their meaning."""
        columns = {name: Column(column.codes[index], column.values) for name, column in self.columns.items()}
        return Rows(**{name: getattr(self, name)[index] for name in STORED}, names=self.names, columns=columns)

    def check(self) -> None:
        """Raise ValueError for features or times no net can learn from, naming the offending feature."""
        bad = [self.names[i] for i in np.flatnonzero(~np.isfinite(self.features).all(axis=0))]
        if bad:
            raise ValueError(f"features with NaN or infinity: {', '.join(bad)}")
        if not (np.isfinite(self.residual).all() and (self.weight >= 0).all()):
            raise ValueError("base_us and latency_us must be positive and finite, weights not negative")

    def arrays(self) -> dict[str, np.ndarray]:
        """What `from_arrays` takes, as an .npz holds it."""
        arrays = {name: getattr(self, name).astype(kind) for name, kind in STORED.items()}
        arrays["names"] = np.asarray(self.names, dtype=str)
        for name, column in self.columns.items():
            arrays[f"codes:{name}"] = column.codes.astype(np.int16)
            arrays[f"values:{name}"] = np.asarray(column.values)
        return arrays

    def save(self, path: Path) -> None:
        """Write one compressed .npz."""
        np.savez_compressed(path, allow_pickle=False, **self.arrays())


def load(path: Path) -> Rows:
    """Read what `Rows.save` wrote."""
    with np.load(path, allow_pickle=False) as file:
        return from_arrays(file)


def from_arrays(file: Mapping[str, np.ndarray]) -> Rows:
    """Rows of what `Rows.arrays` gave."""
    named = [key.removeprefix("codes:") for key in file if key.startswith("codes:")]
    columns = {
        name: Column(file[f"codes:{name}"].astype(np.int64), tuple(map(str, file[f"values:{name}"]))) for name in named
    }
    wide = {"weight": np.float64, "group": np.int64, "fold": np.int64}
    arrays: dict[str, Any] = {name: file[name].astype(wide[name]) if name in wide else file[name] for name in STORED}
    return Rows(**arrays, names=tuple(map(str, file["names"])), columns=columns)

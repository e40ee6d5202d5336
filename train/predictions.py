"""What `train.fit` writes of held-out rows and everything else reads: split name → (log residual, scale)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Predictions = Mapping[str, tuple[Floats, Floats]]


def load_predictions(folder: Path) -> dict[str, tuple[Floats, Floats]]:
    """Split name → (log residual, scale) of its scored rows."""
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

"""What `train.fit` writes of held-out rows and everything else reads: split name → (log residual, scale)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Predictions = Mapping[str, tuple[Floats, Floats]]


def load_predictions(folder: Path) -> dict[str, tuple[Floats, Floats]]:
    """Split name → (log residual, scale) of its scored rows."""
    with np.load(folder / "predictions.npz", allow_pickle=False) as file:
        names = [key.removeprefix("mean|") for key in file.files if key.startswith("mean|")]
        return {name: (file[f"mean|{name}"].astype(float), file[f"scale|{name}"].astype(float)) for name in names}


def save_predictions(folder: Path, predictions: Predictions) -> None:
    """Write what `load_predictions` reads, as float32 in the order of each split's scored rows."""
    folder.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, NDArray[np.float32]] = {}
    for name, (mean, scale) in predictions.items():
        arrays |= {f"mean|{name}": mean.astype(np.float32), f"scale|{name}": scale.astype(np.float32)}
    np.savez_compressed(folder / "predictions.npz", allow_pickle=False, **arrays)

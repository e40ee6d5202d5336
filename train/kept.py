"""`train/heldout/<net>.npz`: what members said of rows they never saw, so that intervals need no training anew.

A sample of a run's rows without their features: of each GPU, stack, type and protocol equally many, evenly spread. A
split holds out of the sample what it holds out of all rows, so that what reads runs reads samples too
(`train.evaluate.held_out`). Members of single rows of a new GPU (`few:`) are left out: their draws are of all rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from train.predictions import Predictions, from_arrays, to_arrays
from train.rows import Ints, Rows
from train.rows import from_arrays as rows_from
from train.splits import by_name

FOLDER = Path(__file__).with_name("heldout")
KINDS = ("fold", "logo", "lofo")
EACH = 60  # rows of a GPU, stack, type and protocol
ALIKE = ("gpu", "stack", "dtype", "protocol")
COLUMNS = (*ALIKE, "family", "capability", "impl")


def sample(rows: Rows, each: int = EACH) -> Ints:
    """Indices of the rows that are kept, in order."""
    codes = np.stack([rows.columns[name].codes for name in ALIKE])
    kind = np.unique(codes, axis=1, return_inverse=True)[1].reshape(-1)
    return np.sort(np.concatenate([_spread(np.flatnonzero(kind == one), each) for one in np.unique(kind)]))


def _spread(index: Ints, most: int) -> Ints:
    """At most so many of these, evenly spread."""
    return index[np.unique(np.linspace(0, len(index) - 1, most).round().astype(np.int64))]


def thinned(rows: Rows, predictions: Predictions) -> tuple[Rows, Predictions]:
    """The sample of a run, its features gone."""
    index = sample(rows)
    found = {}
    for name in (name for name in predictions if name.partition(":")[0] in KINDS):
        mean, scale = predictions[name]
        mine = np.isin(by_name(name, rows).score, index)
        found[name] = mean[mine], scale[mine]
    return _plain(rows.take(index)), found


def _plain(rows: Rows) -> Rows:
    """Rows with a base estimate of one: only the residual is kept."""
    one = np.ones(len(rows))
    columns = {name: rows.columns[name] for name in COLUMNS}
    residual = np.exp(rows.residual).astype(np.float32).astype(np.float64)
    return Rows(np.zeros((len(rows), 0), np.float32), (), one, residual, one, rows.group, rows.fold, columns)


def save(net: str, rows: Rows, predictions: Predictions, folder: Path = FOLDER) -> Path:
    """Write the sample of a net."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{net}.npz"
    np.savez_compressed(path, allow_pickle=False, **rows.arrays(), **to_arrays(predictions, np.float16))
    return path


def load(net: str, folder: Path = FOLDER) -> tuple[Rows, Predictions]:
    """What `save` wrote; FileNotFoundError where a net has none."""
    with np.load(folder / f"{net}.npz", allow_pickle=False) as file:
        return rows_from(file), from_arrays(file)


def nets(folder: Path = FOLDER) -> Iterator[str]:
    """Nets with a sample, by name."""
    return (path.stem for path in sorted(folder.glob("*.npz")))

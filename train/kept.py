"""`train/heldout/<net>.npz`: what members said of rows they never saw, so that intervals need no training anew.

A sample of a run's rows without their features: of each GPU, stack, type and protocol alike, evenly spread. A
split holds out of the sample what it holds out of all rows, so that what reads runs reads samples too
(`train.evaluate.held_out`). Members of single rows of a new GPU (`few:`) are left out: their draws are of all rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from pipewave.nets.nets import load as weights
from train.intervals import ENOUGH_ROWS
from train.rows import Floats, Ints, Rows
from train.rows import from_arrays as rows_from
from train.run import Predictions, from_arrays, to_arrays
from train.splits import UNSEEN, WHOLE, by_name

FOLDER = Path(__file__).with_name("heldout")
EACH = 60  # rows of a GPU, stack, type and protocol
PROTOCOL = 3 * ENOUGH_ROWS  # rows of a protocol at least, where there are: what settles an interval of its own
ALIKE = ("gpu", "stack", "dtype", "protocol")
COLUMNS = (*ALIKE, "family", "capability", "impl")


def sample(rows: Rows, each: int = EACH) -> Ints:
    """Indices of the rows that are kept, in order: more of each where that many of a protocol are few."""
    protocol = rows.columns["protocol"].codes
    kept = [_of_protocol(rows, np.flatnonzero(protocol == one), each) for one in np.unique(protocol)]
    return np.sort(np.concatenate(kept))


def _of_protocol(rows: Rows, index: Ints, each: int) -> Ints:
    codes = np.stack([rows.columns[name].codes[index] for name in ALIKE])
    kind = np.unique(codes, axis=1, return_inverse=True)[1].reshape(-1)
    most = max(each, PROTOCOL // (kind.max() + 1))
    return np.concatenate([_spread(index[kind == one], most) for one in np.unique(kind)])


def _spread(index: Ints, most: int) -> Ints:
    """At most so many of these, evenly spread."""
    return index[np.unique(np.linspace(0, len(index) - 1, most).round().astype(np.int64))]


def thinned(rows: Rows, predictions: Predictions) -> tuple[Rows, Predictions]:
    """The sample of a run, its features gone."""
    index = sample(rows)
    found = {}
    for name in (name for name in predictions if name.partition(":")[0] in WHOLE):
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


def as_shipped(card: Path, rows: Rows, index: Ints | None = None) -> tuple[Floats, Floats]:
    """What the weights of a card say of these rows; of those that they never saw, in the order of `UNSEEN`."""
    net, index = weights(card).net, by_name(UNSEEN, rows).score if index is None else index
    text = {name: rows.columns[name].text()[index] for name in net.categories}
    keys = np.array(["|".join(key) for key in zip(*text.values(), strict=True)])
    mean, scale = np.empty(len(index)), np.empty(len(index))
    for key in np.unique(keys):
        at = np.flatnonzero(keys == key)
        features = {name: rows.features[index[at], place].astype(float) for place, name in enumerate(rows.names)}
        found = net(features, {name: str(values[at[0]]) for name, values in text.items()})
        mean[at], scale[at] = found.mean, found.scale
    return mean, scale


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

"""Two recordings of one kernel as one: `python -m pipewave.tune.join FIRST SECOND --out FILE`.

The test shapes are the first's. All of the second's drawn shapes become anchors, less any that the first tests; its
timer's rhythm is taken out before (`alternation`), since the first's order decides whether it is looked for.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipewave.errors import BadInput
from pipewave.tune.alternation import settled_us
from pipewave.tune.recording import ANCHOR, TEST, WAVE, Recording


def join(first: Recording, second: Recording) -> Recording:
    """Return both recordings' rows.

    Raises:
        BadInput: they are of different kernels, spaces or GPUs.
    """
    for name in ("kernel", "names", "fields"):
        if first.meta[name] != second.meta[name]:
            raise BadInput(f"{name}: {first.meta[name]} and {second.meta[name]} do not go together", field=name)
    if first.meta["env"]["gpu"] != second.meta["env"]["gpu"] or not np.array_equal(first.configs, second.configs):
        raise BadInput("the recordings are of different GPUs or configuration spaces", field="second")
    kept = _kept(first, second)
    place = np.cumsum(kept) - 1 + len(first.shapes)
    rows = kept[second.row_shape]
    role = np.where(second.role == WAVE, WAVE, ANCHOR).astype(np.uint8)
    joined = {"timed_s": first.meta["timed_s"] + second.meta["timed_s"], "joined": [second.meta["seed"]]}
    return replace(
        first, meta=first.meta | joined, shapes=np.concatenate([first.shapes, second.shapes[kept]]),
        role=np.concatenate([first.role, role[kept]]), counts=_stacked(first.counts, second.counts[kept]),
        row_shape=np.concatenate([first.row_shape, place[second.row_shape[rows]].astype(np.int32)]),
        row_config=np.concatenate([first.row_config, second.row_config[rows]]),
        row_half=np.concatenate([first.row_half, second.row_half[rows]]),
        row_us=np.concatenate([first.row_us, settled_us(second)[rows].astype(np.float32)]))  # fmt: skip


def _kept(first: Recording, second: Recording) -> NDArray[np.bool_]:
    """Shapes of the second that the first does not test; what is drawn at random about a shape does not tell two."""
    same = [i for i, name in enumerate(first.meta["fields"]) if name not in ("seed", "skew", "spread")]
    tested = {tuple(row) for row in first.shapes[first.role == TEST][:, same].tolist()}
    return np.array([tuple(row) not in tested for row in second.shapes[:, same].tolist()])


def _stacked(first: NDArray[np.int32], second: NDArray[np.int32]) -> NDArray[np.int32]:
    width = max(first.shape[1], second.shape[1])
    return np.concatenate([np.pad(some, ((0, 0), (0, width - some.shape[1]))) for some in (first, second)])


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("first", type=Path)
    parser.add_argument("second", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(argv)
    join(Recording.load(options.first), Recording.load(options.second)).save(options.out)


if __name__ == "__main__":
    main()

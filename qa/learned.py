"""Rows that a net learned from and misses all the same: `python -m qa.learned [NET ...] [--above 8] [--json FILE]`.

A cell is a GPU, a version, a kernel and a type. Where one is far above a net's others, training has held its rows to
answers of before they were measured again (`learn` of `train/plans/<net>.relearn.json` lets go of these), its rows
contradict one another, or no feature tells them apart. Rows of held-out groups are left out; the corpus is needed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from corpus import data_dir
from corpus.select import HELD_OUT
from train.cards import WEIGHTS
from train.kept import as_shipped
from train.net import nets
from train.registry import rows_of
from train.rows import Rows

OF_A_CELL = ("gpu", "stack", "impl", "dtype", "protocol")
FEWEST = 30  # rows that say anything


@dataclass(frozen=True, slots=True)
class Cell:
    """Learned rows of one GPU, version, kernel and type: how many, % off on average, and in the middle, signed."""

    net: str
    gpu: str
    stack: str
    impl: str
    dtype: str
    protocol: str
    rows: int
    off: float
    middle: float


def cells(net: str, rows: Rows) -> Iterator[Cell]:
    """Those of a net with rows enough."""
    index = np.flatnonzero((rows.fold != HELD_OUT) & (rows.weight > 0))
    mean, _ = as_shipped(WEIGHTS / f"{net}.json", rows, index)
    off = 100 * np.expm1(np.clip(mean - rows.residual[index], -5.0, 5.0))
    words = [
        rows.columns[name].text()[index] if name in rows.columns else np.full(len(index), "") for name in OF_A_CELL
    ]
    keys = np.stack(words, 1)
    names, cell = np.unique(keys, axis=0, return_inverse=True)
    for number, name in enumerate(names):
        some = off[cell.reshape(-1) == number]
        if len(some) >= FEWEST:
            gpu, stack, impl, dtype, protocol = map(str, name)
            figures = len(some), float(np.abs(some).mean()), float(np.median(some))
            yield Cell(net, gpu, stack, impl, dtype, protocol, *figures)


def main(argv: Sequence[str] | None = None) -> int:
    """Print cells that are far off, the furthest first; 1 where there are any."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("net", nargs="*", help="all by default")
    parser.add_argument("--above", type=float, default=8.0, help="percent")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(argv)
    if unknown := [name for name in options.net if name not in nets()]:
        parser.error(f"net {unknown[0]}: must be one of {', '.join(nets())}")
    if not data_dir(None).is_dir():
        parser.error(f"no corpus at {data_dir(None)}: set PIPEWAVE_DATA")
    found: list[Cell] = []
    for net in options.net or nets():
        print(f"{net} …", file=sys.stderr, flush=True)
        rows = rows_of(net, nets()[net].rows(net, data_dir(None)))
        found += [cell for cell in cells(net, rows) if cell.off > options.above]
    found.sort(key=lambda cell: -cell.off)
    print("| net | GPU | version | kernel | type | protocol | rows | % off | middle |")
    print("|---|---|---|---|---|---|---:|---:|---:|")
    for cell in found:
        print(
            "|", " | ".join(f"{one:.1f}" if isinstance(one, float) else f"{one}" for one in asdict(cell).values()), "|"
        )
    if options.json:
        options.json.write_text(json.dumps([asdict(cell) for cell in found], indent=1) + "\n", encoding="utf-8")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())

"""How well physics alone says what to time: `python -m studies.tune_rank [--spaces DIR …] [--out FILE]`.

Recorded launches of 17 kernels of eight projects, none of their times used: configurations are ranked by the counts
read from their source and the blocks that an SM holds of their binaries, as `pipewave tune rank` does without a GPU.
Scored by the best of the first so many against the best of all, beside as many at random and the author's own choice.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lab.any_kernel import spaces
from pipewave.tune.law.anchors import Floats
from pipewave.tune.law.model import physics_us
from studies.any_kernel.selectors import peaks_of_space

FOLDERS = [Path("data/recordings/any_kernel") / card for card in ("h200", "h100")]
FIRST = (1, 2, 4, 8)
CLOSE = 0.05  # of the best of all
DRAWS = 20


def lost(space: spaces.Space, ranked: Floats, count: int) -> Floats:
    """Loss [s] of timing only the first so many by a ranking [s, c]: the least number first."""
    us = space.us()
    first = np.argsort(np.where(np.isfinite(us), ranked, np.inf), axis=1, kind="stable")[:, :count]
    return np.asarray(np.nanmin(np.take_along_axis(us, first, axis=1), axis=1) / np.nanmin(us, axis=1) - 1)


def figures(space: spaces.Space, random: np.random.Generator) -> dict[str, Any]:
    """Losses of one space's launches, by how many are timed; the spread of physics about the launch's other times."""
    us, held = space.us(), space.held()
    ranked = np.log(physics_us(space.counts, held, peaks_of_space(space)))
    off = np.log(us) - ranked
    off -= np.nanmedian(off, axis=1, keepdims=True)
    draws = [lost(space, random.random(us.shape), FIRST[-1]) for _ in range(DRAWS)]
    default = us[np.arange(len(us)), space.default] / np.nanmin(us, axis=1) - 1
    near = us < 1.5 * np.nanmin(us, axis=1, keepdims=True)
    return {"configs": len(space.configs), **{str(count): lost(space, ranked, count) for count in FIRST},
            "random": np.concatenate(draws), "default": default, "spread": float(np.nanstd(off[near]))}  # fmt: skip


def summary(found: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Of all kernels of a card, each counting the same."""
    rows: dict[str, Any] = {}
    for name in (*(str(count) for count in FIRST), "random", "default"):
        each = [np.asarray(one[name]) for one in found.values()]
        weight = np.concatenate([np.full(len(one), 1 / len(one)) for one in each])
        every = np.concatenate(each)
        order = np.argsort(every)
        at = np.searchsorted(np.cumsum(weight[order]), 0.9 * weight.sum())
        rows[name] = {"within_5": float(np.mean([np.mean(one <= CLOSE) for one in each])),
                      "mean": float(np.mean([one.mean() for one in each])), "p90": float(every[order][at])}  # fmt: skip
    return rows | {"spread": float(np.sqrt(np.mean([one["spread"] ** 2 for one in found.values()])))}


def scored(folder: Path) -> dict[str, dict[str, Any]]:
    """Figures of every space of a folder."""
    random = np.random.default_rng(0)
    return {path.name.removesuffix(spaces.SUFFIX): figures(spaces.read(path), random) for path in spaces.found(folder)}


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point; see the module's description."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spaces", type=Path, nargs="*", default=FOLDERS)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(argv)
    every = {}
    for folder in options.spaces:
        found = scored(folder)
        every[folder.name] = summary(found)
        for name, one in found.items():
            shares = "  ".join(f"{count}: {np.mean(one[str(count)] <= CLOSE):.2f}" for count in FIRST)
            others = "  ".join(f"{each} {np.mean(one[each] <= CLOSE):.2f}" for each in ("random", "default"))
            print(f"{folder.name} {name:20} of {one['configs']:3}  {shares}  {others}")
        for name, row in every[folder.name].items():
            print(f"{folder.name} {name}: {json.dumps(row)}")
    if options.out:
        options.out.write_text(json.dumps(every, indent=1) + "\n")


if __name__ == "__main__":
    main()

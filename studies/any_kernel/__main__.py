"""`python -m studies.any_kernel --out DIR`: score every way to choose on the spaces of a folder, print. No GPU.

`python -m lab.any_kernel --out DIR` records them. `--from DIR` adds the transfer: tables of that folder's card, and so
many anchors (`--anchors 20`) of this one.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from lab.any_kernel import spaces
from pipewave.files.whole import write as replace
from pipewave.tune.law.model import fit, moved
from studies import rounded
from studies.any_kernel.selectors import SELECTORS, Selector, peaks_of_space, pipewave, score

BARS = {"mean_regret": 0.02, "worst_regret": 0.10, "slower_share": 0.02}


def scored(out: Path, source: Path | None, anchors: int) -> dict[str, Any]:
    """Figures of every selector at every space, of the transfer, and of first use."""
    found: dict[str, Any] = {}
    for path in spaces.found(out):
        name, space = path.name.removesuffix(spaces.SUFFIX), spaces.read(path)
        rows: dict[str, Any] = {}
        for each, selector in SELECTORS.items():
            try:
                rows[each] = score(space, selector)
            except ImportError:
                continue
        if source is not None and (source / path.name).exists():
            rows[f"transfer, {anchors} anchors"] = score(
                space, transfer(spaces.read(source / path.name), space), anchors
            )
            rows[f"{anchors} anchors alone"] = score(space, pipewave, anchors)
        used = out / f"{name}.first_use.json"
        found[name] = {"selectors": rows, "first_use": json.loads(used.read_text()) if used.exists() else {}}
    return found


def transfer(source: spaces.Space, target: spaces.Space) -> Selector:
    """Ours with the source card's model as prior."""
    every = np.flatnonzero(~np.array(source.is_test))
    model = fit(source.anchors(every), peaks_of_space(source))
    return partial(pipewave, there=moved(model, peaks_of_space(target)))


def table(found: dict[str, Any]) -> str:
    """The bars' table: a line a kernel and selector, what misses a bar marked."""
    lines = [f"{'kernel':20} {'selector':22} {'mean %':>7} {'worst %':>8} {'slower %':>8} {'speed-up':>8}  misses"]
    for name, each in found.items():
        for selector, row in each["selectors"].items():
            misses = ", ".join(bar for bar, most in BARS.items() if row[bar] > most) if selector == "pipewave" else ""
            lines.append(f"{name:20} {selector:22} {100 * row['mean_regret']:7.2f} {100 * row['worst_regret']:8.1f} "
                         f"{100 * row['slower_share']:8.1f} {row['speed_up']:8.2f}  {misses}")  # fmt: skip
        if each["first_use"]:
            used = each["first_use"]
            lines.append(f"{name:20} {'first use, 2 s':22} {100 * used.get('measured_regret', 0):7.2f} at "
                         f"{used['measured']} measured, {100 * used.get('unseen_regret', 0):.2f} beyond")  # fmt: skip
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point; see the module's description."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of spaces")
    parser.add_argument("--json", type=Path, help="where the figures go, instead of beside the spaces")
    parser.add_argument("--from", dest="source", type=Path)
    parser.add_argument("--anchors", type=int, default=20)
    options = parser.parse_args(argv)
    found = scored(options.out, options.source, options.anchors)
    replace(options.json or options.out / "scores.json", (json.dumps(rounded(found, None), indent=1) + "\n").encode())
    print(table(found))


if __name__ == "__main__":
    main()

"""Replay recorded spaces: the regret of every selector against the exhaustive optimum, with no GPU.

The optimum of a shape is the configuration that was fastest in one half of the repeats; every selector, the optimum
too, is then scored on the other half. Both ways round, averaged. Selectors see anchors only, all the same ones. The
timer's own rhythm is taken out first (`alternation`); `mean_regret_as_recorded` is the figure with it left in, where
the recorded optimum is partly a lucky one and every selector looks better than it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipewave.errors import BadFile, BadInput
from pipewave.tune import load_table
from pipewave.tune.margin import defaults
from pipewave.tune.measured import Measured, measured
from pipewave.tune.pairs import choices_of, compare
from pipewave.tune.recording import TEST, Recording
from pipewave.tune.selector import Selector
from pipewave.tune.selectors import SELECTORS
from pipewave.tune.shapes import family
from pipewave.tune.space import kernels, space

Floats = NDArray[np.float64]


def regrets(halves: Floats, chosen: NDArray[np.int64]) -> Floats:
    """Regret [s] of chosen configurations [s] from halves [s, c, 2]: optimum on one half, both scored on the other.

    A choice that was timed in one half only (an anchor's slow ones are) is scored on that half.
    """
    at = np.arange(len(halves))
    found = []
    for seen, scored in ((0, 1), (1, 0)):
        best = np.nanargmin(halves[..., seen], axis=1)
        found.append(halves[at, chosen, scored] / halves[at, best, scored] - 1)
    return np.asarray(np.nanmean(found, axis=0))


def summary(lost: Floats) -> dict[str, float]:
    """Return the figures of some regrets, as fractions."""
    return {"mean_regret": float(lost.mean()), "p95_regret": float(np.quantile(lost, 0.95)),
            "worst_regret": float(lost.max()), "share_of_optimum": float(np.mean(1 / (1 + lost)))}  # fmt: skip


def evaluate(recording: Recording, names: Sequence[str]) -> dict[str, Any]:
    """Score selectors on the test shapes of one recording."""
    test, as_recorded = measured(recording, TEST), measured(recording, TEST, settled=False)
    out: dict[str, Any] = {}
    skipped: dict[str, str] = {}
    for name in names:
        made: Selector | str = SELECTORS[name](recording, test)
        if isinstance(made, str):
            skipped[name] = made
            continue
        lost = regrets(test.halves, made.chosen)
        default = defaults(test.kernel, test.config, test.shape)
        out[name] = summary(lost) | {"decision_us": made.decision_us} | speed_up(test, made.chosen, default)
        out[name] |= {"keeps_default": float(np.mean(made.chosen == default))} | made.extra
        out[name]["mean_regret_as_recorded"] = float(regrets(as_recorded.halves, made.chosen).mean())
    return {"shapes": len(test.us), "configurations": test.us.shape[1], "noise": noise(test.halves), "selectors": out,
            "skipped": skipped}  # fmt: skip


def noise(halves: Floats) -> dict[str, float]:
    """How far the repeats alone are from agreeing: regret of one half's optimum against the other half's own."""
    at = np.arange(len(halves))
    lost = np.mean(
        [halves[at, np.nanargmin(halves[..., 1 - half], axis=1), half] / np.nanmin(halves[..., half], axis=1) - 1
         for half in (0, 1)], axis=0)  # fmt: skip
    return summary(lost)


def recorded(folder: Path) -> list[str]:
    """Return the kernels recorded in a folder.

    Raises:
        BadFile: there is none.
    """
    found = [kernel for kernel in kernels() if (folder / f"{kernel}.npz").exists()]
    if not found:
        raise BadFile(
            f"{folder} holds no recording; they live in data/recordings of the repository", field="recordings"
        )
    return found


def evaluate_all(folder: Path, names: Sequence[str], selectors: Sequence[str] | None = None) -> dict[str, Any]:
    """Score recordings of a folder: {"kernels": {kernel: {"shapes", "selectors": {selector: figures}}}}.

    Raises:
        BadInput: an unknown selector. BadFile: no such recording.
    """
    unknown = sorted(set(selectors or ()) - set(SELECTORS))
    if unknown:
        raise BadInput(f"selector {unknown[0]!r} is not known; known: {', '.join(SELECTORS)}", field="selectors")
    chosen = list(selectors or SELECTORS)
    found = {}
    for kernel in names:
        found[kernel] = evaluate(Recording.load(folder / f"{kernel}.npz"), chosen)
        pairs = folder / f"pairs_{kernel}.npz"
        if pairs.exists():
            found[kernel]["against_default"] = against_default(Recording.load(pairs))
    return {"kernels": found}


def against_default(recording: Recording) -> dict[str, Any]:
    """Score what the GPU's table chooses now at the further shapes, and say at how many that was not timed.

    Beside the figures without the load, `load_known` has those with it, where a launch has one and it was recorded.
    """
    kernel, names = recording.meta["kernel"], recording.meta["fields"]
    of, table = space(kernel), load_table(kernel, gpu=recording.meta["env"]["gpu"], env={})
    shapes = [dict(zip(names, row, strict=True)) for row in recording.shapes.tolist()]
    routed = recording.counts.tolist() or [[]] * len(shapes)
    found: dict[str, Any] = {**compare(recording, choices_of(table, of, shapes, routed))}
    if family(kernel) == "decode" or recording.counts.any():
        found["load_known"] = compare(recording, choices_of(table, of, shapes, routed, known_load=True))
    return found


def speed_up(test: Measured, chosen: NDArray[np.int64], default: NDArray[np.int64]) -> dict[str, float]:
    """Geometric mean and maximum of default µs over chosen µs."""
    at = np.arange(len(test.us))
    gain = test.us[at, default] / test.us[at, chosen]
    return {"speed_up_geomean": float(np.exp(np.log(gain).mean())), "speed_up_max": float(gain.max())}

"""Our fit beside WaveTune's on the recordings of our own kernels: `python -m studies.tune_selectors [--kernels …]`.

Ours is the fit behind the shipped tables. WaveTune as published (arXiv 2604.10187): for each macro tile and wave,
T = αGL + βG + γL + δ by ordinary least squares over the fastest micro parameters; at run time the least macro wins,
with the micro of the nearest profiled L. Nearest key, one configuration for all and XGBoost on other people's kernels:
`studies.any_kernel`.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from lab.own_kernels.making import numbers_of, sizes
from lab.own_kernels.measured import Measured, measured
from lab.own_kernels.recording import ANCHOR, TEST, Recording
from pipewave.tune import tables
from pipewave.tune.law.anchors import Anchors, Floats, Ints, peaks_of
from pipewave.tune.law.model import fit
from pipewave.tune.shipped_kernels import defaults
from studies.tune_evaluate import regrets, summary

RECORDINGS = Path("data/recordings/h200")
MACRO = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "SPLITS")
LEAST = 5  # samples of a bucket: one more than the coefficients


def anchors_of(some: Measured) -> Anchors:
    """Recorded launches with their counts, load known."""
    numbers = numbers_of(some, load=True)
    formulas = tables.formulas(some.kernel, {name: float(values[0]) for name, values in numbers.items()})
    at = np.stack([numbers[name] for name in sizes(some.kernel)], axis=1)
    return Anchors(at, formulas.many(numbers), some.us, some.config, some.resident)


def ours(some: Anchors, test: Anchors, default: Ints, at_test: Ints) -> Ints:
    """The fit behind the tables, all configurations compared."""
    model = fit(some, peaks_of("NVIDIA H200"), default=default)
    return np.asarray(model.ranked(test.counts, test.logs, at_test).argmin(axis=1))


def by_default(_some: Anchors, _test: Anchors, _default: Ints, at_test: Ints) -> Ints:
    """What runs without tuning."""
    return at_test


def wavetune(some: Anchors, test: Anchors, *_: Ints) -> Ints:
    """WaveTune as published, with all anchors."""
    sms = peaks_of("NVIDIA H200").sms
    macros = np.stack([values for name, values in some.config.items() if name in MACRO], axis=1)
    us, chosen = np.full(len(test.us), np.inf), np.zeros(len(test.us), np.int64)
    for macro in np.unique(macros, axis=0):
        members = np.flatnonzero((macros == macro).all(axis=1))
        buckets = _buckets(some, members, sms)
        waves = np.array(list(buckets))
        for s in range(len(test.us)) if buckets else ():
            grid, loop = test.counts[s, members[0], :2]
            wave = -(-grid // sms)
            known = int(waves[np.abs(waves - wave).argmin()])
            theta, profiled, best = buckets[known]
            scale = wave / known
            expected = float(np.array([grid / scale * loop, grid / scale, loop, 1.0]) @ theta) * scale
            if expected < us[s]:
                us[s], chosen[s] = expected, best[np.abs(np.log(profiled / loop)).argmin()]
    return chosen


def _buckets(some: Anchors, members: Ints, sms: int) -> dict[int, tuple[Floats, Floats, Ints]]:
    """By wave: θ, profiled L, and the fastest configuration there."""
    rows = defaultdict(list)
    for s in np.flatnonzero(np.isfinite(some.us[:, members]).all(axis=1)):
        grid, loop = some.counts[s, members[0], :2]
        best = members[some.us[s, members].argmin()]
        rows[int(-(-grid // sms))].append((grid, loop, some.us[s, best], best))
    found = {}
    for wave, of in rows.items():
        grid, loop, us, best = (np.array(column) for column in zip(*of, strict=True))
        if len(of) >= LEAST:
            x = np.stack([grid * loop, grid, loop, np.ones_like(grid)], axis=1)
            found[wave] = np.linalg.lstsq(x, us, rcond=None)[0], loop, best
    return found


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernels", default=",".join(tables.KERNELS))
    for kernel in parser.parse_args(argv).kernels.split(","):
        recording = Recording.load(RECORDINGS / f"{kernel}.npz")
        some, test = measured(recording, ANCHOR), measured(recording, TEST)
        default, at_test = (defaults(kernel, one.config, one.shape) for one in (some, test))
        for choose in (ours, wavetune, by_default):
            lost = summary(regrets(test.halves, choose(anchors_of(some), anchors_of(test), default, at_test)))
            print(f"{kernel:20} {choose.__name__:12} mean {100 * lost['mean_regret']:7.2f} %, "
                  f"worst {100 * lost['worst_regret']:7.1f} %")  # fmt: skip


if __name__ == "__main__":
    main()

"""What each part of the tuner is worth: `python -m bench.tune_ablation [--kernels gemm,moe_w13]`. No GPU.

From the published method up, one part more a row; then the whole less one part. Every row is fitted to the same anchors
(the published one to its own kind) and scored on the test shapes as `pipewave tune evaluate` does. Choices are made
among all configurations, so that the short lists' own loss shows in the rows of what is shipped only. Beside it: R² of
the published law by macro and wave, and how often our stated regret bound held.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bench.tune_kernels import each_kernel
from pipewave.tune import cells, published, selectors
from pipewave.tune.evaluate import noise, regrets
from pipewave.tune.explain import bound
from pipewave.tune.fitted import Fitted, Options, fit, fit_to
from pipewave.tune.lookup import lookup
from pipewave.tune.measured import Measured, measured
from pipewave.tune.recording import ANCHOR, TEST, WAVE, Recording
from pipewave.tune.table import make
from pipewave.tune.wave import GROUPS, terms_of

Chosen = Callable[[Recording, Measured], np.ndarray]
OUT = Path(__file__).parent / "results" / "tune_ablation.json"
RISING = ("launch", "wave")


def law(*groups: str, **left_out: bool) -> Chosen:
    """Choose by the laws alone, made of some term groups."""

    def choose(recording: Recording, test: Measured) -> np.ndarray:
        keep = tuple(sorted({index for name in groups for index in GROUPS[name]} & set(terms_of(test.kernel))))
        made = fit(recording, Options(keep=keep, smoothing=False, **left_out))
        return made.us(test.columns()).argmin(axis=1)

    return choose


def whole(**left_out: bool) -> Chosen:
    """Choose by laws and smoothed residual, less what is named."""

    def choose(recording: Recording, test: Measured) -> np.ndarray:
        options = Options(**left_out)
        return fit(recording, options).with_margin_us(test.columns(load=options.load)).argmin(axis=1)

    return choose


def even_loops(recording: Recording, test: Measured) -> np.ndarray:
    """Choose as if causal blocks all had the longest one's trips."""
    parts = [_uncausal(measured(recording, role)) for role in (ANCHOR, WAVE)]
    made = fit_to(parts[0], parts[1], int(recording.meta["env"]["sm_count"]))
    return made.with_margin_us(test.columns()).argmin(axis=1)


def any_order(recording: Recording, test: Measured) -> np.ndarray:
    """Choose by laws without what unequal blocks in any order cost beyond their mean and their longest."""
    keep = tuple(index for index in terms_of(test.kernel) if index not in GROUPS["ragged"])
    return fit(recording, Options(keep=keep)).with_margin_us(test.columns()).argmin(axis=1)


def _uncausal(some: Measured) -> Measured:
    return replace(some, kernel=some.kernel.replace("causal", "full"))


def shipped(fitted: Fitted, recording: Recording, test: Measured) -> np.ndarray:
    """Choose through short lists."""
    table = lookup(make(fitted, cells.build(fitted), recording.meta))
    number = {id(config): i for i, config in enumerate(table.configs)}
    return np.array([number[id(table.select(**shape))] for shape in selectors.loaded(test, recording)])


STEPS: dict[str, Chosen] = {
    "published": lambda r, t: selectors.as_published(r, t).chosen,
    "one law a configuration, affine in waves": law(*RISING, occupancy=False, relative=False),
    "+ relative loss": law(*RISING, occupancy=False),
    "+ waves as wide as occupancy": law(*RISING),
    "+ first wave, busiest SM, last wave": law(*RISING, "first", "busiest"),
    "+ work shared by all SMs": law(*RISING, "first", "busiest", "work"),
    "+ bytes (memory, L2)": law(*GROUPS),
    "+ smoothed residual: all of it": whole(),
    "all less relative loss": whole(relative=False),
    "all less occupancy": whole(occupancy=False),
    "all less unequal loops (causal)": even_loops,
    "all less ragged blocks (crowded, late)": any_order,
    "all less load (routing, longest sequence)": whole(load=False),
    "as shipped, by short lists": lambda r, t: shipped(fit(r), r, t),
}
ONLY = {"all less unequal loops (causal)": "causal", "all less ragged blocks (crowded, late)": "decode",
        "all less load (routing, longest sequence)": ("moe", "decode")}  # fmt: skip


def covered(recording: Recording, test: Measured) -> dict[str, float]:
    """How often the regret of the choice stayed below the bound stated for it, and the bound's median."""
    made = fit(recording)
    us = made.us(test.columns())
    chosen = us.argmin(axis=1)
    stated = np.array([bound(row, made.sigma, int(at)) for row, at in zip(us, chosen, strict=True)])
    return {"held": float(np.mean(regrets(test.halves, chosen) <= stated)), "median_bound": float(np.median(stated))}


def ablate(recording: Recording, kernel: str) -> dict[str, Any]:
    """Score every step at one kernel."""
    test = measured(recording, TEST)
    rows: dict[str, dict[str, float]] = {}
    for name, choose in STEPS.items():
        only = ONLY.get(name, "")
        if only and not any(part in kernel for part in ((only,) if isinstance(only, str) else only)):
            continue
        lost = regrets(test.halves, choose(recording, test))
        rows[name] = {"mean_regret": float(lost.mean()), "worst_regret": float(lost.max())}
        print(f"{kernel:20} {name:44} mean {lost.mean():7.2%}  worst {lost.max():7.1%}", flush=True)
    r2 = published.r2_table(selectors.published_table(recording))
    r2["worst"] = min(row["r2"] for row in r2.pop("every"))
    return {"steps": rows, "published_r2": r2, "regret_bound": covered(recording, test), "noise": noise(test.halves)}


def main() -> None:
    """Print one line a step and kernel; write the whole as JSON."""
    each_kernel(__doc__, OUT, ablate)


if __name__ == "__main__":
    main()

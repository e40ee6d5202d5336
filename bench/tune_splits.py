"""Regret over repeated random splits: `python -m bench.tune_splits [--kernels gemm,moe_w13]`. No GPU.

The fixed test shapes of a recording were seen while the tuner was developed. Here drawn shapes, test and anchor, are
pooled and split anew, seeds 0 to 4: 64 to score, the rest to fit. Anchors were timed two to four times a configuration,
test shapes up to ten, so the scores are noisier than those of the fixed split. Choices are made among all
configurations. The same shapes answer, by replay, how often the choice is slower than the default configuration.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from bench.tune_kernels import each_kernel
from pipewave.tune.evaluate import noise, regrets
from pipewave.tune.fitted import fit_to
from pipewave.tune.margin import defaults
from pipewave.tune.measured import Measured, measured
from pipewave.tune.recording import ANCHOR, TEST, WAVE, Recording

OUT = Path(__file__).parent / "results" / "tune_splits.json"
SCORED = 64
SEEDS = range(5)


def split(pool: Measured, waves: Measured, sms: int, default: np.ndarray, seed: int) -> dict[str, np.ndarray]:
    """Fit to all but 64 shapes; returns regret and slow-down against the default of those, and their mean noise."""
    order = np.random.default_rng(seed).permutation(len(pool.us))
    scored, fitted = order[:SCORED], order[SCORED:]
    held = pool.take(scored)
    made = fit_to(pool.take(fitted), waves, sms)
    out = {"noise": np.array([noise(held.halves)["mean_regret"]])}
    row = np.arange(SCORED)
    for name, load in (("", True), ("_unknown", False)):
        chosen = made.with_margin_us(held.columns(load=load)).argmin(axis=1)
        out[f"regret{name}"] = regrets(held.halves, chosen)
        out[f"slower{name}"] = held.us[row, chosen] / held.us[row, default[scored]] - 1
    return out


def study(recording: Recording) -> dict[str, float]:
    """Summarise the splits of one recording."""
    pool, waves = measured(recording, TEST, ANCHOR), measured(recording, WAVE)
    default = defaults(pool.kernel, pool.config, pool.shape)
    found = [split(pool, waves, int(recording.meta["env"]["sm_count"]), default, seed) for seed in SEEDS]
    regret, slower, unknown_load, slower_unknown = (
        np.concatenate([one[name] for one in found])
        for name in ("regret", "slower", "regret_unknown", "slower_unknown")
    )
    return {"anchors": len(pool.us) - SCORED, "shapes": len(regret), "mean_regret": float(regret.mean()),
            "mean_regret_sd_over_splits": float(np.std([one["regret"].mean() for one in found])),
            "p95_regret": float(np.quantile(regret, 0.95)),
            "worst_regret_mean_over_splits": float(np.mean([one["regret"].max() for one in found])),
            "worst_regret": float(regret.max()), "noise": float(np.mean([one["noise"] for one in found])),
            "slower_than_default_share": float(np.mean(slower > 0.02)),
            "worst_slowdown": float(slower.max()), "mean_regret_load_unknown": float(unknown_load.mean()),
            "slower_than_default_share_load_unknown": float(np.mean(slower_unknown > 0.02))}  # fmt: skip


def _printed(recording: Recording, kernel: str) -> dict[str, float]:
    found = study(recording)
    print(kernel, json.dumps(found), flush=True)
    return found


def main() -> None:
    """Print one line a kernel and write the whole as JSON."""
    each_kernel(__doc__, OUT, _printed)


if __name__ == "__main__":
    main()

"""How configurations carry over from card to card: `python -m bench.tune_carryover`. No GPU.

Data: the 98,699 fused-MoE configuration timings published with PipeWeave (`pipeweave/pipetuning_test` below
PIPEWAVE_DATA), 288 shapes on each of six cards. They list near-best configurations only: those within 1 % of the best,
and the three best. A choice from elsewhere that is listed has a known regret; one that is not listed lost more than
1 %, how much more is not recorded. So the figure here is the share of shapes where a choice stays within 1 %.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

OUT = Path(__file__).parent / "results" / "tune_carryover.json"
SHAPE = ["M", "E", "topk", "H", "N"]
TILE = ["BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K"]
CONFIG = [*TILE, "GROUP_SIZE_M", "num_warps", "num_stages"]
SEEDS = range(5)
Choices = pd.Series  # by shape: the identity of a configuration


def folder() -> Path:
    """Return where the timings are."""
    default = Path(__file__).parents[2] / "shared" / "data"
    return Path(os.environ.get("PIPEWAVE_DATA", default)) / "pipeweave" / "pipetuning_test"


def listed(path: Path) -> pd.DataFrame:
    """Read every timed (card, shape, configuration) once, with its regret against the best of that card and shape."""
    rows = pd.read_parquet(path / "moe_dse.parquet").drop_duplicates(["hardware", *SHAPE, *CONFIG])
    rows = rows.assign(
        shape=list(rows[SHAPE].itertuples(index=False, name=None)),
        config=list(rows[CONFIG].itertuples(index=False, name=None)),
        tile=list(rows[TILE].itertuples(index=False, name=None)),
    )
    best = rows.groupby(["hardware", "shape"]).avg_duration.transform("min")
    return rows.assign(regret=rows.avg_duration / best - 1)


def best_of(card: pd.DataFrame) -> Choices:
    """Return the fastest configuration of each shape."""
    return card.sort_values("avg_duration", kind="stable").groupby("shape").config.first()


def score(card: pd.DataFrame, chosen: Choices) -> dict[str, float]:
    """How choices do on a card: share within 1 % of its best, their mean regret, share whose tile alone was right."""
    known = card.set_index(["shape", "config"]).regret
    regret = known.reindex(pd.MultiIndex.from_tuples(list(chosen.items()))).to_numpy()
    good = np.isfinite(regret) & (regret <= 0.0105)  # timings are rounded
    tiles = card.groupby("shape").tile.agg(set)
    right = [config[:3] in tiles[shape] for shape, config in chosen.items()]
    return {"within_1_percent": float(good.mean()), "mean_regret_of_those": float(regret[good].mean()),
            "tile_right": float(np.mean(right))}  # fmt: skip


def between(rows: pd.DataFrame) -> dict[str, dict[str, dict[str, float]]]:
    """Score every card's best configurations on every other card: {from: {to: figures}}."""
    cards = dict(list(rows.groupby("hardware")))
    return {
        source: {target: score(cards[target], best_of(cards[source])) for target in cards if target != source}
        for source in cards
    }


def from_anchors(card: pd.DataFrame, count: int, seed: int) -> dict[str, float]:
    """Score choices that know the best configuration of `count` shapes of the same card: the nearest one's is taken."""
    best = best_of(card)
    shapes = np.array(best.index.tolist(), float)
    known = np.random.default_rng(seed).permutation(len(best))[:count]
    others = np.setdiff1d(np.arange(len(best)), known)
    far = np.abs(np.log(shapes[others])[:, None] - np.log(shapes[known])[None]).sum(axis=2)
    chosen = pd.Series(best.to_numpy()[known[far.argmin(axis=1)]], index=best.index[others])
    return score(card[card["shape"].isin(set(chosen.index))], chosen)


def few_anchors(rows: pd.DataFrame, counts: tuple[int, ...] = (16, 32, 64, 128)) -> dict[str, dict[str, float]]:
    """Mean over cards and draws of choosing from few anchors of the card itself."""
    cards = [card for _, card in rows.groupby("hardware")]
    return {
        str(count): _mean([from_anchors(card, count, seed) for card in cards for seed in SEEDS]) for count in counts
    }


def default_regret(path: Path) -> dict[str, dict[str, float]]:
    """Regret of SGLang's choice on each card, from the published gain of the best over it (a share of its time)."""
    rows = pd.read_parquet(path / "improvement_sglang_detail.parquet")
    rows.columns = ["hardware", "weight_type", *SHAPE, "gain_percent"]
    lost = rows.gain_percent / (100 - rows.gain_percent)
    found = lost.groupby(rows.hardware).agg(["mean", "max", lambda some: (some <= 0.0105).mean()])
    found.columns = ["mean_regret", "worst_regret", "within_1_percent"]
    return {str(card): {name: float(value) for name, value in row.items()} for card, row in found.iterrows()}


def _mean(some: list[dict[str, float]]) -> dict[str, float]:
    return {name: float(np.mean([one[name] for one in some])) for name in some[0]}


def study(path: Path) -> dict[str, Any]:
    """Return everything the script reports."""
    rows = listed(path)
    pairs = between(rows)
    every = [figures for targets in pairs.values() for figures in targets.values()]
    return {"schema_version": 1, "timings": len(rows), "cards": sorted(pairs), "shapes": int(rows["shape"].nunique()),
            "another_card": {"mean": _mean(every), "pairs": pairs}, "few_anchors": few_anchors(rows),
            "sglang_default": default_regret(path)}  # fmt: skip


def main() -> None:
    """Print the matrix and write the result; say so and stop where the data is absent."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    path = folder()
    if not (path / "moe_dse.parquet").exists():
        print(f"skipped: {path} holds no moe_dse.parquet; set PIPEWAVE_DATA")
        return
    found = study(path)
    for source, targets in found["another_card"]["pairs"].items():
        print(source, " ".join(f"{target} {figures['within_1_percent']:.0%}" for target, figures in targets.items()))
    print(json.dumps({name: found[name] for name in ("few_anchors", "sglang_default")}, indent=1))
    options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()

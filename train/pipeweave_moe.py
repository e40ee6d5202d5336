"""`python -m train.pipeweave_moe`: our fused-MoE net on PipeWeave's own split of its own rows, and on a harder one.

Trained on the paper's six seen GPUs alone, once with a fifth of the shapes held out (as the reference is) and once with
whole model shapes held out; scored on the held-out shapes of all eleven GPUs. Writes `train/tables/`
`fused_moe.pipeweave.json`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pandas as pd

from paper.training.experiments import moe_model_split, moe_split
from paper.training.rows import SEEN, Split
from paper.training.rows import Rows as PaperRows
from train.evaluate import Errors, errors, formatted, macro
from train.fit import Plan, fit
from train.nets.fused_moe import features
from train.pack import pack
from train.rows import Column, Rows

SPLITS: dict[str, Callable[[Path], Split]] = {"shapes": moe_split, "model shapes": moe_model_split}
SOFTWARE = {"dtype": "bf16", "protocol": "profiler_warm", "stack": "sglang-0.5.4", "impl": "triton", "part": "w13"}
LAYER = {"routing": "balanced", "config": None, "gated": True, "tp": 1, "ep": 1, "noise": np.nan}
TEST = "lofo:test"  # the rows to score pose as a family of GPUs, so that the trainer holds them out
PLAN = Plan(splits=(TEST,), seeds=3, categories=(), hidden=(96, 96), activation="relu", epochs=100.0, batch=1024)
CORPUS = Path(__file__).resolve().parents[1] / ".." / "shared" / "data"
OUT = Path(__file__).with_name("tables") / "fused_moe.pipeweave.json"


def together(split: Split) -> Rows:
    """Both parts of a split with our features, distinguished by `family`."""
    frame = pd.concat([_frame(split.train).assign(role="train"), _frame(split.test).assign(role="test")])
    frame = frame.reset_index(drop=True)
    rows = pack(frame, *features(frame))
    return replace(rows, columns={**rows.columns, "family": Column.of(frame["role"].to_numpy(str))})


def _frame(rows: PaperRows) -> pd.DataFrame:
    frame = pd.DataFrame(rows.shape).assign(gpu=rows.gpu, latency_us=rows.latency_us, **SOFTWARE, **LAYER)
    return frame.assign(group=frame[["hidden", "inter", "topk", "experts"]].astype(str).agg(",".join, axis=1))


def score(split: Split, plan: Plan = PLAN) -> dict[str, Errors]:
    """Errors on the held-out shapes by GPU, and means over the seen and over the unseen GPUs."""
    return scored(together(split), plan)


def scored(rows: Rows, plan: Plan) -> dict[str, Errors]:
    """Train on the rows whose `family` is `train`, score the others."""
    mean, _ = fit(rows, plan).predictions[TEST]
    held = rows.take(rows.columns["family"].text() == "test")
    gpu, error = held.columns["gpu"].text(), mean - held.residual
    cells = {
        str(name): errors(error[gpu == name], np.full(int((gpu == name).sum()), np.nan)) for name in np.unique(gpu)
    }
    seen = macro({name: cell for name, cell in cells.items() if name in SEEN})
    unseen = macro({name: cell for name, cell in cells.items() if name not in SEEN})
    return cells | {"seen": seen, "unseen": unseen}


def main(argv: list[str] | None = None) -> int:
    """Run the command; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m train.pipeweave_moe", description=__doc__)
    parser.add_argument("--data", type=Path, default=CORPUS)
    parser.add_argument("--json", type=Path, default=OUT)
    options = parser.parse_args(argv)
    found = {name: score(split(options.data)) for name, split in SPLITS.items()}
    for name, cells in found.items():
        print(formatted(f"held out: {name}", cells) + "\n")
    wanted = ("rows", "mape", "median", "bias", "off")
    report = {
        name: {cell: {k: asdict(e)[k] for k in wanted} for cell, e in cells.items()} for name, cells in found.items()
    }
    options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""`python -m paper.training.ours`: our nets on PipeWeave's own rows and splits, and on a harder one.

The net of fused experts is trained on the paper's six seen GPUs alone, once with a fifth of the shapes held out (as the
reference is) and once with whole model shapes held out; scored on the held-out shapes of all eleven GPUs. That of
block-scaled products is trained on the H20's and H800's rows alone and scored on the published test shapes on these
two, on H100 and on H200 (vLLM 0.11, block scales, PyTorch profiler). Writes `train/tables/*.pipeweave.json`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from corpus import data_dir
from paper.training.experiments import moe_model_split, moe_split
from paper.training.rows import SEEN, Rows, Split, fp8_split
from train.evaluate import Errors, errors, formatted, macro
from train.fit import Plan, fit
from train.net import nets, pack
from train.rows import Column
from train.rows import Rows as OurRows

TEST = "lofo:test"  # the rows to score pose as a family of GPUs, so that the trainer holds them out
EXPERTS = {
    "dtype": "bf16", "protocol": "profiler_warm", "stack": "sglang-0.5.4", "impl": "triton", "part": "w13",
    "routing": "balanced", "config": None, "gated": True, "tp": 1, "ep": 1, "noise": np.nan,
}  # fmt: skip
EXPERTS_PLAN = Plan(
    splits=(TEST,), seeds=3, categories=(), hidden=(96, 96), activation="relu", epochs=100.0, batch=1024
)
PRODUCTS = {
    "dtype": "fp8_block", "protocol": "profiler_warm", "stack": "vllm-0.11.0", "impl": "cutlass",
    "quantize": False, "sm_clock_mhz": 0.0, "noise": np.nan,
}  # fmt: skip
PRODUCTS_PLAN = replace(EXPERTS_PLAN, seeds=4, activation="silu", epochs=200.0)
TABLES = Path(__file__).resolve().parents[2] / "train" / "tables"
FIGURES = ("rows", "mape", "median", "bias", "off")


def together(net: str, split: Split, software: Mapping[str, Any], shape: Sequence[str]) -> OurRows:
    """Both parts of a split with our features, distinguished by `family`; groups are of the same `shape`."""
    parts = {"train": split.train, "test": split.test}
    frames = [_frame(rows, software, shape).assign(role=role) for role, rows in parts.items()]
    frame = pd.concat(frames).reset_index(drop=True)
    rows = pack(frame, *nets()[net].features(net, frame))
    return replace(rows, columns={**rows.columns, "family": Column.of(frame["role"].to_numpy(str))})


def _frame(rows: Rows, software: Mapping[str, Any], shape: Sequence[str]) -> pd.DataFrame:
    frame = pd.DataFrame(rows.shape).assign(gpu=rows.gpu, latency_us=rows.latency_us, **software)
    return frame.assign(group=frame[list(shape)].astype(str).agg(",".join, axis=1))


def scored(rows: OurRows, plan: Plan) -> dict[str, Errors]:
    """Train on the rows whose `family` is `train`; errors on the others by GPU, and means over seen and unseen GPUs."""
    mean, _ = fit(rows, plan).predictions[TEST]
    held = rows.take(rows.columns["family"].text() == "test")
    gpu, error = held.columns["gpu"].text(), mean - held.residual
    cells = {
        str(name): errors(error[gpu == name], np.full(int((gpu == name).sum()), np.nan)) for name in np.unique(gpu)
    }
    seen = macro({name: cell for name, cell in cells.items() if name in SEEN})
    unseen = macro({name: cell for name, cell in cells.items() if name not in SEEN})
    return cells | {"seen": seen, "unseen": unseen}


def experts(split: Split) -> dict[str, Errors]:
    """Errors of the net of fused experts."""
    return scored(together("fused_moe", split, EXPERTS, ("hidden", "inter", "topk", "experts")), EXPERTS_PLAN)


def products(split: Split) -> dict[str, Errors]:
    """Errors of the net of block-scaled products."""
    return scored(together("gemm_block", split, PRODUCTS, ("n", "k")), PRODUCTS_PLAN)


def main(argv: list[str] | None = None) -> int:
    """Run the command; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m paper.training.ours", description=__doc__)
    parser.add_argument("--data", type=Path, help="corpus folder (default: PIPEWAVE_DATA or ../shared/data)")
    data = data_dir(parser.parse_args(argv).data)
    found = {"held out: shapes": experts(moe_split(data)), "held out: model shapes": experts(moe_model_split(data))}
    fp8 = products(fp8_split(data))
    for title, cells in (found | {"PipeWeave's FP8 split": fp8}).items():
        print(formatted(title, cells) + "\n")
    _write("fused_moe", {name.removeprefix("held out: "): _report(cells) for name, cells in found.items()})
    _write("gemm_block", _report(fp8))
    return 0


def _report(cells: Mapping[str, Errors]) -> dict[str, Any]:
    return {cell: {name: asdict(found)[name] for name in FIGURES} for cell, found in cells.items()}


def _write(net: str, report: Mapping[str, Any]) -> None:
    (TABLES / f"{net}.pipeweave.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())

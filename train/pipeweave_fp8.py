"""`python -m train.pipeweave_fp8`: our block-scaled GEMM net on PipeWeave's published FP8 split.

Trained on its H20 and H800 rows alone, scored on its test shapes on these two, on H100 and on H200 (vLLM 0.11, block
scales, PyTorch profiler). Writes `train/tables/gemm_block.pipeweave.json`.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pandas as pd

from paper.training.rows import Rows as PaperRows
from paper.training.rows import fp8_split
from train.evaluate import formatted
from train.fit import Plan
from train.nets.gemm import features
from train.pack import pack
from train.pipeweave_moe import CORPUS, TEST, scored
from train.rows import Column, Rows

SOFTWARE = {"dtype": "fp8_block", "protocol": "profiler_warm", "stack": "vllm-0.11.0", "impl": "cutlass"}
CALL = {"quantize": False, "sm_clock_mhz": 0.0, "noise": np.nan}
PLAN = Plan(splits=(TEST,), seeds=4, categories=(), hidden=(96, 96), activation="silu", epochs=200.0, batch=1024)
OUT = Path(__file__).with_name("tables") / "gemm_block.pipeweave.json"


def together(data: Path) -> Rows:
    """Both parts of the split with our features, distinguished by `family`."""
    split = fp8_split(data)
    frame = pd.concat([_frame(split.train).assign(role="train"), _frame(split.test).assign(role="test")])
    frame = frame.reset_index(drop=True)
    rows = pack(frame, *features(frame))
    return replace(rows, columns={**rows.columns, "family": Column.of(frame["role"].to_numpy(str))})


def _frame(rows: PaperRows) -> pd.DataFrame:
    frame = pd.DataFrame(rows.shape).assign(gpu=rows.gpu, latency_us=rows.latency_us, **SOFTWARE, **CALL)
    return frame.assign(group=frame[["n", "k"]].astype(str).agg(",".join, axis=1))


def main(argv: list[str] | None = None) -> int:
    """Run the command; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m train.pipeweave_fp8", description=__doc__)
    parser.add_argument("--data", type=Path, default=CORPUS)
    parser.add_argument("--json", type=Path, default=OUT)
    options = parser.parse_args(argv)
    cells = scored(together(options.data), PLAN)
    print(formatted("PipeWeave's FP8 split", cells))
    wanted = ("rows", "mape", "median", "bias", "off")
    report = {cell: {name: asdict(found)[name] for name in wanted} for cell, found in cells.items()}
    options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

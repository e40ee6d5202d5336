"""`python -m train.power_serving`: watts of published vLLM servers, into factors of servers in `physics/power.json`.

A row of energy/serving.csv (ML.ENERGY v3) is a server whose batch is full: steps in which as many requests decode as
ran, some with prompts of those that follow. Two factors a generation (joules of kernels, waits) are fitted to steps
as predicted. Scores and the interval come from fits without the row's model on that GPU (`python -m qa.energy`).
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from corpus.sources import data_dir
from pipewave.gpus import find
from pipewave.models import load
from pipewave.models.kernels import Deployment
from pipewave.models.shard import Parallel
from pipewave.physics.power import LAW, board_of
from pipewave.published.unstated import Stated, fill
from pipewave.simulate.setup import Setup
from pipewave.simulate.traffic import synthetic
from pipewave.step import Runner

MOST_SPREAD = 0.6
SOFT = 0.03  # the error below which squares count
FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic", "fmt": "e4m3"}


@cache
def _runner(folder: Path, gpu: str, split: tuple[int, int, int], precision: str, most: int, output: int) -> Runner:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if precision == "fp8":
        config.setdefault("quantization_config", FP8)
    tp, ep, dp = split
    setup = Setup(tp=tp, ep=ep, dp=dp, max_num_seqs=most, max_num_batched_tokens=8192)
    requests = synthetic(most, input_len=1, output_len=output, concurrency=most)
    setup = fill(Stated(load(config), gpu, setup, "vllm", "0.11.1"), requests).setup
    run = Runner.of(Deployment(load(config), Parallel(tp, 1, ep, dp)), find(gpu), setup.program())
    return replace(run, engine=setup.hosted(run.engine))


def rows(data: Path | None = None) -> pd.DataFrame:
    """Text models without doubt: what a step takes (`step_s`, `kernel_s`), its joules, and what was measured."""
    folder = data_dir(data)
    table = pd.read_csv(folder / "energy" / "serving.csv")
    table = table[table["needs"].isna() & table["doubt"].isna() & table["power_per_gpu_w"].notna()]
    table = table[[(folder.parent / str(config)).is_dir() for config in table["config"]]]
    return pd.DataFrame([row | _step(row, folder.parent) for row in table.to_dict("records")])


def _step(row: dict[str, Any], root: Path) -> dict[str, float]:
    split, output = (int(row["tp"]), int(row["ep"]), int(row["dp"])), max(round(row["osl_mean"]), 2)
    run = _runner(root / str(row["config"]), row["gpu"], split, row["precision"], int(row["max_num_seqs"]), output)
    many, prompt = max(round(row["avg_running"] / row["dp"]), 1), int(row["isl_mean"])
    decodes, caches, new = [1] * many, [prompt + output // 2] * many, [prompt] * math.ceil(many / output)
    batches = [run.batch(decodes, caches), run.batch(decodes + new, caches + new)]
    steps, priced = run.steps(batches), run.price([run.deployment.kernels(batch, 0) for batch in batches])
    share = np.array([1.0, 0.0]) + many / output / len(new) * np.array([-1.0, 1.0])  # without prompts, and with
    amounts = {"step_s": 1e-6 * steps.total_us, "kernel_s": 1e-6 * steps.load.kernel_us, "joules": priced.above_idle_j}
    return {name: float(values @ share) for name, values in amounts.items()}


def predicted(table: pd.DataFrame, waiting: float) -> Any:
    """Watts of a GPU whose waits draw such a share of its rated power above idle."""
    boards, rated = [board_of(find(gpu)) for gpu in table["gpu"]], np.array([find(gpu).tdp_w for gpu in table["gpu"]])
    idle, limit = (np.array([getattr(board, name) for board in boards]) for name in ("idle_w", "limit_w"))
    waits = np.maximum(1.0 - table["kernel_s"] / table["step_s"], 0.0)
    return np.minimum(idle + table["joules"] / table["step_s"] + waiting * rated * waits, limit)


def fit(table: pd.DataFrame) -> float:
    """The share, by absolute relative error; a board that waits draws its rated power at most."""

    def off(waiting: Any) -> Any:
        return predicted(table, float(waiting[0])) / table["power_per_gpu_w"] - 1.0

    return float(least_squares(off, 0.3, bounds=(0.0, 0.8), loss="soft_l1", f_scale=SOFT).x[0])


def left_out(table: pd.DataFrame) -> Any:
    """Watts of every row by a fit of its generation without its model on its GPU."""
    found = np.full(len(table), np.nan)
    for (gpu, _), members in table.groupby(["gpu", "family"]).indices.items():
        others = table[(table["gpu"] == gpu) & ~table.index.isin(table.index[members])]
        found[members] = predicted(table.iloc[members], fit(others))
    return found


def main() -> None:
    """Fit and write."""
    table = rows()
    law = json.loads(LAW.read_text(encoding="utf-8"))
    errors = np.abs(np.log(left_out(table) / table["power_per_gpu_w"]))
    waiting = {str(find(str(gpu)).compute_capability // 10): round(fit(some), 3) for gpu, some in table.groupby("gpu")}
    waiting["other"] = round(float(np.mean(list(waiting.values()))), 3)
    half = round(float(np.quantile(errors, 0.9)), 3)
    law["steps"] |= {"waiting": waiting, "spread": [half, half, max(2 * half, MOST_SPREAD)]}
    LAW.write_text(json.dumps(law, indent=1) + "\n", encoding="utf-8")
    print(waiting, law["steps"]["spread"])


if __name__ == "__main__":
    main()

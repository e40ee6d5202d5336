"""`python -m train.power_serving`: watts of published vLLM servers, into the interval of steps in `physics/power.json`.

A row of energy/serving.csv (ML.ENERGY v3) is a server whose batch is full: steps in which as many requests decode as
ran, some with prompts of those that follow. No constant of the law is fitted to them: `python -m qa.energy` scores it.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

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
from train.cards import read, ship

MOST_SPREAD = 0.6
PAGE = 16  # tokens, of vLLM's cache
FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic", "fmt": "e4m3"}


@cache
def _runner(folder: Path, gpu: str, split: tuple[int, int, int], precision: str, most: int, output: int) -> Runner:
    config = read(folder / "config.json")
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
    decodes, caches, ends = [1] * many, [prompt + output // 2] * many, [prompt] * math.ceil(many / output)
    new = [(prompt - 1) % PAGE + 1 if _repeats(row) else prompt] * len(ends)
    batches = [run.batch(decodes, caches), run.batch(decodes + new, caches + ends)]
    steps, priced = run.steps(batches), run.price([run.deployment.kernels(batch, 0) for batch in batches])
    share = np.array([1.0, 0.0]) + many / output / len(new) * np.array([-1.0, 1.0])  # without prompts, and with
    amounts = {"step_s": 1e-6 * steps.total_us, "kernel_s": 1e-6 * steps.load.kernel_us, "joules": priced.above_idle_j}
    return {name: float(values @ share) for name, values in amounts.items()}


def _repeats(row: dict[str, Any]) -> bool:
    """Whether every prompt came before, so that the prefix cache holds all but its last page: the steady part of a run
    begins when as many requests run as the server takes, and a data set has so many different ones.
    """
    return int(row["max_num_seqs"]) >= int(re.findall(r"[\d,]*\d", row["dataset"])[0].replace(",", ""))


def predicted(table: pd.DataFrame) -> Any:
    """Watts of a GPU of each run."""
    boards, spins = [board_of(find(gpu)) for gpu in table["gpu"]], np.maximum(table["step_s"] - table["kernel_s"], 0.0)
    each = zip(boards, table["joules"], spins * (table["n_gpus"] > 1), table["step_s"], strict=True)
    return np.array([float(board.step_w(*row)) for board, *row in each])


def main() -> None:
    """Settle the interval and write it."""
    table = rows()
    law = read(LAW)
    half = round(float(np.quantile(np.abs(np.log(predicted(table) / table["power_per_gpu_w"])), 0.9)), 3)
    law["steps"]["spread"] = [half, half, max(2 * half, MOST_SPREAD)]
    ship(LAW, law)
    print(law["steps"]["spread"])


if __name__ == "__main__":
    main()

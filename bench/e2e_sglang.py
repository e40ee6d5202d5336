"""Predicted and measured steps of SGLang 0.5.14 on an H100, with random weights.

    python -m bench.e2e_sglang [--rows] [--write] [--folder data/measured/h100/sglang] [--gpu H100]

The rows are those of `python -m pipewave.measure.sglang`: prompts in an idle engine until their last first token, and
decode steps from one end to the next. "held out" has the engine's constants fitted to the other models; `--write` fits
them to all and puts them into software/times.json.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np

from bench.e2e_fit import constants, fit, leave_one_model_out, write
from bench.e2e_steps import Measured, Point, measure_loads, point_of, runs_of
from bench.e2e_vllm import print_rows, print_scores, score
from pipewave.gpus import find
from pipewave.models import load
from pipewave.models.kernels import Deployment
from pipewave.models.shard import Parallel
from pipewave.step import Runner, find_engine

FOLDER = Path(__file__).resolve().parents[1] / "data" / "measured" / "h100" / "sglang"
GPU = "H100"


def points(folder: Path = FOLDER) -> list[Point]:
    """Prefill and decode of whole models; its random weights spread over experts, so that no point is skewed."""
    rows = [
        json.loads(line) for path in sorted(folder.glob("sglang-*.jsonl")) for line in path.read_text().splitlines()
    ]
    return [replace(point_of(row), skewed=False) for row in rows if runs_of(row)]


def measured(chosen: list[Point], gpu: str = GPU) -> Measured:
    """The loads of all steps on a GPU, under SGLang's choice of kernels."""

    @cache
    def runner(model: str, tp: int) -> Runner:
        return Runner.of(Deployment(load(model), Parallel(tp)), find(gpu), find_engine("sglang"))

    return measure_loads(chosen, runner)


def main() -> None:
    """Print errors by phase and model, and by point with `--rows`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", action="store_true", help="print every point")
    parser.add_argument("--write", action="store_true", help="store the constants fitted to all models")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--gpu", default=GPU)
    given = parser.parse_args()
    chosen = points(given.folder)
    real = np.array([point.measured_ms for point in chosen])
    loads, engine = measured(chosen, given.gpu), find_engine("sglang")
    if given.write:
        write("sglang", constants(fit(loads, engine)))
    found = {"held out": leave_one_model_out(loads, engine), "shipped": loads.predict_ms(engine)}
    errors = {name: 100 * (ms / real - 1) for name, ms in found.items()}
    print_scores({name: score(chosen, part) for name, part in errors.items()})
    if given.rows:
        print_rows(chosen, errors)


if __name__ == "__main__":
    main()

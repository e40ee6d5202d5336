"""Measured steps of model kinds that no constant was fitted on: vLLM 0.22.1 on an H100, the first layers of each model.

    python -m bench.kinds [--rows]

Rows of `python -m pipewave.measure.engine --points kinds`; a mixture of experts routes at random
(`VLLM_MOE_ROUTING_SIMULATION_STRATEGY=uniform_random`; gpt-oss, whose kernel routes inside, by `--random-gates`),
everything is really prefilled. Of a point measured twice the quicker counts: engines that had waited for their turn on
a shared machine launched their first prompts half as fast as the same prompts seconds later.
"""

from __future__ import annotations

import argparse
import json
from functools import cache
from pathlib import Path

import numpy as np

from bench.e2e_steps import PHASES, Point, measure_loads, point_of
from bench.e2e_vllm import print_rows, print_scores, score
from pipewave.gpus import find
from pipewave.measure.engine.launch import config_of
from pipewave.models import load
from pipewave.models.kernels import Deployment
from pipewave.models.shard import Parallel
from pipewave.step import Runner, find_engine

FOLDER = Path(__file__).resolve().parents[1] / "data" / "measured" / "h100" / "kinds"
GPU = "H100"
STEADY = 1.5  # longest over shortest sample of a point; beyond it other programs of the host were at work


def backend(model: str) -> str:
    """The kernel of delta nets' scans that the run was told to use."""
    path = next(FOLDER.glob(f"engine-{model}-*.jsonl"))
    return str(json.loads(path.read_text().splitlines()[0]).get("set", {}).get("gdn_prefill_backend", ""))


def points(folder: Path = FOLDER, *, steady: bool = True) -> tuple[list[Point], dict[str, int]]:
    """The points, all or the steady ones, and how many layers each model was cut to."""
    rows = [
        json.loads(line) for path in sorted(folder.glob("engine-*.jsonl")) for line in path.read_text().splitlines()
    ]
    rows = [row for row in rows if row.get("max_ms", 0.0) <= STEADY * row.get("min_ms", 0.0) or not steady]
    timed = [row for row in rows if row["kind"] == "step" and row["status"] == "ok" and row["phase"] in PHASES]
    found = [point_of(row) for row in timed]
    return quickest(found) if steady else found, {row["model"]: row["layers"] for row in timed}


def quickest(found: list[Point]) -> list[Point]:
    """The quicker of points measured twice, in their first order."""
    best: dict[tuple[object, ...], Point] = {}
    for point in found:
        key = (point.model, point.phase, point.batch, point.input_len, point.context)
        best[key] = min(best.get(key, point), point, key=lambda one: one.measured_ms)
    return list(best.values())


def main() -> None:
    """Print errors by phase and model, and by point with `--rows`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", action="store_true", help="print every point")
    parser.add_argument("--all", action="store_true", help="unsteady and repeated points too")
    given = parser.parse_args()
    chosen, layers = points(steady=not given.all)
    engine = find_engine("vllm").what_if(fused_norm_mib=0.0, routing="random")

    @cache
    def runner(model: str, tp: int) -> Runner:
        config = config_of(str(FOLDER / f"{model}.json"), layers[model])
        chosen = engine.what_if(delta_backend=backend(model))
        return Runner.of(Deployment(load(config), Parallel(tp)), find(GPU), chosen)

    real = np.array([point.measured_ms for point in chosen])
    errors = {"shipped": 100 * (measure_loads(chosen, runner).predict_ms(engine) / real - 1)}
    print_scores({name: score(chosen, part) for name, part in errors.items()})
    if given.rows:
        print_rows(chosen, errors)


if __name__ == "__main__":
    main()

"""Measured steps of model kinds that no constant was fitted on: vLLM 0.22.1 on an H100, the first layers of each model.

    python -m studies.kinds [--rows]

Rows of `python -m lab.vllm_engine --points kinds`; a mixture of experts routes at random
(`VLLM_MOE_ROUTING_SIMULATION_STRATEGY=uniform_random`; gpt-oss, whose kernel routes inside, by `--random-gates`),
everything is really prefilled. Of a point measured twice the quicker counts: engines that had waited for their turn on
a shared machine launched their first prompts half as fast as the same prompts seconds later.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lab.vllm_engine.launch import config_of
from pipewave.gpus import find
from pipewave.models import load
from pipewave.models.kernels import Deployment
from pipewave.models.shard import Parallel
from pipewave.step import Engine, Runner, find_engine
from studies.e2e_steps import PHASES, Measured, Point, measure_loads, point_of
from studies.e2e_vllm import print_rows, print_scores, score

FOLDER = Path(__file__).resolve().parents[1] / "data" / "measured" / "h100" / "kinds"
GPU = "H100"
CUT = " to layer "
STEADY = 1.5  # longest over shortest sample of a point; beyond it other programs of the host were at work


def named(row: dict[str, Any]) -> str:
    """The model and how many layers it was cut to."""
    return f"{row['model']}{CUT}{row['layers']}"


def backend(model: str) -> str:
    """The kernel of delta nets' scans that the run was told to use."""
    path = next(FOLDER.glob(f"engine-{model}-*.jsonl"))
    return str(json.loads(path.read_text().splitlines()[0]).get("set", {}).get("gdn_prefill_backend", ""))


def points(folder: Path = FOLDER, *, steady: bool = True) -> list[Point]:
    """The points, all or the steady ones, of models by `named`."""
    rows = [
        json.loads(line) for path in sorted(folder.glob("engine-*.jsonl")) for line in path.read_text().splitlines()
    ]
    rows = [row for row in rows if row.get("max_ms", 0.0) <= STEADY * row.get("min_ms", 0.0) or not steady]
    timed = [row for row in rows if row["kind"] == "step" and row["status"] == "ok" and row["phase"] in PHASES]
    found = [replace(point_of(row), model=named(row)) for row in timed]
    return quickest(found) if steady else found


def quickest(found: list[Point]) -> list[Point]:
    """The quicker of points measured twice, in their first order."""
    best: dict[tuple[object, ...], Point] = {}
    for point in found:
        key = (point.model, point.phase, point.batch, point.input_len, point.context)
        best[key] = min(best.get(key, point), point, key=lambda one: one.measured_ms)
    return list(best.values())


@cache
def as_measured() -> Engine:
    """vLLM as these runs had it: FlashInfer, which fuses norms into all-reduces, was not installed."""
    return find_engine("vllm").what_if(fused_norm_mib=0.0, routing="random")


@cache
def runner_of(name: str, tp: int) -> Runner:
    """The deployment of a run, by `named`."""
    model, _, layers = name.partition(CUT)
    config = config_of(str(FOLDER / f"{model}.json"), int(layers))
    engine = as_measured().what_if(delta_backend=backend(model))
    return Runner.of(Deployment(load(config), Parallel(tp)), find(GPU), engine)


def host_bound(loads: Measured, engine: Engine) -> NDArray[np.bool_]:
    """Whether some step of a point is predicted to wait for a host slower than its kernels [point]."""
    waits = engine.gaps_us(loads.loads)["launch"] > 0.0
    return np.bincount(loads.owner, waits, len(loads.points)) > 0


def main() -> None:
    """Print errors by phase and model, and by point with `--rows`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", action="store_true", help="print every point")
    parser.add_argument("--all", action="store_true", help="unsteady and repeated points too")
    given = parser.parse_args()
    chosen = points(steady=not given.all)
    engine = as_measured()
    real = np.array([point.measured_ms for point in chosen])
    loads = measure_loads(chosen, runner_of)
    errors = {"shipped": 100 * (loads.predict_ms(engine) / real - 1)}
    print_scores({name: score(chosen, part) for name, part in errors.items()})
    print("\nWithout the points that wait for the host, whose pace is the machine's:\n")
    free = [index for index, waits in enumerate(host_bound(loads, engine)) if not waits]
    print_scores({name: score([chosen[i] for i in free], part[free]) for name, part in errors.items()})
    if given.rows:
        print_rows(chosen, errors)


if __name__ == "__main__":
    main()

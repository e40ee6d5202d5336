"""Predicted and measured steps of SGLang 0.5.14 on an H100 and an H200, with random weights.

    python -m bench.e2e_sglang [--rows] [--write] [--gpus H100,H200]

The rows are those of `python -m pipewave.measure.sglang`: prompts in an idle engine until their last first token, and
decode steps from one end to the next. "held out" has the engine's constants fitted to the other models, on all GPUs;
`--write` fits them to all and puts them into software/times.json.

Servers were started on machines whose hosts differ: launching a layer of a prompt took 0.26 to 0.49 ms. "host told" is
held out as well, but takes what a layer's launch takes from the server's other prompts, as their rows record it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.e2e_fit import constants, fit, leave_one_model_out, write
from bench.e2e_steps import Measured, Point, joined, measure_loads, point_of, runs_of
from bench.e2e_vllm import print_rows, print_scores, score
from pipewave.gpus import find
from pipewave.models import load
from pipewave.models.kernels import Deployment
from pipewave.models.shard import Parallel
from pipewave.step import Engine, Runner, find_engine

FOLDER = Path(__file__).resolve().parents[1] / "data" / "measured"
GPUS = ("H100", "H200")


ONE_CHUNK = 8192  # tokens of a step


@dataclass(frozen=True, slots=True)
class Told(Measured):
    """Points of which the host's pace is known: µs it takes to launch a layer of a prompt."""

    pace_us: NDArray[np.float64]

    def predict_ms(self, engine: Engine) -> NDArray[np.float64]:
        """Time of every point under an engine, with the server's own host where it launches prompts."""
        prompt = np.array([point.phase == "prefill" for point in self.points])[self.owner]
        layer_us: Any = np.where(prompt, self.pace_us[self.owner], engine.layer_us)
        step_us: Any = np.where(prompt, 0.0, engine.step_us)
        return Measured.predict_ms(self, replace(engine, layer_us=layer_us, step_us=step_us))

    def only(self, keep: NDArray[np.bool_]) -> Told:
        """The points a mask keeps."""
        kept = Measured.only(self, keep)
        return Told(kept.points, kept.loads, kept.owner, self.pace_us[keep])


def rows(gpu: str) -> list[tuple[Point, str, float]]:
    """Prefill and decode of whole models, each with the server it ran on and the ms the host took to launch it."""
    paths = sorted((FOLDER / gpu.lower() / "sglang").glob("sglang-*.jsonl"))
    named = [(json.loads(line), path.name) for path in paths for line in path.read_text().splitlines()]
    return [
        (replace(point_of(row), card=gpu), f"{gpu} {name}", row.get("launch_ms", np.nan))
        for row, name in named
        if runs_of(row)
    ]


def points(gpu: str) -> list[Point]:
    """The points of `rows`."""
    return [point for point, _, _ in rows(gpu)]


def told(loads: Measured, gpus: Sequence[str]) -> Told:
    """The same points with the host's pace: the median of the other prompts of one chunk on the same server."""
    known = [row for gpu in gpus for row in rows(gpu)]
    servers = np.array([server for _, server, _ in known])
    layers = np.array([float(loads.loads.layers[loads.owner == i][0]) for i in range(len(known))])
    each_us = 1e3 * np.array([launch_ms for _, _, launch_ms in known]) / layers
    asked = np.array([p.phase == "prefill" and p.batch * p.input_len <= ONE_CHUNK for p, _, _ in known])
    others = [asked & (servers == server) & (np.arange(len(known)) != i) for i, server in enumerate(servers)]
    return Told(loads.points, loads.loads, loads.owner, np.array([np.median(each_us[mask]) for mask in others]))


def measured(gpus: Sequence[str] = GPUS) -> Measured:
    """The loads of all steps on the GPUs, under SGLang's choice of kernels."""
    return joined([_measured(gpu) for gpu in gpus])


def _measured(gpu: str) -> Measured:
    @cache
    def runner(model: str, tp: int) -> Runner:
        return Runner.of(Deployment(load(model), Parallel(tp)), find(gpu), find_engine("sglang"))

    return measure_loads(points(gpu), runner)


def main() -> None:
    """Print errors by phase, GPU and model, and by point with `--rows`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", action="store_true", help="print every point")
    parser.add_argument("--write", action="store_true", help="store the constants fitted to all models")
    parser.add_argument("--gpus", default=",".join(GPUS))
    given = parser.parse_args()
    loads, engine = measured(given.gpus.split(",")), find_engine("sglang")
    fitted = fit(loads, engine)
    print(json.dumps(constants(fitted)))
    if given.write:
        write("sglang", constants(fitted))
    named = [replace(point, model=f"{point.model} on {point.card}") for point in loads.points]
    real = np.array([point.measured_ms for point in named])
    found = {
        "held out": leave_one_model_out(loads, engine),
        "host told": leave_one_model_out(told(loads, given.gpus.split(",")), engine),
        "shipped": loads.predict_ms(find_engine("sglang")),
    }
    errors = {name: 100 * (ms / real - 1) for name, ms in found.items()}
    print_scores({name: score(named, part) for name, part in errors.items()})
    if given.rows:
        print_rows(named, errors)


if __name__ == "__main__":
    main()

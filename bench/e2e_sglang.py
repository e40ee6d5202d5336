"""Predicted and measured steps of SGLang 0.5.14 on an H100 and an H200, with random weights.

    python -m bench.e2e_sglang [--rows] [--write] [--gpus H100,H200]

The rows are those of `python -m pipewave.measure.sglang`: prompts in an idle engine until their last first token, and
decode steps from one end to the next. "held out" has the engine's constants fitted to the other models, on all GPUs;
`--write` fits them to all and puts them into software/times.json.

Servers were started on machines whose hosts differ, and one host is not as fast at all times: launching a layer of a
prompt took 0.22 to 0.64 ms. "host told" is held out as well, but knows how fast a server's host is from what its
scheduler took to queue a lone prompt, before any step: half a screen of Python that knows nothing of the model. Host
times of prompts are those of a host that takes `QUEUE_MS`, times what the server took over it. "one answer" is what no
prediction of a deployment can do better at, however good, where two servers of it were measured and nothing tells them
apart.
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


QUEUE_MS = 0.19  # of a lone prompt, middle of the servers


@dataclass(frozen=True, slots=True)
class Told(Measured):
    """Points of which the host's pace is known: its times over those of a host that queues a prompt in `QUEUE_MS`."""

    pace: NDArray[np.float64]

    def predict_ms(self, engine: Engine) -> NDArray[np.float64]:
        """Time of every point under an engine, with the server's own host where it launches prompts."""
        prompt = np.array([point.phase == "prefill" for point in self.points])[self.owner]
        pace: Any = np.where(prompt, self.pace[self.owner], 1.0)
        times = {name: pace * getattr(engine, name) for name in ("layer_us", "prefill_host_us")}
        return Measured.predict_ms(self, replace(engine, **times))

    def only(self, keep: NDArray[np.bool_]) -> Told:
        """The points a mask keeps."""
        kept = Measured.only(self, keep)
        return Told(kept.points, kept.loads, kept.owner, self.pace[keep])


def rows(gpu: str) -> list[tuple[Point, str, float]]:
    """Prefill and decode of whole models, each with the server it ran on and the ms its scheduler took to queue it."""
    paths = sorted((FOLDER / gpu.lower() / "sglang").glob("sglang-*.jsonl"))
    named = [(json.loads(line), path.name) for path in paths for line in path.read_text().splitlines()]
    return [
        (replace(point_of(row), card=gpu), f"{gpu} {name}", row.get("queue_ms") or np.nan)
        for row, name in named
        if runs_of(row)
    ]


def points(gpu: str) -> list[Point]:
    """The points of `rows`."""
    return [point for point, _, _ in rows(gpu)]


def told(loads: Measured, gpus: Sequence[str]) -> Told:
    """The same points with the host's pace: the median of lone prompts on the same server."""
    known = [row for gpu in gpus for row in rows(gpu)]
    servers, queue_ms = np.array([server for _, server, _ in known]), np.array([ms for _, _, ms in known])
    lone = np.array([point.phase == "prefill" and point.batch == 1 for point, _, _ in known])
    own = {server: float(np.median(queue_ms[lone & (servers == server)])) for server in set(servers.tolist())}
    return Told(loads.points, loads.loads, loads.owner, np.array([own[server] / QUEUE_MS for server in servers]))


def one_answer(points: Sequence[Point]) -> NDArray[np.float64]:
    """The answer to each point with the least mean error over all servers that ran it: one of those measured."""
    same: dict[Point, list[float]] = {}
    for point in points:
        same.setdefault(replace(point, measured_ms=0.0), []).append(point.measured_ms)
    best = {key: min(real, key=lambda ms: sum(abs(ms / one - 1.0) for one in real)) for key, real in same.items()}
    return np.array([best[replace(point, measured_ms=0.0)] for point in points])


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
        "one answer": one_answer(named),
    }
    errors = {name: 100 * (ms / real - 1) for name, ms in found.items()}
    print_scores({name: score(named, part) for name, part in errors.items()})
    if given.rows:
        print_rows(named, errors)


if __name__ == "__main__":
    main()

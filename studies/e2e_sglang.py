"""Predicted and measured steps of SGLang 0.5.14 on an H100 and an H200, with random weights.

    python -m studies.e2e_sglang [--rows] [--write] [--settled] [--gpus H100,H200]

The rows are those of `python -m lab.sglang_engine`: prompts in an idle engine until their last first token, and
decode steps from one end to the next; and those of `python -m lab.sglang_hosts` (folder rounds): prompts of several
models in turns, of which a point is the median over the rounds. "held out" has the engine's constants fitted to the
other models, on all machines; `--write` fits them to all and puts them into software/times.json. Prompts of more
requests than the largest decode graph take are left out: the engine launches the decode step behind them kernel by
kernel before it looks at what they made (it schedules a step ahead), so that their end is noted late by that.

Servers were started on machines whose hosts differ, and one host is not as fast at all times: launching a layer of a
prompt took 0.2 to 0.64 ms. How fast a server's host is shows in what its scheduler takes to queue a lone prompt, before
any step: half a screen of Python that knows nothing of the model. "host told" and "machine told" are held out as well,
with host times of prompts as on a host that takes `QUEUE_MS`, times what queueing took there over it: on the server
itself, and on the servers of the other models on the same machine that day. "one answer" is what no prediction of a
deployment can do better at, however good, where several servers of it were measured and nothing tells them apart.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipewave.gpus import find
from pipewave.models import load
from pipewave.models.kernels import Deployment
from pipewave.models.shard import Parallel
from pipewave.step import Engine, Runner, find_engine
from studies.e2e_steps import Measured, Point, joined, measure_loads, point_of, runs_of
from studies.e2e_vllm import leave_one_model_out, print_rows, print_scores, score
from train.step_fit import constants, fit, write

FOLDER = Path(__file__).resolve().parents[1] / "data" / "measured"
GPUS = ("H100", "H200")
ROUNDS = "over rounds"
DECODE_GRAPHS = re.compile(r"decode=PhaseConfig\([^)]*max_bs=(?P<most>\d+)")


# µs at the power limit that a lone prompt draws beyond it, fitted to these: 78 ms would explain the first of several of
# 16,384 tokens inside vLLM on an H200 (463 ms; 482 ms later).
IDLE_SLACK_US = 25_000.0
QUEUE_MS = 0.19  # of a lone prompt, middle of the servers


@dataclass(frozen=True, slots=True)
class Told(Measured):
    """Points of which the host's pace is known: its times over those of a host that queues a prompt in `QUEUE_MS`."""

    pace: NDArray[np.float64]

    def predict_ms(self, engine: Engine) -> NDArray[np.float64]:
        """Time of every point under an engine, with the server's own host where it launches prompts."""
        prompt = np.array([point.phase == "prefill" for point in self.points])[self.owner]
        pace: Any = np.where(prompt, self.pace[self.owner], 1.0)
        times = {name: pace * getattr(engine.host, name) for name in ("layer_us", "prefill_host_us")}
        return Measured.predict_ms(self, engine.what_if(**times))

    def only(self, keep: NDArray[np.bool_]) -> Told:
        """The points a mask keeps."""
        kept = Measured.only(self, keep)
        return Told(kept.points, kept.loads, kept.owner, self.pace[keep])


@dataclass(frozen=True, slots=True)
class Seen:
    """A measured point, the server it ran on, the machine and day of the server, and the ms that queueing it took."""

    point: Point
    server: str
    machine: str
    queue_ms: float

    @property
    def lone(self) -> bool:
        """Whether it is one prompt."""
        return self.point.phase == "prefill" and self.point.batch == 1


def rows(gpu: str) -> list[Seen]:
    """Prefill and decode of whole models, server after server."""
    folder = FOLDER / gpu.lower() / "sglang"
    once = [_seen(gpu, path, f"{gpu} again" if path.stem.endswith("-again") else gpu)
            for path in sorted(folder.glob("sglang-*.jsonl"))]  # fmt: skip
    often = [_medians(_seen(gpu, path, f"{gpu} {ROUNDS}")) for path in sorted(folder.glob("rounds/sglang-*.jsonl"))]
    return [seen for server in (*once, *often) for seen in server]


def _seen(gpu: str, path: Path, machine: str) -> list[Seen]:
    every = [json.loads(line) for line in path.read_text().splitlines()]
    most = _largest_graph(every[0])
    lines = [row for row in every if runs_of(row) and row["batch"] <= most]
    card, server = (machine if ROUNDS in machine else gpu), f"{machine} {path.stem}"
    return [Seen(replace(point_of(row), card=card), server, machine, row.get("queue_ms") or np.nan) for row in lines]


def _settled(point: Point) -> bool:
    return point.card.endswith(ROUNDS)


def _largest_graph(started: dict[str, Any]) -> int:
    """The most requests that a started engine decodes by a graph."""
    found = DECODE_GRAPHS.search(started["settings"]["cuda_graph_config"])
    assert found is not None
    return int(found["most"])


def _medians(many: Sequence[Seen]) -> list[Seen]:
    """One row a point: the medians over all rounds."""
    same: dict[Point, list[Seen]] = {}
    for seen in many:
        same.setdefault(replace(seen.point, measured_ms=0.0), []).append(seen)
    return [
        replace(
            found[0],
            point=replace(point, measured_ms=float(np.median([seen.point.measured_ms for seen in found]))),
            queue_ms=float(np.median([seen.queue_ms for seen in found])),
        )
        for point, found in same.items()
    ]


def points(gpu: str) -> list[Point]:
    """The points of `rows`."""
    return [seen.point for seen in rows(gpu)]


def told(loads: Measured, gpus: Sequence[str], *, others: bool = False) -> Told:
    """The same points with the host's pace: the median of lone prompts on the same server; `others`: the median of the
    same over servers of other models on the same machine.
    """
    known = [seen for gpu in gpus for seen in rows(gpu)]
    lone = [seen for seen in known if seen.lone]
    own = {seen.server: float(np.median([one.queue_ms for one in lone if one.server == seen.server])) for seen in lone}

    def beside(seen: Seen) -> float:
        there = {one.server for one in lone if one.machine == seen.machine and one.point.model != seen.point.model}
        return float(np.median([own[server] for server in there]))

    queue_ms = [beside(seen) if others else own[seen.server] for seen in known]
    return Told(loads.points, loads.loads, loads.owner, np.array(queue_ms) / QUEUE_MS)


def one_answer(points: Sequence[Point]) -> NDArray[np.float64]:
    """The answer to each point with the least mean error over all servers that ran it: one of those measured."""
    same: dict[Point, list[float]] = {}
    for point in points:
        same.setdefault(replace(point, measured_ms=0.0), []).append(point.measured_ms)
    best = {key: min(real, key=lambda ms: sum(abs(ms / one - 1.0) for one in real)) for key, real in same.items()}
    return np.array([best[replace(point, measured_ms=0.0)] for point in points])


def idle_engine() -> Engine:
    """As these prompts met it: the board of an idle engine has more to draw on than one between decodes."""
    return find_engine("sglang").what_if(slack_us=IDLE_SLACK_US)


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
    parser.add_argument("--settled", action="store_true", help="of prompts, those timed over rounds alone")
    parser.add_argument("--gpus", default=",".join(GPUS))
    given = parser.parse_args()
    gpus, engine = given.gpus.split(","), idle_engine()
    every = measured(gpus)
    kept = np.array([not given.settled or point.phase == "decode" or _settled(point) for point in every.points])
    loads = every.only(kept)
    fitted = fit(loads, engine)
    print(json.dumps(constants(fitted)))
    if given.write:
        write("sglang", constants(fitted))
    named = [replace(point, model=f"{point.model} on {point.card}") for point in loads.points]
    real = np.array([point.measured_ms for point in named])
    found = {
        "held out": leave_one_model_out(loads, engine),
        "machine told": leave_one_model_out(told(every, gpus, others=True).only(kept), engine),
        "host told": leave_one_model_out(told(every, gpus).only(kept), engine),
        "shipped": loads.predict_ms(idle_engine()),
        "one answer": one_answer(named),
    }
    errors = {name: 100 * (ms / real - 1) for name, ms in found.items()}
    print_scores({name: score(named, part) for name, part in errors.items()})
    # launches take longer in a server's first minutes
    when = [replace(point, model=ROUNDS if _settled(point) else "once, in the first minutes") for point in loads.points]
    print_scores({name: score(when, part) for name, part in errors.items()})
    if given.rows:
        print_rows(named, errors)


if __name__ == "__main__":
    main()

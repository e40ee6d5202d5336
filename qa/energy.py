"""`python -m qa.energy [kernels|limit|steps|servers]`: how far watts and joules are from measured ones.

Kernels: steady rows of AIConfigurator in groups of shapes left out, a GPU left out, and our own loops (those of later
days were never fitted), by a law fitted as `python -m train power` fits it. Limit: how much slower those loops are than
their first calls. Steps: joules of steps inside vLLM 0.22.1, or the version of their folder, that repeated for four
seconds on an H200 (`lab.vllm_engine --points steady`), never fitted. Servers: published vLLM runs, each model left out
on its GPU. Baselines: a board always at its cap, and one at its rated power; in servers also the mean of the other runs
of the GPU.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

import pipewave as pw
from corpus.frame import repository
from corpus.watts import LOOPS, own_rows
from pipewave.calls.families import from_dict
from pipewave.gpus import find
from pipewave.models import load
from pipewave.models.kernels import Deployment
from pipewave.models.shard import Parallel
from pipewave.physics.cache import SERVING
from pipewave.physics.overlap import overlapped
from pipewave.physics.power import LIMIT_EXPONENT, SHARPNESS, board_of
from pipewave.prediction.api import group_on, predict_grouped
from pipewave.step import Runner, find_engine
from pipewave.told.answers import ENERGY, RATE, drawn_at
from train import power, power_serving

STEADY = Path(__file__).resolve().parents[1] / "data" / "measured" / "h200" / "steady"
BUDGET = 8192  # tokens of a step there
TASKS = {
    "gemm": "gemm", "attention_prefill": "prefill", "mla_context": "prefill", "attention_decode": "decode",
    "mla_generation": "decode", "fused_moe": "moe", "rmsnorm": "stream",
}  # fmt: skip


def off(found: Any, true: Any, weight: Any = None) -> float:
    """Mean absolute error, %."""
    return float(100.0 * np.average(np.abs(np.asarray(found) / np.asarray(true) - 1.0), weights=weight))


def _line(name: str, rows: power.Rows, found: Any, law: Any) -> None:
    """Of watts as answered, of those by the law alone, and of a board at its cap."""
    table = rows.table
    energy = table["watts"] * table["latency_us"]
    cap = table["limit"] * table["gpu"].map(lambda gpu: power.BOARDS.get(gpu, power.WATTS)["limit"])
    weighted, mean = off(found, table["watts"], energy), off(found, table["watts"])
    alone, at_cap = (off(one, table["watts"], energy) for one in (law, cap))
    print(f"{name:24} {len(table):6,} rows: by energy {weighted:.1f} %, mean {mean:.1f} %; by energy the law alone "
          f"{alone:.1f} %, at the cap {at_cap:.1f} %")  # fmt: skip


def kernels() -> None:
    """Watts of kernels."""
    rows = power.read()
    some, found, law = power.unseen_shapes(rows)
    task = some.table["kind"].map(TASKS)
    for name in ("prefill", "gemm", "moe", "decode"):
        mask = (task == name).to_numpy()
        _line(f"unseen shapes, {name}", some.take(mask), found[mask], law[mask])
    for gpu in power.COLLECTED:
        _line(f"without {gpu}", *power.unseen_gpu(rows, gpu))
    distinct = itemgetter("loops", "gpu", "fitted")
    for (loops, gpu, fitted), ours in groupby(sorted(own_rows(), key=distinct), distinct):
        _own_line(f"{loops} on an {gpu}{'' if fitted else ', left out'}", list(ours))


def _own_line(name: str, rows: list[dict[str, Any]]) -> None:
    answers = [pw.predict(from_dict(row["case"]), row["gpu"]) for row in rows]
    true = np.array([row["watts"] for row in rows])
    middle, low, high = (
        np.array([getattr(one, f"power{side}_w") for one in answers]) for side in ("", "_low", "_high")
    )
    inside = 100 * np.mean((low <= true) & (true <= high))
    print(f"{name:38} {len(rows):6} rows: mean {off(middle, true):.1f} %, in the interval {inside:.0f} %")


def limit() -> None:
    """How clocks give way: the exponent of `pipewave.physics.power` beside others."""
    over, slower = np.array(list(_loops())).T
    for exponent in (2.0, 2.5, 3.0, LIMIT_EXPONENT, 4.0, 5.0):
        error = np.log(overlapped(SHARPNESS, 1.0, over)) / exponent - np.log(slower)
        rms, bias = 100 * np.sqrt(np.mean(error**2)), 100 * error[over > 1.1].mean()
        print(f"{len(over)} loops, exponent {exponent:g}: {rms:.2f} % off, those well over the limit {bias:+.1f} %")


def _loops() -> Iterator[tuple[float, float]]:
    """Of our loops of random data: what each would draw above idle at full clocks over what the board has at its limit,
    and how much longer it takes than its first calls.
    """
    for file in sorted(repository().glob(LOOPS)):
        said = json.loads(file.read_text("utf-8"))
        gpu = find(said["gpu"].split()[1])
        for row in said["rows"]:
            if row.get("data") == "random" and "power_w" in row and "burst_us" in row:
                call = from_dict({name: value for name, value in row["case"].items() if name != "impl"})
                found = predict_grouped([call], [group_on(call, gpu, "vllm-0.22.1")], gpu, SERVING)
                joules = found.draws[0].above_idle_j(found.work_j[0], 1e-6 * row["burst_us"])
                yield board_of(gpu).at_limit_us(joules) / row["burst_us"], row["latency_us"] / row["burst_us"]


def steps() -> None:
    """Joules of steps inside an engine."""
    for path in sorted(STEADY.rglob("*.jsonl")):
        version = "0.22.1" if path.parent == STEADY else path.parent.name
        runner = Runner.of(Deployment(load(path.stem), Parallel()), find("H200"), find_engine(f"vllm:{version}"))
        rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        for phase in ("decode", "prefill"):
            some = [row for row in rows if row["phase"] == phase]
            found = [_joules(runner, row) for row in some]
            error = off(found, [row["joules"] for row in some])
            print(f"steps of {path.stem}, vLLM {version}, {phase:12} {len(some):6} loads: joules {error:.1f} %")


def _joules(runner: Runner, row: dict[str, Any]) -> float:
    """Of a decode step, or of prompts together; long ones in pieces of a step's tokens."""
    each, ends = 1, [int(row["mean_context"])]
    if row["phase"] == "prefill":
        each = min(row["input_len"], BUDGET)
        ends = list(range(each, row["input_len"] + 1, each))
    taken = runner.steps([runner.batch([each] * row["batch"], [end] * row["batch"]) for end in ends])
    return float(1e-6 * taken.total_us @ taken.power_w)


def servers() -> None:
    """Watts and joules of published servers."""
    table = power_serving.rows()
    found = power_serving.predicted(table)
    joules = found * table["n_gpus"] * table["step_s"] / table["avg_running"]
    for gpu, some in table.groupby("gpu"):
        watts = some["power_per_gpu_w"]
        spec = find(str(gpu))
        means = [watts[some["family"] != family].mean() for family in some["family"]]
        within = np.abs(np.log(found[some.index] / watts)) <= board_of(spec).spread
        each = some["energy_per_output_token_j"]
        rates = zip(found[some.index], joules[some.index], some["step_s"], some["tpot_ms_mean"], strict=True)
        told = [drawn_at({"power_w": power_w, ENERGY: j, RATE: 1 / step_s}, {RATE: 1e3 / tpot_ms}, spec)[ENERGY]
                for power_w, j, step_s, tpot_ms in rates]  # fmt: skip
        print(f"servers, {gpu:15} {len(some):6} runs  watts {off(found[some.index], watts):.1f} % (in the interval "
              f"{100 * within.mean():.0f} %), J a token {off(joules[some.index], each):.1f} % (told its time per token "
              f"{off(told, each):.1f} %), step times "
              f"{off(1e3 * some['step_s'], some['tpot_ms_mean']):.1f} %; watts by the mean of other runs "
              f"{off(means, watts):.1f} %, rated power {off(spec.tdp_w, watts):.1f} %")  # fmt: skip


PARTS: dict[str, Callable[[], None]] = {"kernels": kernels, "limit": limit, "steps": steps, "servers": servers}

if __name__ == "__main__":
    for part in sys.argv[1:] or PARTS:
        PARTS[part]()

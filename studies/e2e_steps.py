"""Measured vLLM steps and their prediction: what was timed, as batches of a runner. Times in ms."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipewave.gpus import find
from pipewave.models import load
from pipewave.models.kernels import Batch, Deployment
from pipewave.models.shard import Parallel
from pipewave.step import Engine, Runner, StepLoad, find_engine

FOLDER = Path(__file__).resolve().parents[1] / "data" / "measured" / "h200"
GPU = "H200"
PHASES = ("prefill", "decode")


@dataclass(frozen=True, slots=True)
class Point:
    """A measured point: `batch` prompts of `input_len` tokens, or a decode step at mean cache length `context`.

    `card`: the GPU, where points of several stand together.
    """

    model: str
    tp: int
    phase: str
    batch: int
    input_len: int
    context: int
    chunks: tuple[int, ...]
    measured_ms: float
    card: str = ""


def points(version: str = "") -> list[Point]:
    """Prefill and decode of whole models under CUDA graphs, as vLLM runs by default: 0.22.1 or the version that is
    named. A mixture of experts decodes with experts drawn at random (`VLLM_MOE_ROUTING_SIMULATION_STRATEGY`), as its
    random weights would choose them alike.

    Mixed rows are left out: vLLM schedules a step ahead, so the completion before a mixed step is late by part of it
    and the time between the two too short (512 prompt tokens beside 32 decodes in 3 ms).
    """
    return [point_of(row) for row in rows(version) if runs_of(row)]


def engines(version: str = "") -> list[dict[str, Any]]:
    """What each engine said of its memory when it started, whole models only."""
    return [row for row in rows(version) if row["kind"] == "engine" and row["layers"] is None]


def rows(version: str) -> list[dict[str, Any]]:
    """What was written inside a version, of every deployment."""
    files = sorted((FOLDER / "engine" / version).glob("*.jsonl"))
    return [json.loads(line) for path in files for line in path.read_text().splitlines() if line]


def runs_of(row: dict[str, Any]) -> bool:
    """Whether a row times a prefill or decode step of a whole model under graphs."""
    whole = row["kind"] == "step" and row["mode"] == "graph" and row["layers"] is None
    return whole and row["status"] == "ok" and row["phase"] in PHASES


def point_of(row: dict[str, Any]) -> Point:
    """The point of a row."""
    context = round(row.get("mean_context", 0))
    chunks = tuple(row.get("chunk_tokens") or ())
    where = (row["model"], row["tp"], row["phase"], row["batch"], row["input_len"], context, chunks)
    return Point(*where, row["step_ms"])


def steps_of(point: Point, runner: Runner) -> list[Batch]:
    """The engine's iterations of a point: one decode step, or the chunks in which the prompts went through."""
    if point.phase == "decode":
        return [runner.batch([1] * point.batch, [point.context] * point.batch)]
    batches, left = [], [point.input_len] * point.batch
    for tokens in point.chunks:
        pieces = _take(left, tokens)
        batches.append(runner.batch([q for q, _ in pieces], [point.input_len - after for q, after in pieces]))
    return batches


def _take(left: list[int], tokens: int) -> list[tuple[int, int]]:
    """(tokens now, tokens left after) of the prompts that a chunk advances, first come first served."""
    pieces = []
    for index, remaining in enumerate(left):
        now = min(remaining, tokens)
        if now:
            left[index], tokens = remaining - now, tokens - now
            pieces.append((now, left[index]))
    return pieces


@cache
def runner_of(model: str, tp: int, name: str = "vllm") -> Runner:
    """A measured deployment under the shipped constants of an engine of that name. FlashInfer, which fuses norms into
    all-reduces, was not installed where these runs were measured.
    """
    engine = find_engine(name).what_if(fused_norm_mib=0.0)
    return Runner.of(Deployment(load(model), Parallel(tp)), find(GPU), engine)


@dataclass(frozen=True, slots=True)
class Measured:
    """Points with everything engine constants are fitted to: loads of all their steps, and whose step each is."""

    points: Sequence[Point]
    loads: StepLoad
    owner: NDArray[np.intp]

    def predict_ms(self, engine: Engine) -> NDArray[np.float64]:
        """Time of every point under an engine."""
        total = self.loads.kernel_us + sum(engine.gaps_us(self.loads).values())
        return np.bincount(self.owner, total, len(self.points)) * np.float64(1e-3)

    def only(self, keep: NDArray[np.bool_]) -> Measured:
        """The points a mask keeps."""
        steps = keep[self.owner]
        renumbered = np.cumsum(keep) - 1
        chosen = [point for point, kept in zip(self.points, keep, strict=True) if kept]
        loads = StepLoad(*(getattr(self.loads, name)[steps] for name in StepLoad.__slots__))
        return Measured(chosen, loads, renumbered[self.owner[steps]])


def measure_loads(chosen: Sequence[Point], runner_of: Callable[[str, int], Runner] = runner_of) -> Measured:
    """Predict the kernels of all steps of all points, one batch a deployment."""
    groups: dict[tuple[str, int], list[int]] = {}
    for index, point in enumerate(chosen):
        groups.setdefault((point.model, point.tp), []).append(index)
    loads, owner = [], []
    for key, members in groups.items():
        runner = runner_of(*key)
        steps = [steps_of(chosen[index], runner) for index in members]
        loads.append(runner.steps([batch for batches in steps for batch in batches]).load)
        owner += [index for index, batches in zip(members, steps, strict=True) for _ in batches]
    return Measured(chosen, _joined(loads), np.array(owner, np.intp))


def joined(parts: Sequence[Measured]) -> Measured:
    """The points of all parts as one."""
    starts = np.cumsum([0, *(len(part.points) for part in parts)])
    owner = np.concatenate([part.owner + start for part, start in zip(parts, starts, strict=False)])
    return Measured([point for part in parts for point in part.points], _joined([part.loads for part in parts]), owner)


def _joined(loads: Sequence[StepLoad]) -> StepLoad:
    return StepLoad(*(np.concatenate([getattr(load, name) for load in loads]) for name in StepLoad.__slots__))

"""Figures of a case's answer, and how each moves with every cause: one more run for each, a little slower."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from pipewave.physics.demand import Array
from pipewave.published.answers import answer
from pipewave.published.cases import Case
from pipewave.simulate.pace import AS_PREDICTED, Pace
from pipewave.told.prior import CAUSES, LATENTS

Answer = dict[str, Any]
MEASURED = ("ttft_ms", "tpot_ms", "output_tokens_per_s", "energy_j_per_output_token")  # what may be told
CORRECTED = (*MEASURED, "e2e_ms")
SLOWER = 1.15  # a pace; below a tenth the drawn order of requests counts as much
SLOPES = (-0.5, 1.5)  # queues about to build up amplify a cause many times, but not at every pace
NO_PART = np.zeros(len(LATENTS))


@dataclass(frozen=True, slots=True, eq=False)
class Figures:
    """A case's answer, and for each figure its slopes (d log figure / d log pace) and the latents that it is off by."""

    answer: Answer
    slopes: Mapping[str, Array]  # [cause]
    parts: Mapping[str, Array]  # [latent]
    place: Array
    kin: tuple[Any, ...]  # software and model


@lru_cache(maxsize=1024)
def figures(case: Case) -> Figures:
    """Ask a case as it is and with each cause a little slower. Raises what `answer` raises."""
    return measured_by(case, lambda pace: answer(case, None, pace))


def measured_by(case: Case, run: Callable[[Pace], Answer]) -> Figures:
    """The same with answers of `run`."""
    usual = run(AS_PREDICTED)
    slower = [run(Pace(**{name: SLOWER})) for name in CAUSES]
    names = [name for name in CORRECTED if usual.get(name)]
    slopes = {name: _slopes(usual[name], [one[name] for one in slower]) for name in names}
    return of(case, usual, slopes)


def of(case: Case, usual: Answer, slopes: Mapping[str, Array]) -> Figures:
    """Figures of which answer and slopes are known."""
    software = (case.engine, case.version, case.gpu)
    return Figures(usual, slopes, {name: _part(name, case, usual) for name in slopes}, place(case, usual),
                   (software, case.model))  # fmt: skip


def _slopes(usual: float, slower: list[float]) -> Array:
    moved = [math.log(one / usual) / math.log(SLOWER) for one in slower]
    return np.clip(moved, *SLOPES)


def place(case: Case, usual: Answer) -> Array:
    """Where a load lies (`PLACES`); requests in flight by Little's law."""
    lengths = np.array(case.arrivals, float)[:, 1:].mean(axis=0) if case.arrivals else (case.isl or 1, case.osl or 1)
    flight = usual["output_tokens_per_s"] / lengths[1] * usual["e2e_ms"] / 1e3
    gpus = case.tp * case.pp * case.dp
    found: Array = np.log2(np.maximum([flight, *lengths, gpus, case.ep, case.dp], 1.0))
    return found


def _part(name: str, case: Case, usual: Answer) -> Array:
    """How far a figure is off where each latent is off by one.

    Requests of a closed loop, or of a batch, last `ttft + (osl - 1) tpot`, and their rate is one over it. Requests that
    come by the clock set their rate themselves. Queued all at once, a rate is off for itself.
    """
    if name in ("ttft_ms", "tpot_ms"):
        return np.eye(len(LATENTS))[LATENTS.index(name)]
    if name == "energy_j_per_output_token":
        return np.eye(len(LATENTS))[LATENTS.index("energy")]
    sign = 1.0 if name == "e2e_ms" else -1.0
    if case.mode == "offline":
        return -sign * np.eye(len(LATENTS))[LATENTS.index("rate")]
    if sign < 0 and (case.arrivals is not None or case.rate not in (None, math.inf)):
        return NO_PART
    first = min(usual["ttft_ms"] / usual["e2e_ms"], 1.0)
    return sign * np.array([first, 1.0 - first, 0.0, 0.0])

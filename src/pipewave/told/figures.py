"""Figures of a case's answer, and how each moves with every cause: one more run for each, a little slower."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from pipewave.physics.demand import Array
from pipewave.published.answers import answer
from pipewave.published.cases import MEASURED, Case
from pipewave.simulate.setup import AS_PREDICTED, Pace
from pipewave.told.posterior import CAUSES, LATENTS

Answer = dict[str, Any]
SLOWER = 1.15  # a pace; below a tenth the drawn order of requests counts as much
SLOPES = (-0.5, 1.5)  # of times; queues about to build up amplify a cause many times, but not at every pace
SLIGHT = 1e-9  # of lengths, which stay as they are
RATE = "output_tokens_per_s"
NO_PART: Array = np.zeros(len(LATENTS))


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
    if case.mode == "estimate" and not case.spread:  # priced at once; what it hinges on shows where it is simulated
        return replace(figures(replace(case, spread=SLIGHT)), answer=answer(case))
    return measured_by(case, lambda pace: answer(case, None, pace))


def measured_by(case: Case, run: Callable[[Pace], Answer]) -> Figures:
    """The same with answers of `run`."""
    usual, *slower = (run(pace) for pace in (AS_PREDICTED, *(Pace(**{name: SLOWER}) for name in CAUSES)))
    names = [name for name in MEASURED if usual.get(name)]
    moved = {name: np.log([one[name] / usual[name] for one in slower]) / math.log(SLOWER) for name in names}
    signs = {name: -1.0 if name == RATE else 1.0 for name in names}
    return of(case, usual, {name: sign * np.clip(sign * moved[name], *SLOPES) for name, sign in signs.items()})


def of(case: Case, usual: Answer, slopes: Mapping[str, Array]) -> Figures:
    """Figures of which answer and slopes are known."""
    software = (case.engine, case.version, case.gpu)
    return Figures(usual, slopes, {name: _part(name, case, usual) for name in slopes}, place(case, usual),
                   (software, case.model))  # fmt: skip


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
        return _alone(name)
    if name == "energy_j_per_output_token":
        return _alone("energy")
    sign = 1.0 if name == "e2e_ms" else -1.0
    if case.mode == "offline":
        return -sign * _alone("rate")
    if sign < 0 and (case.arrivals is not None or case.rate not in (None, math.inf)):
        return NO_PART
    first = min(usual["ttft_ms"] / usual["e2e_ms"], 1.0)
    return sign * np.array([first, 1.0 - first, 0.0, 0.0])


def _alone(latent: str) -> Array:
    return np.array([float(name == latent) for name in LATENTS])

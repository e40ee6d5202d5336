"""The answer of the contract for cases that are told something of their deployment."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pipewave.errors import PipewaveError
from pipewave.published.answers import DIGITS
from pipewave.published.answers import answer as untold
from pipewave.published.cases import MEASURED, Case, Measured
from pipewave.told.figures import Figures, figures
from pipewave.told.posterior import CAUSES, NORMAL, Points, Posterior, shipped

LIKELY = 0.5  # that a run is spoiled
CLEAR = 1.645  # standard deviations that a cause is off by, to be named
ENERGY = "energy_j_per_output_token"
CAUSE_NAMES = {
    "decode": "kernels of decode steps take",
    "prompt": "kernels of steps with prompts take",
    "host": "the engine's host takes",
    "frontend": "the front end takes",
}
SLOWEST = {"ttft_p99_ms": "ttft_ms", "tpot_p99_ms": "tpot_ms"}  # move as their means do


@dataclass(frozen=True, slots=True, eq=False)
class Learned:
    """What some measured runs say of their deployment and its siblings."""

    posterior: Posterior
    runs: tuple[int, ...]  # numbers of those that it rests on
    figures: frozenset[str]  # that they tell

    def sentences(self) -> list[str]:
        """Causes that are clear, and runs that do not fit the others."""
        mean, deviation = self.posterior.causes()
        clear = [k for k in np.argsort(-np.abs(mean)) if abs(mean[k]) > CLEAR * deviation[k]]
        causes = [f"{CAUSE_NAMES[CAUSES[k]]} {math.exp(mean[k]):.2f} times as long as predicted" for k in clear]
        likely = self.posterior.spoiled()
        odd = [f"told[{run}]" for run, one in zip(self.runs, likely, strict=True) if one > LIKELY]
        spoiled = f"{', '.join(odd)} fit neither the others nor the model (throttled, shared, other settings?)"
        about = f"corrected by what is told ({len(self.runs)})" + (f": {'; '.join(causes)}" if causes else "")
        return [about, f"{spoiled}: mostly left out of account"] if odd else [about]


def learn(told: Sequence[Measured]) -> tuple[Learned | None, list[str]]:
    """What measured runs say, None where none of them can be simulated; and which cannot."""
    rows, off, refused = [], [], []
    for number, run in enumerate(told):
        try:
            found = figures(run.case)
        except PipewaveError as problem:
            refused.append(f"told[{number}] is left out: {problem.message}")
            continue
        for name, value in run.means:
            if name in found.slopes:
                rows.append((number, name, found))
                off.append(math.log(value / found.answer[name]))
    if not rows:
        return None, refused
    runs = tuple(dict.fromkeys(number for number, *_ in rows))
    points = Points.of([point(found, name, runs.index(number)) for number, name, found in rows])
    return Learned(Posterior(shipped(), points, np.array(off)), runs, frozenset(name for _, name, _ in rows)), refused


def point(found: Figures, name: str, run: int) -> tuple[Any, ...]:
    """A figure of a run, as `Points.of` takes it."""
    return found.slopes[name], found.parts[name], found.place, run, *found.kin


def answer(case: Case) -> dict[str, Any]:
    """As `pipewave.published.answers.answer`, corrected by what the case is told. Raises what that does.

    Told runs that cannot be simulated are left out, and a note says so.
    """
    bare = replace(case, told=())
    if not case.told:
        return untold(bare)
    learned, refused = learn(case.told)
    if learned is None:
        found = untold(bare)
        return found | {"notes": [*found["notes"], *refused]}
    asked = figures(bare)
    notes = [*asked.answer["notes"], *refused, *learned.sentences()]
    return corrected(asked, learned) | {"notes": notes}


def corrected(asked: Figures, learned: Learned) -> dict[str, Any]:
    """An answer times what measured runs say that it is off by, with the interval that they leave."""
    out = dict(asked.answer)
    for name, (each, wide) in off_by(asked, learned).items():
        middle = asked.answer[name] * math.exp(each)
        sides = {"": middle, "_low": middle * math.exp(-wide), "_high": middle * math.exp(wide)}
        out |= {name + side: round(value, 6 if name == ENERGY else DIGITS) for side, value in sides.items()}
    for name, as_mean in SLOWEST.items():
        if name in out:
            out[name] = round(out[name] * out[as_mean] / asked.answer[as_mean], DIGITS)
    return out


def off_by(asked: Figures, learned: Learned) -> dict[str, tuple[float, float]]:
    """Mean and half the 90 % interval, in log, of what each figure is off by; of energy only where energy is told."""
    names = [name for name in MEASURED if name in asked.slopes and (name != ENERGY or name in learned.figures)]
    posterior = learned.posterior
    mean, variance = posterior.at(Points.of([point(asked, name, 0) for name in names]))
    half = NORMAL * float(posterior.prior.width[0]) * np.sqrt(variance)
    return {name: (float(mean[i]), float(half[i])) for i, name in enumerate(names)}

"""Answers corrected by measured runs of their deployment: of cases, `pw.serve`, `estimate` and `serve`.

How the figures of an answer move with every cause is one more run for each, a little slower (`figures`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from pipewave.errors import PipewaveError
from pipewave.gpus import GPU, find
from pipewave.physics.demand import Array
from pipewave.physics.power import board_of, limited
from pipewave.published.answers import DIGITS, deploy
from pipewave.published.answers import answer as uncorrected
from pipewave.published.cases import MEASURED, Case, Measured, from_dict
from pipewave.published.unstated import Stated
from pipewave.results import Shown
from pipewave.simulate.estimate import Estimate
from pipewave.simulate.setup import AS_PREDICTED, Pace
from pipewave.simulate.traffic import Traffic
from pipewave.told.posterior import CAUSES, LATENTS, NORMAL, Points, Posterior, shipped
from pipewave.told.readers import Run

Answer = dict[str, Any]
SLOWER = 1.15  # a pace; below a tenth the drawn order of requests counts as much
SLOPES = (-0.5, 1.5)  # of times; queues about to build up amplify a cause many times, but not at every pace
SLIGHT = 1e-9  # of lengths, which stay as they are
RATE = "output_tokens_per_s"
NO_PART: Array = np.zeros(len(LATENTS))
FULL = 0.8  # of the most in flight, that hold others back
LIKELY = 0.5  # that a run is spoiled, or a deployment unlike others
CLEAR = 1.645  # standard deviations that a cause is off by, to be named
ENERGY = "energy_j_per_output_token"
CAUSE_NAMES = {
    "decode": "kernels of decode steps take",
    "prompt": "kernels of steps with prompts take",
    "host": "the engine's host takes",
    "frontend": "the front end takes",
}
TIMES = re.compile(r"(ttft|tpot|itl|e2e)_\w+?_ms(?=$|_low$|_high$)")
AS = {"itl": "tpot"}  # an interval between two tokens is one of those that TPOT is the mean of
RATES = (RATE, "total_tokens_per_s", "requests_per_s", "output_tokens_per_s_per_gpu")
STEPS_AS_PREDICTED = "steps, goodput and what happened in each step are as predicted"
ENDS = {"": 0.0, "_low": -1.0, "_high": 1.0}  # of a figure: the mean, and both ends of its interval
SLOWEST = {"ttft_p99_ms": "ttft_ms", "tpot_p99_ms": "tpot_ms"}  # move as their means do


@dataclass(frozen=True, slots=True, eq=False)
class Figures:
    """A case's answer, and how each of its figures moves with the pace of each cause and with each latent."""

    answer: Answer
    slopes: Mapping[str, Array]  # [cause] d log figure / d log pace
    parts: Mapping[str, Array]  # [latent] d log figure / d latent
    place: Array  # of its load
    siblings: tuple[Any, ...]  # software and model, which siblings have in common


@lru_cache(maxsize=1024)
def figures(case: Case) -> Figures:
    """Ask a case as it is and with each cause a little slower. Raises what answering it raises."""
    if case.mode == "estimate" and not case.spread:  # priced at once; what it hinges on shows where it is simulated
        return replace(figures(replace(case, spread=SLIGHT)), answer=uncorrected(case))
    return measured_by(case, lambda pace: uncorrected(case, None, pace))


def measured_by(case: Case, run: Callable[[Pace], Answer]) -> Figures:
    """The same with answers of `run`."""
    usual, *slower = (run(pace) for pace in (AS_PREDICTED, *(Pace(**{name: SLOWER}) for name in CAUSES)))
    names = [name for name in MEASURED if usual.get(name)]
    moved = {name: np.log([one[name] / usual[name] for one in slower]) / math.log(SLOWER) for name in names}
    signs = {name: -1.0 if name == RATE else 1.0 for name in names}
    return figures_of(case, usual, {name: sign * np.clip(sign * moved[name], *SLOPES) for name, sign in signs.items()})


def figures_of(case: Case, usual: Answer, slopes: Mapping[str, Array]) -> Figures:
    """Figures of which answer and slopes are known."""
    software = (case.engine, case.version, case.gpu)
    found = place(case, usual)
    parts = {name: _part(name, case, usual, 2.0 ** float(found[0])) for name in slopes}
    return Figures(usual, slopes, parts, found, (software, (case.model, case.quantize)))


def place(case: Case, usual: Answer) -> Array:
    """Where a load lies (`PLACES`); requests in flight by Little's law."""
    lengths = np.array(case.arrivals, float)[:, 1:].mean(axis=0) if case.arrivals else (case.isl or 1, case.osl or 1)
    flight = usual["output_tokens_per_s"] / lengths[1] * usual["e2e_ms"] / 1e3
    gpus = case.tp * case.pp * case.dp
    return np.asarray(np.log2(np.maximum([flight, *lengths, gpus, case.ep, case.dp], 1.0)))


def _part(name: str, case: Case, usual: Answer, flight: float) -> Array:
    """How far a figure of so many requests in flight is off where each latent is off by one.

    Requests of a closed loop, or of a batch, last `ttft + (osl - 1) tpot`, and their rate is one over it. Requests that
    come by the clock set their rate themselves, unless the most in flight are. Queued at once, a rate is off itself.
    """
    if name in ("ttft_ms", "tpot_ms"):
        return _alone(name)
    if name == ENERGY:
        return _alone("energy")
    sign = 1.0 if name == "e2e_ms" else -1.0
    if case.mode == "offline":
        return -sign * _alone("rate")
    free = flight < FULL * (case.concurrency or math.inf)
    if sign < 0 and (case.arrivals is not None or (case.rate not in (None, math.inf) and free)):
        return NO_PART
    first = min(usual["ttft_ms"] / usual["e2e_ms"], 1.0)
    return sign * np.array([first, 1.0 - first, 0.0, 0.0])


def _alone(latent: str) -> Array:
    return np.array([float(name == latent) for name in LATENTS])


@dataclass(frozen=True, slots=True, eq=False)
class Learned:
    """What some measured runs say of their deployment and its siblings."""

    posterior: Posterior
    runs: tuple[int, ...]  # numbers of those that it rests on
    figures: frozenset[str]  # that they tell

    def sentences(self) -> list[str]:
        """Causes that are clear, and runs that do not fit the others."""
        mean, deviation = self.posterior.causes()
        apart = "all times are off alike, as no published server's are (another card, a power limit, a slow host?)"
        clear = [k for k in np.argsort(-np.abs(mean)) if abs(mean[k]) > CLEAR * deviation[k]]
        causes = [f"{CAUSE_NAMES[CAUSES[k]]} {math.exp(mean[k]):.2f} times as long as predicted" for k in clear]
        causes += [apart] if self.posterior.weights @ self.posterior.unlike > LIKELY else []
        likely = self.posterior.weights @ self.posterior.ways
        odd = [f"told[{self.runs[k]}]" for k in np.flatnonzero(likely > LIKELY)]
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
    return found.slopes[name], found.parts[name], found.place, run, *found.siblings


def answer(case: Case) -> dict[str, Any]:
    """As `pipewave.published.answers.answer`, corrected by what the case is told. Raises what that does.

    Told runs that cannot be simulated are left out, and a note says so.
    """
    bare = replace(case, told=())
    if not case.told:
        return uncorrected(bare)
    learned, refused = learn(case.told)
    if learned is None:
        found = uncorrected(bare)
        return found | {"notes": [*found["notes"], *refused]}
    asked = figures(bare)
    notes = [*asked.answer["notes"], *refused, *learned.sentences()]
    return corrected(asked, learned, limited(find(case.gpu), case.power_limit_w)) | {"notes": notes}


def corrected(asked: Figures, learned: Learned, gpu: GPU) -> dict[str, Any]:
    """An answer times what measured runs say that it is off by, with the interval that they leave."""
    each = off_by(asked, learned)
    changed = {name + side: round(asked.answer[name] * _factor(each, name, end), 6 if name == ENERGY else DIGITS)
               for name in each for side, end in ENDS.items()}  # fmt: skip
    for name, as_mean in SLOWEST.items():
        if name in asked.answer and as_mean in changed:
            changed[name] = round(asked.answer[name] * changed[as_mean] / asked.answer[as_mean], DIGITS)
    return {**asked.answer, **drawn_at(asked.answer, changed, gpu), **changed}


def drawn_at(before: Mapping[str, Any], changed: Mapping[str, float], gpu: GPU) -> dict[str, float]:
    """Watts and joules of an answer of which some figures, its rate among them, were corrected.

    Work costs the joules that it did, waits draw idle watts, and no board passes its limit; corrected joules of a token
    say the watts.
    """
    if not before.get("power_w") or not before.get(ENERGY):
        return {}
    board, watts, faster = board_of(gpu), before["power_w"], changed[RATE] / before[RATE]
    worked = min(board.idle_w + (watts - board.idle_w) * faster, board.limit_w)
    each = changed[ENERGY] / before[ENERGY] if ENERGY in changed else worked / watts / faster
    power_w = min(watts * each * faster, board.limit_w)
    drawn = {name: value * each for name, value in before.items() if "energy_j" in name}
    drawn |= {f"power_w{side}": value for side, value in zip(ENDS, (power_w, *board.ends(power_w)), strict=True)}
    return {name: float(f"{value:.6g}") for name, value in drawn.items()}


def off_by(asked: Figures, learned: Learned) -> dict[str, tuple[float, float]]:
    """Mean and half the 90 % interval, in log, of what each figure is off by; of energy only where energy is told."""
    names = [name for name in MEASURED if name in asked.slopes and (name != ENERGY or name in learned.figures)]
    posterior = learned.posterior
    mean, variance = posterior.at(Points.of([point(asked, name, 0) for name in names]))
    half = NORMAL * float(posterior.prior.width[0]) * np.sqrt(variance)
    return {name: (float(mean[i]), float(half[i])) for i, name in enumerate(names)}


def corrected_estimate(found: Estimate, case: Mapping[str, Any], told: Sequence[Run]) -> Estimate:
    """A static batch, corrected by measured runs. Raises what reading the case raises."""
    asked, learned, notes = _learned(case, {"mode": "estimate"}, told)
    if learned is None:
        return replace(found, notes=(*found.notes, *notes))
    each = off_by(figures(asked), learned)
    means = {"prefill_ms": "ttft_ms"} | {name: name for name in ("tpot_ms", "e2e_ms", ENERGY) if name in each}
    times: dict[str, Any] = {name + side: getattr(found, name) * _factor(each, ours, end)
                             for name, ours in means.items() for side, end in ENDS.items()}  # fmt: skip
    times[RATE] = found.output_tokens_per_s * found.e2e_ms / times["e2e_ms"]
    drawn = drawn_at(found.to_dict(), times, limited(find(asked.gpu), asked.power_limit_w))
    return replace(found, **drawn | times, notes=(*found.notes, *notes))


def corrected_run(
    found: Mapping[str, Any], stated: Stated, traffic: Traffic, case: Mapping[str, Any], told: Sequence[Run]
) -> dict[str, Any]:
    """Percentiles and rates of `serve`, corrected by measured runs; each by what its mean is off by.

    `case`: the deployment in the fields of a case. Raises what reading it raises.
    """
    rate = len(traffic) / last_s if (last_s := float(traffic.arrival_s[-1])) else math.inf
    load = {"concurrency": traffic.concurrency} | ({} if traffic.closed else {"rate": rate, "requests": len(traffic)})
    lengths = {"isl": float(traffic.input_len.mean()), "osl": float(traffic.output_len.mean())}
    asked, learned, sentences = _learned(case, lengths | load, told)
    notes = [*found["notes"], *sentences]
    if learned is None:
        return {**found, "notes": notes}

    def run(pace: Pace) -> dict[str, Any]:
        ready = deploy(replace(stated, setup=replace(stated.setup, pace=pace)), traffic)
        summary = ready.figures(record := ready.run())
        means = {f"{name}_ms": summary.get(f"{name}_mean_ms", 0.0) for name in ("ttft", "tpot", "e2e")}
        return means | {RATE: summary[RATE], **ready.energy(record, summary)}

    each = off_by(measured_by(asked, run), learned)
    out = {name: value * _factor(each, RATE) if name in RATES else value for name, value in found.items()}
    for name in found:
        if match := TIMES.match(name):
            middle, side = match.group(), name[match.end() :]
            figure = f"{AS.get(match.group(1), match.group(1))}_ms"
            out[name] = found[middle] * _factor(each, figure, ENDS[side])
    changed = {ENERGY + end: found[ENERGY] * _factor(each, ENERGY, at) for end, at in ENDS.items() if ENERGY in each}
    changed[RATE] = out[RATE]
    return {**out, **drawn_at(found, changed, find(stated.gpu)), **changed, "notes": [*notes, STEPS_AS_PREDICTED]}


def _learned(
    case: Mapping[str, Any], load: Mapping[str, Any], told: Sequence[Run]
) -> tuple[Case, Learned | None, tuple[str, ...]]:
    """The case without what it is told, what that says, and sentences."""
    asked = from_dict({**case, **load, "told": [{"mode": "serve"} | one for one in told]})
    learned, refused = learn(asked.told)
    return replace(asked, told=()), learned, (*refused, *(learned.sentences() if learned else ()))


def _factor(each: Mapping[str, tuple[float, float]], name: str, end: float = 0.0) -> float:
    """What a figure is multiplied with, or an end of its interval."""
    mean, half = each.get(name, (0.0, 0.0))
    return math.exp(mean + end * half)


@dataclass(frozen=True, eq=False)
class ServeAnswer(Shown, Mapping[str, Any]):
    """Means over requests as their clients see them; None where nothing tells, as TPOT of outputs of one token.

    It is read like the JSON of `serve --cases`, too: `answer["tpot_ms"]`.
    """

    ttft_ms: float
    e2e_ms: float
    output_tokens_per_s: float
    tpot_ms: float | None = None
    ttft_ms_low: float | None = None
    ttft_ms_high: float | None = None
    tpot_ms_low: float | None = None
    tpot_ms_high: float | None = None
    e2e_ms_low: float | None = None
    e2e_ms_high: float | None = None
    output_tokens_per_s_low: float | None = None
    output_tokens_per_s_high: float | None = None
    ttft_p99_ms: float | None = None
    tpot_p99_ms: float | None = None
    power_w: float | None = None  # mean of one GPU over the run
    energy_j_per_output_token: float | None = None
    kv_tokens: int | None = None  # that the cache holds
    verdict: str | None = None  # steady, saturated, or too short a run to tell
    traffic: str | None = None
    basis: Mapping[str, float] | None = None  # shares of step time by evidence
    notes: tuple[str, ...] = ()
    more: Mapping[str, Any] = field(default_factory=dict)  # what else the answer says, such as intervals of watts

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> ServeAnswer:
        """From the answer of a case."""
        known = {one.name for one in fields(cls)} - {"notes", "more"}
        more = {name: value for name, value in answer.items() if name not in known | {"notes"}}
        said = {name: value for name, value in answer.items() if name in known}
        return cls(**said, notes=tuple(answer.get("notes", ())), more=more)

    def to_dict(self) -> dict[str, Any]:
        """The answer of the contract, less its id."""
        told = {one.name: getattr(self, one.name) for one in fields(self) if one.name not in ("notes", "more")}
        said = {name: value for name, value in told.items() if value is not None}
        return said | dict(self.more) | {"notes": list(self.notes)}

    @cached_property
    def _answer(self) -> dict[str, Any]:
        """The same for those who read it by name, worked out once."""
        return self.to_dict()

    def __getitem__(self, name: str) -> Any:
        return self._answer[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._answer)

    def __len__(self) -> int:
        return len(self._answer)

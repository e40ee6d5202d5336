"""`pipewave check`: is a server slower than it was? Results against earlier ones, and what identical runs differ by."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pipewave.errors import BadInput
from pipewave.published.cases import from_dict
from pipewave.told.answers import RATE, figures, learn, off_by
from pipewave.told.posterior import NORMAL
from pipewave.told.readers import Run
from pipewave.told.tell import runs_of

# What runs of one deployment on different days differ by, in log: all loads alike, and each load on its own. Repeated
# published runs (`python -m studies.told_gate`).
BETWEEN_RUNS = {"tpot_ms": (0.03, 0.065), RATE: (0.03, 0.065), "ttft_ms": (0.05, 0.2)}
NEAR = 0.03  # lengths that are one load
UNITS = 100.0  # times slower or faster than that are seconds beside milliseconds
LOAD = ("concurrency", "rate", "mode", "tp", "pp", "ep")  # what makes two runs alike beside their lengths
BLIND = 1.1  # a band beyond which a slow-down by 15 % may be missed
NAMES = {"tpot_ms": "time per output token", RATE: "throughput", "ttft_ms": "time to first token"}
Means = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Change:
    """Of one figure over some loads: how many times slower it is, and from how many times on that is no noise."""

    figure: str
    loads: int
    slower: float
    band: float

    @property
    def beyond(self) -> bool:
        """Whether it is slower than noise explains; one of twenty identical runs is."""
        return self.slower > self.band

    def row(self) -> dict[str, Any]:
        """For tables; percent."""
        verdict = "slower" if self.beyond else "faster" if self.slower < 1.0 / self.band else "within noise"
        over, band = (round(100 * (one - 1.0), 1) + 0.0 for one in (self.slower, self.band))  # and no -0
        return {"figure": NAMES[self.figure], "loads": self.loads, "slower by %": over, "noise %": band,
                "verdict": verdict}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Verdict:
    """Changes of all figures that both sides hold, and what could not be compared."""

    changes: tuple[Change, ...]
    notes: tuple[str, ...]

    @property
    def slower(self) -> bool:
        """Whether any figure is slower than noise explains."""
        return any(one.beyond for one in self.changes)

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {"slower": self.slower, "changes": [one.row() for one in self.changes], "notes": list(self.notes)}

    def markdown(self) -> str:
        """A summary for a pull request."""
        rows = [one.row() for one in self.changes]
        lines = [f"**{'Slower' if self.slower else 'Not slower'} than the baseline.**", ""]
        lines += [f"| {' | '.join(rows[0])} |", "|" + "---|" * len(rows[0])]
        lines += [f"| {' | '.join(map(str, row.values()))} |" for row in rows]
        return "\n".join([*lines, "", *(f"* {note}" for note in self.notes)]) + "\n"


def check(results: Sequence[str], baseline: Sequence[str], **deployment: Any) -> Verdict:
    """Compare result files with earlier ones of the same loads; of other loads with what the earlier ones predict.

    `deployment`: fields of a case (model, gpu, engine, tp); with a model and a GPU, loads that the baseline lacks are
    compared as well. Raises what `read` raises; BadInput where nothing can be compared.
    """
    new, old = runs_of(results), runs_of(baseline)
    given = {name: value for name, value in deployment.items() if value is not None}
    sides = [_before(run, old, given) for run in new]
    changes = changes_of([(before, run) for (before, _), run in zip(sides, new, strict=True) if before])
    absent = ((number, said) for number, (_, said) in enumerate(sides, 1) if said)
    notes = [f"result {number}: the baseline has no such load; {said}" for number, said in absent]
    if not changes:
        raise BadInput("; ".join(notes) or "baseline and results hold no figure in common", field="baseline")
    if odd := [one for one in changes if not 1 / UNITS < one.slower < UNITS]:
        figure, times = odd[0].figure, odd[0].slower
        raise BadInput(f"{figure}: {times:.2g} times the baseline's; are both in ms?", field=figure)
    if min(one.band for one in changes) > BLIND:
        notes.append("a slow-down by 15 % may be missed: give results of three loads")
    return Verdict(changes, tuple(notes))


def _before(run: Run, baseline: Sequence[Run], deployment: Mapping[str, Any]) -> tuple[Means, str]:
    """What a run is compared with: means of earlier runs of its load, else what these predict there, and a note on it.
    Nothing without the deployment's model and GPU.
    """
    near = [one for one in baseline if all(abs(math.log(run[name] / one[name])) < NEAR for name in ("isl", "osl"))]
    if alike := [one for one in near if all(run.get(name) == one.get(name) for name in LOAD)]:
        names = [name for name in BETWEEN_RUNS if all(one.get(name) for one in alike)]
        return {name: statistics.geometric_mean(one[name] for one in alike) for name in names}, ""
    if {"model", "gpu"} <= deployment.keys():
        return _expected(run, baseline, deployment), "compared with what it predicts there"
    return {}, "with --model and --gpu it is predicted"


def changes_of(pairs: Sequence[tuple[Means, Means]]) -> tuple[Change, ...]:
    """Changes of what both of (before, after) hold, over all pairs: the median load against the noise of so many."""
    found = []
    for name, (shared, own) in BETWEEN_RUNS.items():
        sign = -1.0 if name == RATE else 1.0
        both = [(before, after) for before, after in pairs if before.get(name) and after.get(name)]
        each = [sign * math.log(after[name] / before[name]) for before, after in both]
        open_ = [before.get(f"{name} open", 0.0) for before, _ in both]
        if both:
            noise = math.sqrt(shared**2 + (own**2 + statistics.fmean(one**2 for one in open_)) / len(each))
            found.append(Change(name, len(each), math.exp(statistics.median(each)), math.exp(NORMAL * noise)))
    return tuple(found)


def _expected(run: Run, baseline: Sequence[Run], deployment: Mapping[str, Any]) -> Run:
    """What the baseline predicts at the load of a run, and how far that is open (a standard deviation in log)."""
    load = {name: value for name, value in run.items() if name not in BETWEEN_RUNS and name != "e2e_ms"}
    case = from_dict({**load, **deployment, "told": [dict(one) for one in baseline]})
    learned, found = learn(case.told)[0], figures(replace(case, told=()))
    each = off_by(found, learned) if learned else {}
    means = {name: found.answer[name] * math.exp(off) for name, (off, _) in each.items()}
    return means | {f"{name} open": half / NORMAL for name, (_, half) in each.items()}

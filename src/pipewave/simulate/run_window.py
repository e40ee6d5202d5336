"""Windows of a simulated run: its middle, its course over time, and whether it kept up with its requests.

A closed loop begins with all its requests at once, whose prompts wait for one another; no such crowd comes again. What
`plan` answers is a deployment that has been loaded for long, which is this middle (`python -m studies.plan_steady`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipewave.errors import BadInput
from pipewave.physics.demand import Array
from pipewave.simulate.replica import Step
from pipewave.simulate.report import ANY, Sla, summary
from pipewave.simulate.simulation import Record
from pipewave.simulate.traffic import Traffic

Mask = NDArray[np.bool_]
EDGE = 0.1  # of open-loop requests, at either end
DIGITS = 4
OVERLOAD, CHANCE = 0.05, 4.0  # growth of requests in the system over arrivals, and in standard deviations of a count
TURNS = 4.0  # times that the mean request takes, after which the first ones have left


def middle(record: Record, traffic: Traffic) -> Mask:
    """Which requests are in the middle, [request]: all but the first two rounds of a closed loop and its last one, or
    but the first and last tenth of those that come on their own.

    Raises BadInput where no request is left.
    """
    count, held = len(traffic), traffic.concurrency
    first, last = (2 * held, count - held) if held else (int(EDGE * count), count - int(EDGE * count))
    if last <= first:
        most = f"at least {3 * (held or 1) + 1}" if held else "more"
        raise BadInput(f"requests = {count}: too few for a middle; ask for {most}", field="requests")
    order = np.argsort(record.arrival_s, kind="stable")
    kept = np.zeros(count, bool)
    kept[order[first:last]] = True
    return kept


def steady_ms(record: Record, traffic: Traffic) -> dict[str, float]:
    """Means over the middle of a run: `ttft_ms`, `tpot_ms` and `e2e_ms` of a deployment that has been loaded for long,
    which `plan` approximates in closed form. Every request has later tokens.
    """
    kept = middle(record, traffic)
    first, whole = (1e3 * (end - record.arrival_s)[kept] for end in (record.first_s, record.done_s))
    later = (whole - first) / (traffic.output_len[kept] - 1)
    return {"ttft_ms": float(first.mean()), "tpot_ms": float(later.mean()), "e2e_ms": float(whole.mean())}


def summary_of(record: Record, traffic: Traffic, gpus: int, sla: Sla = ANY, kept: Mask | None = None) -> dict[str, Any]:
    """`report.summary` of the requests kept; None keeps all.

    Rates of a middle are those at which its requests were done, and the share of requests that meets the limits.
    """
    if kept is None:
        return summary(record, traffic, gpus, sla)
    begin, end = float(record.arrival_s[kept].min()), float(record.done_s[kept].max())
    part = Record(record.first_s[kept], record.done_s[kept], record.arrival_s[kept])
    part.steps = [(which, step) for which, step in record.steps if begin <= step.start_s < end]
    requests = replace(
        traffic,
        arrival_s=np.sort(part.arrival_s),
        input_len=traffic.input_len[kept],
        output_len=traffic.output_len[kept],
        found_len=None,
        shared=None,
        after=None,
        think_s=None,
    )
    found = summary(part, requests, gpus, sla)
    return found | _rates(part, requests, found["good_share"], gpus)


def _rates(part: Record, requests: Traffic, good: float, gpus: int) -> dict[str, float]:
    done = np.sort(part.done_s)
    span = float(done[-1] - done[0])
    if span <= 0:
        return {}
    each = (len(done) - 1) / span
    out, whole = float(requests.output_len.mean()), float((requests.output_len + requests.input_len).mean())
    return {
        "requests_per_s": each,
        "output_tokens_per_s": each * out,
        "total_tokens_per_s": each * whole,
        "output_tokens_per_s_per_gpu": each * out / gpus,
        "goodput_per_s": each * good,
    }


@dataclass(frozen=True, slots=True)
class Steadiness:
    """Whether a run kept up with its requests; rates are over the second half of the time in which requests come."""

    arrivals_per_s: float  # 0 where all come at once
    completions_per_s: float
    queue_growth_per_s: float  # requests that wait or run, more each second
    in_system: float  # requests that wait or run when the last one comes
    overloaded: bool  # requests come faster than they are done: waits grow as long as they come
    steady: bool  # it keeps up, and long enough for the first requests to have left
    requests: int = 0  # of a run that is long enough to tell; 0 where no number of them is
    served_per_s: float = 0.0  # over the whole run

    @property
    def verdict(self) -> str:
        """In words."""
        if self.overloaded:
            rates = f"{self.served_per_s:.3g} requests/s of {self.arrivals_per_s:.3g}"
            return f"saturated: {rates}; waits grow for as long as requests come"
        if self.steady:
            return "steady"
        enough = (
            f": the run is too short, ask for {self.requests:,} requests" if self.requests else ": all come at once"
        )
        return f"no steady state{enough}"


def steadiness(record: Record, traffic: Traffic) -> Steadiness:
    """Compare arrivals with completions over the second half of the time in which requests come.

    Overloaded is an open loop whose requests in the system grow by more than a twentieth of the arrivals and by more
    than chance explains (four standard deviations of a Poisson count). A closed loop cannot be; it is steady after
    two rounds, an open one when requests come for at least four times as long as the mean one takes.
    """
    arrived, done = np.sort(record.arrival_s), np.sort(record.done_s)
    middle, last = 0.5 * (arrived[0] + arrived[-1]), arrived[-1]
    span = float(last - middle)
    if not span:
        return Steadiness(0.0, 0.0, 0.0, float(len(arrived)), overloaded=False, steady=False)

    def within(times: Array) -> float:
        return float(np.searchsorted(times, last, "right") - np.searchsorted(times, middle, "right"))

    come, gone = within(arrived), within(done)
    left = len(arrived) - float(np.searchsorted(done, last, "right"))
    growth = come - gone
    if held := traffic.concurrency:
        overloaded, steady, enough = False, len(arrived) > 2 * held, 2 * held + 1
    else:
        overloaded = growth > max(OVERLOAD * come, CHANCE * float(np.sqrt(max(left, 1.0))))
        needed = TURNS * float((record.done_s - record.arrival_s).mean())
        steady = not overloaded and 2.0 * span >= needed
        enough = math.ceil(len(arrived) * needed / (2.0 * span))
    rates, whole = (come / span, gone / span, growth / span), len(done) / float(done[-1] - arrived[0])
    return Steadiness(*rates, left, overloaded=overloaded, steady=steady, requests=enough, served_per_s=whole)


def over_time(record: Record, _traffic: Traffic, pages: int, points: int) -> dict[str, list[float]]:
    """Means over `points` equal stretches of a run, from its first request to its last token.

    Args:
        record: a run whose steps were kept.
        traffic: its requests.
        pages: of the caches of all engines together.
        points: stretches at most; no more than there are steps.

    Returns:
        `time_s`: the end of each stretch; `running`: requests in a step, of all engines; `waiting`: requests in queues;
        `kv_share`: pages in use over all; `output_tokens_per_s`: first tokens and later ones.
    """
    begin = float(record.arrival_s.min())
    edges = np.linspace(begin, float(record.done_s.max()), max(min(points, len(record.steps)), 1) + 1)
    width = np.diff(edges)
    mean = {name: _integral(record, read, edges) / width for name, read in READ.items()}
    made = _integral(record, lambda step: (step.decoding + len(step.first)) / step.seconds, edges) / width
    lists = {
        "time_s": edges[1:] - begin,
        "running": mean["running"],
        "waiting": mean["waiting"],
        "kv_share": mean["pages"] / max(pages, 1),
        "output_tokens_per_s": made,
    }
    return {name: [round(one, DIGITS) for one in values.tolist()] for name, values in lists.items()}


READ: dict[str, Callable[[Step], float]] = {
    "running": lambda step: step.decoding + len({request for request, _, _ in step.pieces}),
    "waiting": lambda step: step.waiting,
    "pages": lambda step: step.pages,
}


def _integral(record: Record, read: Callable[[Step], float], edges: Array) -> Array:
    """Value × seconds of every stretch; between its steps an engine is idle and has nothing."""
    whole = np.zeros(len(edges))
    for which in {which for which, _ in record.steps}:
        steps: list[Any] = [step for engine, step in record.steps if engine == which]
        start = np.array([step.start_s for step in steps])
        seconds = np.array([step.seconds for step in steps])
        area = seconds * np.array([read(step) for step in steps])
        ends = np.ravel(np.column_stack((start, start + seconds)))
        before = np.concatenate(([0.0], np.cumsum(area)))
        whole += np.interp(edges, ends, np.ravel(np.column_stack((before[:-1], before[1:]))))
    return np.diff(whole)

"""What a simulated run amounts to: latency percentiles, throughput, goodput under a service level; of all requests or
of its middle, over time, and whether it kept up.

A closed loop begins with all its requests at once, whose prompts wait for one another; no such crowd comes again. What
`plan` answers is a deployment that has been loaded for long, which is the middle.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipewave.errors import BadInput
from pipewave.physics.demand import Array
from pipewave.simulate.engine_step import Step
from pipewave.simulate.power import Boards, watts_over_time
from pipewave.simulate.simulation import Record
from pipewave.simulate.traffic import Traffic

PERCENTILES = (50, 90, 95, 99)
TIMES = ("ttft_ms", "tpot_ms", "e2e_ms")
Mask = NDArray[np.bool_]
EDGE = 0.1  # of open-loop requests, at either end
DIGITS = 4
EARLY = 0.25  # share of the time in which requests come that fills an engine; the last such share is late
BEHIND = 0.02  # growth of a queue over arrivals that is overload
ALONE = 1.0  # percentile of the times a token takes: requests that hardly met others
TURNS = 4.0  # times that the mean request takes, after which the first ones have left
MEAN, GROWN = "mean", "_grown"
LEAST = 1e-6  # of a time over its limit, where nothing is limited


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit on a statistic of a time: its mean, or a percentile over requests; of goodput, on that of each request.
    TPOT leaves out the first token.
    """

    metric: str  # ttft_ms, tpot_ms or e2e_ms
    ms: float
    statistic: str = MEAN  # or p50, p90, p95, p99

    @property
    def figure(self) -> str:
        """Its name among the figures of a run."""
        return f"{self.metric.removesuffix('_ms')}_{self.statistic}_ms"

    def __str__(self) -> str:
        return f"{self.statistic} {self.metric[:4].upper().strip('_')} ≤ {self.ms:g} ms"

    @classmethod
    def of(cls, metric: str, given: float | str | None) -> Limit | None:
        """From 2000 (the mean) or `p99=2000`; None for none. Raises BadInput."""
        if given is None:
            return None
        statistic, equals, number = str(given).partition("=")
        statistic, number = (statistic.strip().lower(), number) if equals else (MEAN, statistic)
        known = (MEAN, *(f"p{p}" for p in PERCENTILES))
        try:
            ms = float(number)
        except ValueError:
            ms = 0.0
        if statistic not in known or isinstance(given, bool) or not 0 < ms < 1e12:
            raise BadInput(
                f"{metric} = {given!r}: must be a positive number of ms, for the mean, or a percentile such as "
                f"p99=2000 ({', '.join(known[1:])})",
                field=metric,
            )
        return cls(metric, ms, statistic)


def over(figures: Mapping[str, float], limits: Sequence[Limit], end: str = "") -> float:
    """Logarithm of the time nearest to its limit over that limit; `end` of its interval: `_low`, `_high`. Times of
    engines that still fill count as they grow (`grown`).
    """
    times = (figures.get(one.figure + end, 0.0) * figures.get(one.metric + GROWN, 1.0) / one.ms for one in limits)
    return math.log(max([*times, LEAST]))


def limits_of(**given: float | str | None) -> tuple[Limit, ...]:
    """The limits that are given, by metric (`ttft_ms="p99=2000"`). Raises BadInput."""
    return tuple(limit for metric, value in given.items() if (limit := Limit.of(metric, value)))


def as_seen(record: Record, traffic: Traffic, first_tokens: int) -> Record:
    """A run as clients see it whose server sends so many tokens of a request at once, the first one among them: the
    first are seen when the last of them is made.
    """
    if first_tokens == 1:
        return record
    held = np.minimum(first_tokens, traffic.output_len) - 1
    later = record.first_s + held * (record.done_s - record.first_s) / np.maximum(traffic.output_len - 1, 1)
    return replace(record, first_s=later)


def summary(
    record: Record, traffic: Traffic, gpus: int, limits: Sequence[Limit] = (), kept: Mask | None = None
) -> dict[str, Any]:
    """Percentiles in ms and rates per second over the requests kept; None keeps all.

    Rates of a middle are those of as many requests in the order in which they were done: its own end with its longest.
    Steps are those that began while it was served. A request is good where its times keep the limits.
    """
    chosen = slice(None) if kept is None else kept
    first_s, done_s, come_s = (one[chosen] for one in (record.first_s, record.done_s, record.arrival_s))
    prompts, outputs = traffic.input_len[chosen], traffic.output_len[chosen]
    ttft, e2e, later = 1e3 * (first_s - come_s), 1e3 * (done_s - come_s), outputs - 1
    tpot = np.where(later > 0, 1e3 * (done_s - first_s) / np.maximum(later, 1), 0.0)
    times = dict(zip(TIMES, (ttft, tpot, e2e), strict=True))
    good = np.mean(np.all([times[one.metric] <= one.ms for one in limits], axis=0))
    begin, end = float(come_s.min()), float(done_s.max())
    count, span, before = len(come_s), end - begin, int(np.sum(record.arrival_s < begin))
    turns = float(np.ptp(np.sort(record.done_s)[before : before + count]))
    rate = count / span if kept is None or not turns else (count - 1) / turns
    steps = record.log.within() if kept is None else record.log.within(begin, end)
    engines = len(np.unique(steps["engine"])) or 1
    knows_prefixes = traffic.shared is not None or traffic.found_len is not None
    return {
        "requests": count,
        "duration_s": span,
        **spread("ttft_ms", ttft),
        **spread("tpot_ms", tpot[later > 0]),
        **_itl(steps["seconds"], steps["decoding"]),
        **spread("e2e_ms", e2e),
        "requests_per_s": rate,
        "output_tokens_per_s": rate * float(outputs.mean()),
        "total_tokens_per_s": rate * float((prompts + outputs).mean()),
        "output_tokens_per_s_per_gpu": rate * float(outputs.mean()) / gpus,
        "goodput_per_s": rate * float(good),
        "good_share": float(good),
        "preemptions": int(steps["preempted"].sum()),
        "steps": len(steps["seconds"]),
        **({"prefix_found_share": found_share(record, traffic, kept)} if knows_prefixes else {}),
        "busy_share": float(steps["seconds"].sum()) / (span * engines),
    }


def spread(name: str, values: Array) -> dict[str, float]:
    """Mean and percentiles under names such as `ttft_p99_ms`."""
    stem, unit = name.rsplit("_", 1)
    if not len(values):
        return {}
    points = np.percentile(values, PERCENTILES)
    out = {f"{stem}_mean_{unit}": float(values.mean())}
    return out | {f"{stem}_p{p}_{unit}": float(v) for p, v in zip(PERCENTILES, points, strict=True)}


def _itl(seconds: Array, decoding: Array) -> dict[str, float]:
    """Gaps between tokens of a request: the duration of a step, once for each request that decoded in it."""
    if not decoding.any():
        return {}
    order = np.argsort(seconds)
    reached = np.cumsum(decoding[order]) / decoding.sum()
    points = {f"itl_p{p}_ms": 1e3 * float(seconds[order][np.searchsorted(reached, p / 100)]) for p in PERCENTILES}
    return {"itl_mean_ms": 1e3 * float(seconds @ decoding / decoding.sum())} | points


def found_share(record: Record, traffic: Traffic, kept: Mask | None = None) -> float:
    """Share of the prompts' tokens that a cache of prefixes held when each first ran."""
    chosen = slice(None) if kept is None else kept
    return float(np.nansum(record.found[chosen])) / float(traffic.input_len[chosen].sum())


def middle(record: Record, traffic: Traffic) -> Mask:
    """Which requests are in the middle, [request]: all but the first two rounds of a closed loop and its last one, or
    but the first and last tenth of those that come on their own.

    Raises BadInput where no request is left.
    """
    count, held = len(traffic), traffic.closed
    first, last = (2 * held, count - held) if held else (int(EDGE * count), count - int(EDGE * count))
    if last <= first:
        most = f"at least {3 * (held or 1) + 1}" if held else "more"
        raise BadInput(f"requests = {count}: too few for a middle; ask for {most}", field="requests")
    order = np.argsort(record.arrival_s, kind="stable")
    kept = np.zeros(count, bool)
    kept[order[first:last]] = True
    return kept


@dataclass(frozen=True, slots=True)
class Steadiness:
    """Whether a run kept up with its requests."""

    overloaded: bool  # requests come faster than they are done: waits grow as long as they come
    steady: bool  # it keeps up, and long enough for the first requests to have left
    requests: int = 0  # of a run that is long enough to tell; 0 where no number of them is
    arrivals_per_s: float = 0.0  # after the first quarter of the time in which requests come; 0 where all come at once
    served_per_s: float = 0.0  # over the whole run

    @property
    def verdict(self) -> str:
        """In words."""
        if self.overloaded:
            rates = f"{self.served_per_s:.3g} requests/s of {self.arrivals_per_s:.3g}"
            return f"saturated: {rates}; waits grow for as long as requests come"
        if self.steady:
            return "steady"
        short = f"the run is too short, ask for {self.requests:,} requests"
        return f"no steady state: {short if self.requests else 'all come at once'}"


def steadiness(record: Record, traffic: Traffic) -> Steadiness:
    """Compare arrivals with first tokens and with completions, after the first quarter of the time in which they come.

    Overloaded is an open loop whose queue grows by more than a fiftieth of the arrivals, or whose requests in the
    system grow by more than a batch that fills would explain (`_filling`), each beyond chance (the standard deviation
    of a Poisson count by Gehrels, 1986). A closed loop cannot be overloaded; it is steady after two rounds, an open one
    when requests come for at least four times as long as the mean one takes.
    """
    arrived, first, done = (np.sort(times) for times in (record.arrival_s, record.first_s, record.done_s))
    begin, last = (1.0 - EARLY) * arrived[0] + EARLY * arrived[-1], arrived[-1]
    if last == arrived[0]:
        return Steadiness(overloaded=False, steady=False)
    whole = len(done) / float(done[-1] - arrived[0])
    if held := traffic.closed:
        steady = len(arrived) > 2 * held
        return Steadiness(overloaded=False, steady=steady, requests=2 * held + 1, served_per_s=whole)
    come, begun, gone = (
        float(np.diff(np.searchsorted(times, (begin, last), "right"))[0]) for times in (arrived, first, done)
    )
    e2e, chance = record.done_s - record.arrival_s, 1.0 + math.sqrt(come + 0.75)
    grown = max(BEHIND, _filling(e2e, traffic.output_len)) * come + chance
    overloaded = come - begun > max(BEHIND * come, chance) or come - gone > grown
    span, needed = float(last - arrived[0]), TURNS * float(e2e.mean())
    steady, enough = not overloaded and span >= needed, math.ceil(len(arrived) * needed / span)
    return Steadiness(overloaded, steady, enough, arrivals_per_s=come / float(last - begin), served_per_s=whole)


def _filling(e2e_s: NDArray[np.float64], outputs: NDArray[np.int64]) -> float:
    """By what share of arrivals the requests in the system may grow while a batch fills: where a step takes `a + b n`
    for n requests, the share that a request's time alone is of the time it takes.
    """
    return float(np.percentile(e2e_s / outputs, ALONE) * outputs.mean() / e2e_s.mean())


def grown(record: Record, figures: Mapping[str, float]) -> dict[str, float]:
    """How much longer first tokens and later ones take in the last quarter of the time in which requests come than in a
    run's figures, as factors of at least 1: of engines that still fill, the figures are those of emptier ones.
    """
    come, last = record.arrival_s, float(record.arrival_s.max())
    begin = EARLY * float(come.min()) + (1.0 - EARLY) * last
    steps = record.log.within(begin, last)
    late = _itl(steps["seconds"], steps["decoding"]) | spread("ttft_ms", 1e3 * (record.first_s - come)[come >= begin])
    names = zip(TIMES, (f"{of}_mean_ms" for of in ("ttft", "itl", "itl")), strict=True)
    more = ((time, late[name] / (figures.get(name) or math.inf)) for time, name in names if name in late)
    return {time + GROWN: max(factor, 1.0) for time, factor in more}


def over_time(record: Record, pages: int, powered: Sequence[Boards], points: int) -> dict[str, list[float]]:
    """Means over at most `points` equal stretches of a run whose steps were kept, from its first request to its last
    token; `pages`: of the caches of all engines together; `powered`: what its boards are.

    `time_s`: the end of each stretch; `running`: requests in a step, of all engines; `waiting`: requests in queues;
    `kv_share`: pages in use over all; `output_tokens_per_s`: first tokens and later ones; `power_w`: of a GPU.
    """
    begin = float(record.arrival_s.min())
    edges = np.linspace(begin, float(record.done_s.max()), max(min(points, len(record.steps)), 1) + 1)
    width = np.diff(edges)

    def mean(read: Callable[[Step], float]) -> Array:
        return _integral(record, read, edges) / width

    lists = {
        "time_s": edges[1:] - begin,
        "running": mean(lambda step: step.decoding + len({request for request, _, _ in step.pieces})),
        "waiting": mean(lambda step: step.waiting),
        "kv_share": mean(lambda step: step.pages) / max(pages, 1),
        "output_tokens_per_s": mean(lambda step: (step.decoding + len(step.first)) / step.seconds),
        "power_w": watts_over_time(powered, record.stretches, edges),
    }
    return {name: [round(one, DIGITS) for one in values.tolist()] for name, values in lists.items()}


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

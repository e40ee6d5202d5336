"""The largest rate of requests that a deployment serves within limits, and what becomes of them on the way there.

Every answer is a run: Poisson arrivals of the same requests, drawn once and sent faster or slower. Rates are looked for
between one that keeps the limits and one that does not, until they are 1 % apart; without limits, the deployment has
only to keep up. The interval holds the rates at which the ends of the times' own intervals meet the limits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from pipewave.errors import BadInput
from pipewave.published.answers import Deployed
from pipewave.results import Shown
from pipewave.simulate.interval import interval_ends
from pipewave.simulate.report import Limit, over

NEAR = 0.01  # how far apart the rates are between which a limit is crossed
TURNS, FEWEST, MOST = 12, 600, 20_000  # requests of a run for each that is in flight, and at least and at most
FLOOD = 3  # rounds of requests in flight of the run that tells how many are done a second at most
STEPS = (0.1, 0.25, 0.5, 0.7, 0.8, 0.9, 0.95, 1.0, 1.1, 1.3)  # of the curve, over the largest rate that is kept up with
LEAST, SURE = 1e-3, 4.0  # of that rate: below which none is looked for, and above which none is kept up with
SHOWN = ("requests_per_s", "output_tokens_per_s", "ttft_mean_ms", "ttft_p50_ms", "ttft_p90_ms", "ttft_p99_ms",
         "tpot_mean_ms", "tpot_p50_ms", "tpot_p90_ms", "tpot_p99_ms", "e2e_mean_ms")  # fmt: skip
Load = Callable[[float, int], Deployed]


@dataclass(frozen=True, slots=True)
class Point:
    """A run at a rate: figures of its middle, and how far the time nearest to its limit is above it."""

    rate: float  # requests a second that are sent
    figures: Mapping[str, float]
    over: float  # logarithm of that time over its limit; infinite where the run does not keep up
    saturated: bool

    def row(self) -> dict[str, Any]:
        """A row of the curve."""
        told = {name: round(self.figures[name], 4) for name in SHOWN if name in self.figures}
        return {"rate": round(self.rate, 4), **told, "saturated": self.saturated}


@dataclass(frozen=True, slots=True)
class FoundRate(Shown):
    """The largest rate within limits, requests a second, with its 90 % interval; 0 where no rate keeps them."""

    model: str
    gpu: str
    gpus: int
    engine: str
    limits: tuple[str, ...]
    rate_per_s: float
    rate_per_s_low: float
    rate_per_s_high: float
    capacity_per_s: float  # requests done a second when more come than it can serve
    bound_by: str  # the limit that the next larger rate breaks
    curve: tuple[Mapping[str, Any], ...]  # rate against times, in order of rate
    verdict: str
    traffic: str
    notes: tuple[str, ...] = ()
    _TABLE: ClassVar[str] = "curve"
    _DRAWN: ClassVar[tuple[str, ...]] = ("rate", "ttft_mean_ms", "tpot_mean_ms")


def find_rate(load: Load, limits: tuple[Limit, ...]) -> FoundRate:
    """Search for the largest rate of `load`: the deployment under so many requests that come at a rate (`inf`: at
    once).

    limits: none where it has to keep up only. Raises what a deployment that cannot be raises.
    """
    search = _Search(load, limits)
    best, above = search.largest(0.0)
    broken = [str(limit) for limit in limits if above.figures.get(limit.figure, 0.0) > limit.ms]
    ends = [search.largest(sign)[0] for sign in (1.0, -1.0)] if best else [best, best]
    shown = {*(share * search.capacity for share in STEPS), *filter(None, [best])}
    points = [search.at(rate, 0.0) for rate in sorted(shown)]
    deployed, most = search.load(max(best, LEAST), FEWEST), max(search.capacity, best)
    names = deployed.engines.names()
    what = f"{best:.4g} requests/s within {', '.join(map(str, limits))}" if limits else f"{best:.4g} requests/s"
    met = what if best else f"no rate is within {', '.join(map(str, limits))}"
    return FoundRate(
        **{name: names[name] for name in ("model", "gpu", "gpus", "engine")},
        limits=tuple(map(str, limits)),
        rate_per_s=best,
        rate_per_s_low=min(ends[0], best),
        rate_per_s_high=max(ends[1], best),
        capacity_per_s=most,
        bound_by="capacity" if above.saturated else next(iter(broken), ""),
        curve=tuple(point.row() for point in points),
        verdict=f"{met}; saturated at {most:.4g}",
        traffic=str(deployed.traffic),
        notes=tuple(deployed.all_notes),
    )


class _Search:
    """Runs at rates, each once; `sign` of 1 and −1: with steps at the slow and the fast end of their interval."""

    def __init__(self, load: Load, limits: tuple[Limit, ...]) -> None:
        self.load, self.limits = load, limits
        self.known: dict[float, Point] = {}
        self.capacity, self.held = self._flooded()

    def _flooded(self) -> tuple[float, float]:
        """Requests done a second while more wait than fit, and those in flight then."""
        count = FEWEST
        while True:
            deployed = self.load(math.inf, count)
            record, requests = deployed.run(), len(deployed.traffic)
            done = sorted(record.done_s.tolist())
            first, last = int(0.3 * requests), int(0.7 * requests)
            rate = (last - first) / max(done[last] - done[first], 1e-9)
            held = rate * float((record.done_s - record.first_s).mean())
            if requests >= FLOOD * held or count >= MOST or requests < count:
                return rate, held
            count = min(math.ceil(FLOOD * held) + 1, MOST)

    def at(self, rate: float, sign: float) -> Point:
        """The run at a rate."""
        if not sign and rate in self.known:
            return self.known[rate]
        turns = int(TURNS * self.held * min(rate / self.capacity, 1.0))  # for its middle to be steady
        deployed = self.load(rate, min(max(turns, FEWEST), MOST))
        if len(deployed.traffic) < min(turns, MOST):
            raise BadInput(f"requests = {len(deployed.traffic)}: must be {turns} or more to tell", field="requests")
        uncertain = deployed.engines.uncertain
        figures, late = deployed.steady_figures(uncertain.tried(None)[sign > 0] if sign else 1.0)
        if sign:
            plain = self.at(rate, 0.0)
            ends = interval_ends(plain.figures, uncertain, figures)
            figures = {name: ends.get(name + ("_high" if sign > 0 else "_low"), one) for name, one in figures.items()}
            late = late if sign > 0 else late and plain.saturated
        late = late or rate > SURE * self.capacity  # more than are done, however few a run holds
        above = over(figures, self.limits) if self.limits else -math.inf
        point = Point(rate, figures, math.inf if late else above, late)
        if not sign:
            self.known[rate] = point
        return point

    def largest(self, sign: float) -> tuple[float, Point]:
        """The largest rate that keeps the limits (0: none does), and the run above it that does not."""
        low, high = 0.0, self.at(1.02 * self.capacity * (1.5 if sign < 0 else 1.0), sign)
        while high.over <= 0:
            low, high = high.rate, self.at(1.3 * high.rate, sign)
        below: Point | None = None
        while high.rate > (1.0 + NEAR) * low and high.rate > LEAST * self.capacity:
            point = self.at(self._between(low, high, below), sign)
            if point.over <= 0:
                low, below = point.rate, point
            else:
                high = point
        return low, high

    @staticmethod
    def _between(low: float, high: Point, below: Point | None) -> float:
        """Where the line through both ends meets the limit, kept off the ends; half way where there is no line."""
        if below is None:
            return 0.5 * high.rate
        part = 0.5
        if math.isfinite(high.over) and math.isfinite(below.over):
            part = min(max(-below.over / (high.over - below.over), 0.1), 0.9)
        return float(low * (high.rate / low) ** part)

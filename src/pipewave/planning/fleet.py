"""How many replicas a demand takes, what they cost, and how an autoscaler would run them over a day."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from pipewave.calls.fields import is_number
from pipewave.errors import BadInput
from pipewave.gpus import find as find_gpu
from pipewave.planning.prices import Price
from pipewave.planning.run import Point
from pipewave.planning.space import Question, Split
from pipewave.simulate.traffic import Ints, Traffic

MONTH_H = 730.0  # hours of a month: 8,760 of a year over 12
BIN_S, BINS = 300.0, 24  # of a curve of rates; at least so many bins


@dataclass(frozen=True, slots=True)
class Demand:
    """What comes, one of several kinds, and what may be spent; all None: one replica at the largest rate it serves."""

    rate: float | None = None  # requests a second
    tokens_per_s: float | None = None  # output tokens
    users: float | None = None  # each sends its next request `think_s` after an answer
    think_s: float = 0.0
    arrivals: Traffic | None = None
    budget: float | None = None  # USD a month
    scale_delay_s: float = 300.0  # from an autoscaler's decision to a replica that serves

    def __post_init__(self) -> None:
        for name in ("rate", "tokens_per_s", "users", "budget"):
            value = getattr(self, name)
            if value is not None and not (is_number(value) and 0 < value < 1e9):
                raise BadInput(f"{name} = {value!r}: must be above 0 and below 1e9", field=name)
        usual = {one.name: one.default for one in fields(self)}
        for name, beside in (("think_s", "users"), ("scale_delay_s", "arrivals")):
            value = getattr(self, name)
            if not (is_number(value) and 0 <= value < 1e9):
                raise BadInput(f"{name} = {value!r}: must be from 0 to 1e9", field=name)
            if value != usual[name] and getattr(self, beside) is None:
                raise BadInput(f"{name}: goes with {beside}, which are not given", field=name)
        if len(self.given) > 1:
            raise BadInput(f"give one of {' and '.join(self.given)}: each says how much comes", field=self.given[1])

    @property
    def given(self) -> list[str]:
        """What says how much comes, if anything."""
        return [name for name in ("rate", "tokens_per_s", "users", "arrivals") if getattr(self, name) is not None]

    def bought(self, usd_per_hour: float | None) -> tuple[int, float]:
        """Replicas that a budget pays at a price, and their share of it (1 and 0 for none); 1 and 1 beside a demand."""
        if self.budget is None or self.given or not usd_per_hour:
            return 1, 1.0
        most = self.budget / (usd_per_hour * MONTH_H)
        return max(int(most), 1), int(most) / most

    def peak(self, question: Question, e2e_s: float) -> float:
        """Requests a second at the peak, where a request takes `e2e_s` (users wait for it)."""
        if self.arrivals is not None:
            return float(self.rates()[1].max())
        if self.users is not None:
            return self.users / (self.think_s + e2e_s)
        if self.tokens_per_s is not None:
            return self.tokens_per_s / question.output_len
        assert self.rate is not None
        return self.rate

    def rates(self) -> tuple[np.ndarray[Any, np.dtype[np.float64]], np.ndarray[Any, np.dtype[np.float64]]]:
        """Starts of bins in seconds, and requests a second in each."""
        assert self.arrivals is not None
        times = self.arrivals.arrival_s - self.arrivals.arrival_s[0]
        span = float(times[-1])
        if not span:
            raise BadInput("arrivals: all requests come at once; a file with times is needed", field="arrivals")
        counted, edges = np.histogram(times, bins=max(math.ceil(span / BIN_S), BINS), range=(0.0, span))
        return edges[:-1], counted / edges[1]


@dataclass(frozen=True, slots=True, eq=False)
class Fleet:
    """Replicas of a design for a demand, served at its own rate."""

    replicas: int
    capacity: float  # of one replica within the limits
    point: Point  # the run at that rate, of some of the replicas
    usd_per_hour: float | None = None

    @property
    def peak(self) -> float:
        """Requests a second of all replicas."""
        return self.point.rate * self.replicas / self.point.replicas

    @property
    def utilisation(self) -> float:
        """Of the rate that the replicas serve within the limits, how much comes at the peak."""
        return self.peak / (self.replicas * self.capacity)

    def to_dict(self, split: Split, question: Question, prompt_share: float) -> dict[str, Any]:
        """Replicas, GPUs and costs; None for what has no price."""
        hour = self.usd_per_hour
        out, read = (1e6 / (3600 * self.peak * n) for n in (question.output_len, question.input_len))
        found: dict[str, Any] = {
            "replicas": self.replicas,
            "gpus": self.replicas * split.gpus,
            "requests_per_s": self.peak,
            "requests_per_s_per_replica": self.capacity,
            "usd_per_hour": hour,
            "usd_per_month": hour and hour * MONTH_H,
            "usd_per_million_output_tokens": hour and hour * (1 - prompt_share) * out,
            "usd_per_million_input_tokens": hour and hour * prompt_share * read,
            "utilisation": self.utilisation,
            "headroom": 1 / self.utilisation - 1,
        }
        return {name: round(value, 4) if isinstance(value, float) else value for name, value in found.items()}


def hourly(split: Split, prices: Mapping[str, Price], watts: float, replicas: int = 1) -> float | None:
    """USD an hour of some replicas whose boards draw so many watts each; None where a GPU has no price."""
    found = [(n, prices.get(find_gpu(gpu).name)) for gpu, n in split.by_gpu.items()]
    return replicas * sum(n * price.at(watts) for n, price in found if price) if all(p for _, p in found) else None


def curve(demand: Demand, capacity: float, usd_per_hour: float | None) -> dict[str, Any]:
    """What an autoscaler does over the recorded time, where a replica serves so many requests a second."""
    starts, rates = demand.rates()
    width = float(starts[1] - starts[0])
    needed = np.ceil(rates / capacity - 1e-9).astype(int)
    held = np.array(list(_replicas(needed, math.ceil(demand.scale_delay_s / width))))
    hours = float(held.sum()) * width / 3600
    short = rates[held < needed].sum() / rates.sum()
    span_h = len(rates) * width / 3600
    return {
        "scale_delay_s": demand.scale_delay_s,
        "bin_s": width,
        "start_s": [round(float(s), 1) for s in starts],
        "requests_per_s": [round(float(r), 4) for r in rates],
        "needed": needed.tolist(),
        "replicas": held.tolist(),
        "replica_hours": round(hours, 2),
        "fixed_replica_hours": round(float(needed.max()) * span_h, 2),
        "share_of_requests_while_short": round(float(short), 4),
        "usd_per_month": None if usd_per_hour is None else round(usd_per_hour * hours / span_h * MONTH_H, 2),
    }


def _replicas(needed: Ints, delay: int) -> Iterator[int]:
    """Replicas in each bin, of whose rate so many are needed. At a bin's end the autoscaler wants as many as its rate
    took; new ones serve after the delay, in bins, and one is given back when no bin of that long wanted it.
    """
    running, coming = int(needed[0]), list[tuple[int, int]]()
    for at in range(len(needed)):
        running += sum(count for ready, count in coming if ready <= at)
        coming = [(ready, count) for ready, count in coming if ready > at]
        yield running
        wanted = int(needed[max(at - delay, 0) : at + 1].max())
        if (more := wanted - running - sum(count for _, count in coming)) > 0:
            coming.append((at + 1 + delay, more))
        elif wanted < running and not coming:
            running = max(wanted, 1)

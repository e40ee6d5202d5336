"""What a simulated run amounts to: latency percentiles, throughput, goodput under a service level."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pipewave.errors import BadInput
from pipewave.physics.demand import Array
from pipewave.simulate.simulation import Record
from pipewave.simulate.traffic import Traffic

PERCENTILES = (50, 90, 95, 99)
TIMES = ("ttft_ms", "tpot_ms", "e2e_ms")


@dataclass(frozen=True, slots=True)
class Sla:
    """Limits in ms that a request must meet to count; None = any. TPOT leaves out the first token."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2e_ms: float | None = None

    def __post_init__(self) -> None:
        for name in TIMES:
            limit = getattr(self, name)
            if limit is not None and not limit > 0:
                raise BadInput(f"{name} = {limit!r}: must be a positive number of ms", field=name)


ANY = Sla()
MEAN = "mean"


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit on a statistic of a time: its mean, or a percentile over requests."""

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


def summary(record: Record, traffic: Traffic, gpus: int, sla: Sla = ANY) -> dict[str, Any]:
    """Percentiles in ms and rates per second over all requests."""
    ttft = 1e3 * (record.first_s - record.arrival_s)
    e2e = 1e3 * (record.done_s - record.arrival_s)
    later = traffic.output_len - 1
    tpot = 1e3 * (record.done_s - record.first_s) / np.maximum(later, 1)
    span = float(record.done_s.max() - record.arrival_s.min())
    good = _meets(ttft, sla.ttft_ms) & _meets(np.where(later > 0, tpot, 0.0), sla.tpot_ms) & _meets(e2e, sla.e2e_ms)
    rates = {
        "requests_per_s": len(traffic) / span,
        "output_tokens_per_s": float(traffic.output_len.sum()) / span,
        "total_tokens_per_s": float((traffic.output_len + traffic.input_len).sum()) / span,
        "output_tokens_per_s_per_gpu": float(traffic.output_len.sum()) / span / gpus,
        "goodput_per_s": float(good.sum()) / span,
        "good_share": float(good.mean()),
    }
    return {
        "requests": len(traffic),
        "duration_s": span,
        **spread("ttft_ms", ttft),
        **spread("tpot_ms", tpot[later > 0]),
        **_itl(record),
        **spread("e2e_ms", e2e),
        **rates,
        "preemptions": record.preemptions,
        "steps": len(record.steps),
        **_found(record, traffic),
        "busy_share": _busy(record, span),
    }


def _meets(values: Array, limit: float | None) -> np.ndarray[Any, np.dtype[np.bool_]]:
    return np.ones(len(values), bool) if limit is None else values <= limit


def spread(name: str, values: Array) -> dict[str, float]:
    """Mean and percentiles under names such as `ttft_p99_ms`."""
    stem, unit = name.rsplit("_", 1)
    if not len(values):
        return {}
    points = np.percentile(values, PERCENTILES)
    out = {f"{stem}_mean_{unit}": float(values.mean())}
    return out | {f"{stem}_p{p}_{unit}": float(v) for p, v in zip(PERCENTILES, points, strict=True)}


def _itl(record: Record) -> dict[str, float]:
    """Gaps between tokens of a request: the duration of a step, once for each request that decoded in it."""
    steps = [step for _, step in record.steps if step.decoding]
    if not steps:
        return {}
    seconds = np.array([step.seconds for step in steps])
    weight = np.array([step.decoding for step in steps], float)
    order = np.argsort(seconds)
    reached = np.cumsum(weight[order]) / weight.sum()
    points = {f"itl_p{p}_ms": 1e3 * float(seconds[order][np.searchsorted(reached, p / 100)]) for p in PERCENTILES}
    return {"itl_mean_ms": 1e3 * float(seconds @ weight / weight.sum())} | points


def _found(record: Record, traffic: Traffic) -> dict[str, float]:
    return {} if traffic.shared is None and traffic.found_len is None else {
        "prefix_found_share": found_share(record, traffic)}  # fmt: skip


def found_share(record: Record, traffic: Traffic) -> float:
    """Share of the prompts' tokens that a cache of prefixes held when each first ran."""
    first: dict[int, int] = {}
    for _, step in record.steps:
        for request, _, before in step.pieces:
            first.setdefault(request, before)
    return sum(first.values()) / float(traffic.input_len.sum())


def _busy(record: Record, span: float) -> float:
    """Share of the time engines were running a step."""
    engines = len({which for which, _ in record.steps}) or 1
    return sum(step.seconds for _, step in record.steps) / (span * engines)
